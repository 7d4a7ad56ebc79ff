// The devices of a process.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu.h"

namespace attnd {

// The processor first: it serves requests that name no device. Errors: NewCpuDevice.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> NewDevices(const CpuOptions& cpu);

}  // namespace attnd
