// A device that describes itself as another one than the emulated machine usually does.
#pragma once

#include <memory>

#include "kernels/cuda/cuda.h"
#include "tests/cuda/emulator/runtime.h"
#include "tests/cuda/on_host.h"

namespace attnd::testing {

// `speed`: as emu::Machine. Over views of host memory.
inline std::unique_ptr<OnHost> NewDescribedDevice(int processors, int speed) {
  const emu::Machine before = emu::machine;
  emu::machine.processors = processors;
  emu::machine.speed = speed;
  CudaDevices found = NewCudaDevices({.retain_bytes = 0, .poison_memory = true});
  emu::machine = before;
  return std::make_unique<OnHost>(std::move(found.devices.at(0)));
}

}  // namespace attnd::testing
