// Exceptions of libraries as statuses; the project itself throws none.
#pragma once

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace attnd {

// Runs `work`, which gives a status or a StatusOr. An exception that ends it becomes
// RESOURCE_EXHAUSTED where memory ended, else INTERNAL with its text after `subject`.
template <class Work>
auto WithoutExceptions(absl::string_view subject, const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory left");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(subject, error.what()));
  }
}

}  // namespace attnd
