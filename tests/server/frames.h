// Makes frames of HTTP/2 and passes them to FrameWalk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "server/frame_walk.h"

namespace attnd {

inline std::string Preface() { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"; }

inline std::string Frame(int type, int flags, uint32_t stream, const std::string& payload = "") {
  const size_t size = payload.size();
  std::string frame;
  for (const size_t byte : {size >> 16, size >> 8, size}) frame += static_cast<char>(byte);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) frame += static_cast<char>(stream >> shift);
  return frame + payload;
}

// The start of a gRPC message of `size` bytes.
inline std::string Prefix(uint32_t size) {
  std::string prefix(1, '\0');
  for (const int shift : {24, 16, 8, 0}) prefix += static_cast<char>(size >> shift);
  return prefix;
}

// The first error; empty: none.
inline std::string Walk(FrameWalk* walk, const std::string& bytes, size_t piece = 1 << 30) {
  for (size_t at = 0; at < bytes.size(); at += piece) {
    const size_t size = std::min(piece, bytes.size() - at);
    const auto* const begin = reinterpret_cast<const std::byte*>(bytes.data()) + at;
    const absl::string_view reason = walk->Take({begin, size});
    if (!reason.empty()) return std::string(reason);
  }
  return "";
}

}  // namespace attnd
