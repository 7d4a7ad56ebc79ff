// Lines on their way to a file descriptor that may take none.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace attnd {

// A thread of its own writes, so that nobody else waits for a pipe that is full or a disk that
// hangs. What waits is bounded by kMaxBytes: beyond it the oldest lines are dropped and counted,
// and a line that says how many stands where they are missing. Lines leave whole and in order.
// Thread safe.
class LogWriter {
 public:
  static constexpr int64_t kMaxBytes = 1 << 20;

  // `fd` stays open as long as the process. `notice`: the line for a number of lost lines, without
  // its end; called by the thread.
  LogWriter(int fd, std::function<std::string(int64_t)> notice);
  // Leaves the thread to itself, which ends when it has written what waits.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // `line` ends with a line feed. Takes a short lock, never waits for the descriptor.
  void Put(std::string line) noexcept;

  // False if lines are still unwritten when the time has passed.
  bool Flush(std::chrono::milliseconds timeout) noexcept;

  // Lines that were dropped, for want of room or because writing failed.
  int64_t dropped() const noexcept;
  // Lines that wait or are being written. Safe in a signal handler.
  int64_t waiting() const noexcept;

 private:
  struct State;
  const std::shared_ptr<State> state_;  // shared with the thread
};

}  // namespace attnd
