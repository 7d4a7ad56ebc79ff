#include "server/no_memory.h"

#include "server/log.h"

namespace attnd {

absl::Status ErrorOf(absl::StatusCode code, const char* words) noexcept {
  try {
    return absl::Status(code, words);
  } catch (const std::bad_alloc&) {
    // A code alone needs no memory.
    return absl::Status(code, "");
  }
}

absl::Status NoMemory() noexcept {
  return ErrorOf(absl::StatusCode::kResourceExhausted,
                 "request: the server has no memory for it, retry later");
}

absl::Status FailureOf(const std::exception& error) noexcept {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return NoMemory();
  try {
    Log(LogLevel::kError, "a request ended with an exception", {{"what", error.what()}});
  } catch (const std::bad_alloc&) {
    // No memory for the line; the client gets its status all the same.
  }
  return ErrorOf(absl::StatusCode::kInternal, "request: the server failed");
}

}  // namespace attnd
