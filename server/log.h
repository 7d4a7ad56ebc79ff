// Log lines on standard error, as text for people or JSON for programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace attnd {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

struct LogOptions {
  std::string level = "info";   // "debug", "info", "warning", "error"
  std::string format = "text";  // "text", "json"
};

// A named value of a line: `bytes=1024`. Text from a client belongs here, not in the message.
struct LogField {
  absl::string_view name;
  std::string value;
};

// Before it is called, and for lines of other threads while it runs, the defaults apply.
// Errors: INVALID_ARGUMENT `log: level must be ..., got ...`.
[[nodiscard]] absl::Status ConfigureLog(const LogOptions& options);

// One line, whole even when several threads write. Control characters are escaped, so a value
// cannot forge a line. Never throws and never waits for the reader of standard error: a thread
// writes the lines, and those that do not fit its queue are lost and counted.
void Log(LogLevel level, absl::string_view message,
         std::initializer_list<LogField> fields = {}) noexcept;

// Waits until all lines so far are written; false if that takes longer than `timeout`. To be called
// before the process ends.
bool FlushLog(std::chrono::milliseconds timeout) noexcept;

// Lines lost since the start of the process.
int64_t LogLinesDropped() noexcept;

// Makes a crash (SIGSEGV, SIGABRT, ...) wait up to about 200 ms for the last lines to be written.
void FlushLogOnCrash();

}  // namespace attnd
