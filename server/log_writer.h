// Lines on their way to a file descriptor that may take none.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace attnd {

// spdlog's asynchronous logger: a thread of its own writes, so that nobody else waits for a pipe
// that is full or a disk that hangs. At most kMostLines wait: beyond them the oldest are dropped
// and counted, and a line that says how many stands where they are missing. Lines leave whole and
// in order. Thread safe.
class LogWriter {
 public:
  static constexpr size_t kMostLines = 1024;
  static constexpr size_t kMostLineBytes = 8192;

  // `fd` stays open as long as the writer. `notice`: the line for a number of lost lines; called
  // by the thread.
  LogWriter(int fd, std::function<std::string(int64_t)> notice);
  // Waits until what was put is written.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // `line` ends with a line feed; one above kMostLineBytes is dropped. Takes a short lock, never
  // waits for the descriptor.
  void Put(const std::string& line) noexcept;

  // False if lines are still unwritten when the time has passed.
  bool Flush(std::chrono::milliseconds timeout) const noexcept;

  // Lines that were dropped, for want of room or because writing failed.
  int64_t dropped() const;
  // Lines of which the thread does not know yet that they are written or dropped. Safe in a signal
  // handler.
  int64_t waiting() const noexcept;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace attnd
