// In place of tests/plain/cpus.cc: tests of primitives for the processor run on the CUDA device.
#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "tests/cuda/on_host.h"
#include "tests/plain/cpus.h"

namespace attnd {

std::vector<std::string> AvailableIsas() { return {"cuda"}; }

Device& CpuOf(const std::string&, int) {
  static Device& device = *[] {
    CudaDevices found = NewCudaDevices({.retain_bytes = 0, .poison_memory = true});
    EXPECT_EQ(found.why_not, "");
    return new testing::OnHost(std::move(found.devices.at(0)));
  }();
  return device;
}

}  // namespace attnd
