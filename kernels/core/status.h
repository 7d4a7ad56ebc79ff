// Status helpers, and the list of all reasons why a request is refused.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#define ATTND_RETURN_IF_ERROR(expr)                    \
  do {                                                 \
    if (absl::Status s_ = (expr); !s_.ok()) return s_; \
  } while (0)

namespace attnd {

// Collects every reason, one line each, in the words `method: field rule, got value`.
// The code is INVALID_ARGUMENT if any reason is the caller's error, else UNIMPLEMENTED.
class Reasons {
 public:
  // `subject` opens every line, e.g. "local".
  explicit Reasons(absl::string_view subject) : subject_(subject) {}

  template <class... Args>
  void Invalid(const Args&... args) {
    lines_.push_back(absl::StrCat(subject_, ": ", args...));
    has_invalid_ = true;
  }
  // Part of the specification that this build does not serve.
  template <class... Args>
  void Unserved(const Args&... args) {
    lines_.push_back(absl::StrCat(subject_, ": ", args...));
  }

  bool empty() const { return lines_.empty(); }
  absl::Status status() const;

 private:
  std::string subject_;
  std::vector<std::string> lines_;
  bool has_invalid_ = false;
};

}  // namespace attnd
