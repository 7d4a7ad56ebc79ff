// Writes lines to a file descriptor that may block.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace attnd {

// spdlog's asynchronous logger: its own thread writes, so that no other thread waits for a full
// pipe or a disk that hangs. At most kMostLines wait: beyond them the oldest are dropped and
// counted, and a line with their number takes their place. Lines are written whole and in order.
// Thread safe.
class LogWriter {
 public:
  static constexpr size_t kMostLines = 1024;
  static constexpr size_t kMostLineBytes = 8192;

  // REQUIRES: `fd` stays open as long as the writer exists. `notice`: the line for a number of lost
  // lines; called on the writer's thread.
  LogWriter(int fd, std::function<std::string(int64_t)> notice);
  // Waits until all lines are written.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // `line` ends with a line feed; a longer one than kMostLineBytes is dropped. Takes a short lock,
  // never waits for the descriptor.
  void Put(const std::string& line) noexcept;

  // Waits until all lines so far are written or dropped; false if `timeout` passes first.
  bool Flush(std::chrono::milliseconds timeout) const noexcept;

  // Lines that were dropped because the queue was full, they were too long or writing failed.
  int64_t dropped() const;
  // Lines that are neither written nor dropped yet. Safe in a signal handler.
  int64_t waiting() const noexcept;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace attnd
