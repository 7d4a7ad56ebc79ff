// Copies into the memory of the CPU, in parallel where that is faster.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/cpu/cpu_device.h"

namespace attnd {

// As Device::Upload.
DeviceStatus UploadToCpu(const Cpu& cpu, Stream& stream, void* destination,
                         std::span<const std::span<const std::byte>> spans);

}  // namespace attnd
