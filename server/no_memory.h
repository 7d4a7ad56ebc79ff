// What happens when the system has no memory left: one request is refused, the process goes on.
#pragma once

#include <chrono>
#include <exception>
#include <new>
#include <thread>

#include "absl/status/status.h"

namespace attnd {

// An error, without its text if there is no memory for that.
absl::Status ErrorOf(absl::StatusCode code, const char* words) noexcept;

// RESOURCE_EXHAUSTED.
absl::Status NoMemory() noexcept;

// The status for an exception of a library: NoMemory for std::bad_alloc, else INTERNAL. The log has
// the exception's own text.
absl::Status FailureOf(const std::exception& error) noexcept;

// Runs `f`, which returns a status or a StatusOr. An exception of it becomes its FailureOf.
template <class F>
auto Guarded(const F& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::exception& error) {
    return FailureOf(error);
  }
}

// Repeats `f` every millisecond until it does not throw std::bad_alloc; other requests free memory
// meanwhile. For what must not be lost. REQUIRES: `f` changes nothing when it throws.
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
