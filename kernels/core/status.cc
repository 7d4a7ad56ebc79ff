#include "kernels/core/status.h"

#include "absl/strings/str_join.h"

namespace attnd {

absl::Status Reasons::status() const {
  if (lines_.empty()) return absl::OkStatus();
  const absl::StatusCode code =
      has_invalid_ ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kUnimplemented;
  return absl::Status(code, absl::StrJoin(lines_, "\n"));
}

}  // namespace attnd
