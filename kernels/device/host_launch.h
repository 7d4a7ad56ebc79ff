// A launch whose views are of host memory, on a device that has memory of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/device/device.h"

namespace attnd {

// All host memory between the first and the last element of a view; views that overlap share one.
struct HostStretch {
  std::byte *begin, *end;
  std::shared_ptr<Buffer> buffer;  // its place on the device
};

// Copies the memory of all views of `launch` to the device of `stream`, each stretch into a buffer
// of its own, and makes the views point there.
DeviceStatus MoveToDevice(Stream& stream, Launch* launch, std::vector<HostStretch>* stretches);

}  // namespace attnd
