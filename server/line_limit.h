// A bound for log lines that clients can cause.
#pragma once

#include <atomic>
#include <cstdint>

namespace attnd {

// Allows about kLinesPerSecond, so that a client with many refused calls cannot fill the disk.
// Thread safe.
class LineLimit {
 public:
  bool Allow();

 private:
  static constexpr int kLinesPerSecond = 20;
  std::atomic<int64_t> second_{0};
  std::atomic<int> lines_{0};
};

}  // namespace attnd
