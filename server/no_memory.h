// What is done when the system has no memory left: one request is refused, the process goes on.
#pragma once

#include <chrono>
#include <exception>
#include <new>
#include <thread>

#include "absl/status/status.h"

namespace attnd {

// An error, without its words if there is no memory for those.
absl::Status ErrorOf(absl::StatusCode code, const char* words) noexcept;

// RESOURCE_EXHAUSTED.
absl::Status NoMemory() noexcept;

// What the client is told of an exception that a library threw: that, or INTERNAL. The log has the
// exception's own text.
absl::Status FailureOf(const std::exception& error) noexcept;

// Runs `f`, which gives a status or a StatusOr. An exception that ends it becomes FailureOf it.
template <class F>
auto Guarded(const F& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& error) {
    return FailureOf(error);
  }
}

// Tries again every millisecond until there is memory for `f`, which leaves everything as it was
// when it throws std::bad_alloc. For what must not be lost; others give memory back meanwhile.
template <class F>
void UntilMemory(const F& f) {
  for (;;) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace attnd
