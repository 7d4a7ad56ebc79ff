// A bound for lines of the log that clients can cause.
#pragma once

#include <atomic>
#include <cstdint>

namespace attnd {

// At most kLinesPerSecond, roughly: a client that is refused all the time must not fill the disk.
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
