// The device that plans are made for: of the processor, or of what a program links in its place.
#pragma once

#include <memory>

#include "kernels/device/device.h"

namespace attnd::testing {

std::unique_ptr<Device> NewPlannedDevice();

}  // namespace attnd::testing
