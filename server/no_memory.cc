#include "server/no_memory.h"

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

}  // namespace attnd
