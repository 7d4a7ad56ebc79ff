// The devices that suites run on, and how tensors get into their memory and back.
#pragma once

#include <memory>
#include <string>

#include "kernels/device/device.h"
#include "kernels/ops/tensor.h"

namespace attnd::testing {

// "plain", "cpu" or "strict", those of two threads. Fresh memory of each is NaN.
std::unique_ptr<Device> NewTestDevice(const std::string& name);

// A copy in memory of the stream's device, with the same strides. It is made at once or in the
// order of the stream; `host` may go before it is made.
Tensor ToDevice(Stream& stream, const Tensor& host);

// A copy in host memory, with the same strides. Waits for the stream.
Tensor ToHost(Stream& stream, const Tensor& on_device);

}  // namespace attnd::testing
