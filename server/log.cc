#include "server/log.h"

#include <errno.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/log_writer.h"

namespace attnd {
namespace {

constexpr absl::string_view kNames[] = {"debug", "info", "warning", "error"};

struct Settings {
  std::atomic<LogLevel> level = LogLevel::kInfo;
  std::atomic<bool> json = false;
};

Settings& GetSettings() {
  static Settings settings;
  return settings;
}

// Escapes control characters, so that the text stays in one line. Bytes that are not ASCII pass:
// they may be UTF-8.
void AppendEscaped(absl::string_view text, std::string* line) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      line->push_back('\\');
      line->push_back(c);
    } else if (c == '\n') {
      line->append("\\n");
    } else if (byte < 0x20 || byte == 0x7F) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", byte);
      line->append(code);
    } else {
      line->push_back(c);
    }
  }
}

bool IsPlain(absl::string_view value) {
  if (value.empty()) return false;
  for (const char c : value) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == '"' || c == '\\' || c == '=' || c == 0x7F) {
      return false;
    }
  }
  return true;
}

// UTC, RFC 3339, milliseconds.
std::string Now() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts;
  gmtime_r(&now.tv_sec, &parts);
  char date[32], text[40];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%03dZ", date, static_cast<int>(now.tv_nsec / 1000000));
  return text;
}

std::string Shortened(absl::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return std::string(text);
  return absl::StrCat(text.substr(0, most_bytes), "...");
}

std::string TextLine(absl::string_view level, absl::string_view message,
                     std::initializer_list<LogField> fields, size_t most_bytes) {
  std::string line = absl::StrCat(Now(), " ", level, " ");
  AppendEscaped(Shortened(message, most_bytes), &line);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.name, "=");
    const std::string value = Shortened(field.value, most_bytes);
    const bool plain = IsPlain(value);
    if (!plain) line.push_back('"');
    AppendEscaped(value, &line);
    if (!plain) line.push_back('"');
  }
  return line;
}

std::string JsonLine(absl::string_view level, absl::string_view message,
                     std::initializer_list<LogField> fields, size_t most_bytes) {
  nlohmann::ordered_json line;
  line["time"] = Now();
  line["level"] = std::string(level);
  line["message"] = Shortened(message, most_bytes);
  for (const LogField& field : fields) {
    line[std::string(field.name)] = Shortened(field.value, most_bytes);
  }
  // Bytes that are not UTF-8 become U+FFFD.
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

// A whole line with its line feed. The message and the values are shortened until the line fits
// kMostLineBytes: an escaped byte may take six.
std::string Line(LogLevel level, absl::string_view message,
                 std::initializer_list<LogField> fields) {
  const absl::string_view name = kNames[static_cast<int>(level)];
  for (size_t most_bytes = LogWriter::kMostLineBytes / 2;; most_bytes /= 2) {
    const auto line = GetSettings().json ? JsonLine : TextLine;
    std::string text = line(name, message, fields, most_bytes) + "\n";
    if (text.size() <= LogWriter::kMostLineBytes || most_bytes == 0) return text;
  }
}

// Never destroyed: threads may still log while the process ends.
LogWriter& Writer() {
  static LogWriter* const writer = new LogWriter(STDERR_FILENO, [](int64_t lost) {
    return Line(LogLevel::kWarning, "log lines were lost here, standard error was not read in time",
                {{"lines", absl::StrCat(lost)}});
  });
  return *writer;
}

// Waits while the writer's thread, which runs on, writes the lines. A signal handler must not
// allocate or take a lock.
void WaitForLines(int signal_number) {
  const int error = errno;
  for (int i = 0; i < 20 && Writer().waiting() > 0; ++i) {
    const timespec step{.tv_sec = 0, .tv_nsec = 10'000'000};
    nanosleep(&step, nullptr);
  }
  errno = error;
  // The handler is reset by now: this ends the process as without a handler.
  raise(signal_number);
}

}  // namespace

absl::Status ConfigureLog(const LogOptions& options) {
  if (options.format != "text" && options.format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("log: format must be text or json, got ", options.format));
  }
  for (int i = 0; i < 4; ++i) {
    if (options.level != kNames[i]) continue;
    GetSettings().level = static_cast<LogLevel>(i);
    GetSettings().json = options.format == "json";
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("log: level must be debug, info, warning or error, got ", options.level));
}

void Log(LogLevel level, absl::string_view message,
         std::initializer_list<LogField> fields) noexcept {
  if (level < GetSettings().level.load(std::memory_order_relaxed)) return;
  try {
    Writer().Put(Line(level, message, fields));
  } catch (...) {
    // A failure of the log cannot be logged.
  }
}

bool FlushLog(std::chrono::milliseconds timeout) noexcept { return Writer().Flush(timeout); }

int64_t LogLinesDropped() noexcept { return Writer().dropped(); }

void FlushLogOnCrash() {
  (void)Writer();  // created now: a signal handler must not allocate
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    struct sigaction before, ours{};
    ours.sa_handler = WaitForLines;
    ours.sa_flags = SA_RESETHAND;
    // The handlers of a sanitizer are kept.
    if (sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_DFL) {
      sigaction(number, &ours, nullptr);
    }
  }
}

}  // namespace attnd
