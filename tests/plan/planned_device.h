// The device that plans are made for: of the processor, or of what a program links in its place.
#pragma once

#include <memory>

#include "kernels/device/device.h"

namespace attnd::testing {

std::unique_ptr<Device> NewPlannedDevice();
// The most that a step of PlanWork may take to plan for it.
extern const double kSecondsOfStep;

}  // namespace attnd::testing
