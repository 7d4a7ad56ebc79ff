// The parts of HTTP/2 frames (RFC 9113) that this server parses.
#pragma once

#include <array>
#include <cstdint>

namespace attnd {

enum FrameType : uint8_t {
  kDataFrame = 0,
  kHeadersFrame = 1,
  kResetFrame = 3,
  kPingFrame = 6,
  kWindowUpdateFrame = 8,
  kContinuationFrame = 9
};
// Flags.
constexpr uint8_t kEndStream = 1, kEndHeaders = 4;

// The header of a frame.
struct FrameHead {
  std::array<uint8_t, 9> bytes{};

  int64_t payload_bytes() const { return bytes[0] << 16 | bytes[1] << 8 | bytes[2]; }
  uint8_t type() const { return bytes[3]; }
  bool has(uint8_t flag) const { return (bytes[4] & flag) != 0; }
  uint32_t stream() const {
    return static_cast<uint32_t>(bytes[5] & 0x7f) << 24 | bytes[6] << 16 | bytes[7] << 8 | bytes[8];
  }
};

}  // namespace attnd
