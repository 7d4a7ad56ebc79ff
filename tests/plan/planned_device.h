// The device that plans are made for: of the processor, or of what a program links in its place.
#pragma once

#include <memory>

#include "kernels/device/device.h"

namespace attnd::testing {

std::unique_ptr<Device> NewPlannedDevice();
// The most that a plan for it may allocate in all, beside what the steps of PlanWork do.
extern const int64_t kMostAllocatedBytes;

}  // namespace attnd::testing
