// The error of a run that its RunControl has ended.
#pragma once

#include "absl/status/status.h"

namespace attnd {

inline absl::Status StoppedStatus() { return absl::CancelledError("request: stopped"); }

}  // namespace attnd
