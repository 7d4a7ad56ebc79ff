// Failures of devices as statuses.
#pragma once

#include "absl/status/status.h"
#include "kernels/device/status.h"

namespace attnd {

// RESOURCE_EXHAUSTED without memory, CANCELLED of a stopped run, else INTERNAL.
absl::Status StatusOf(const DeviceStatus& status);

}  // namespace attnd
