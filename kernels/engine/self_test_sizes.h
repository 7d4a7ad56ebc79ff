// Primitives on sizes at which a device computes them by other kernels than those of methods on
// small problems.
#pragma once

#include "kernels/device/device.h"

namespace attnd {

// The first error.
DeviceStatus LaunchOtherSizes(Device& device, Stream& stream);

}  // namespace attnd
