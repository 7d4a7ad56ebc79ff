// CUDA devices for the engine. Without CUDA in the build (no_cuda.cc) there is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"

namespace attnd {

struct CudaOptions {
  // Numbers of the driver; empty: all.
  std::vector<int> devices;
  // Freed device memory that is kept for reuse, and filling of fresh memory: as BufferPool.
  int64_t retain_bytes = int64_t{1} << 30;
  bool poison_memory = false;
  // Of a device's memory that buffers may take; 0: nine tenths of what is free at start.
  int64_t memory_bytes = 0;
  // Alternatives of Launch (by index) that the devices decline, so that ops composes them.
  std::vector<size_t> declined;
};

struct CudaDevices {
  std::vector<std::unique_ptr<Device>> devices;  // named "cuda:0", ...
  std::vector<int> ordinals;                     // the driver's number of each
  // What a finding about each holds for: driver, model, compute capability and serial of it.
  std::vector<std::string> identities;
  std::string why_not;   // one line; empty unless a device is missing
  bool is_built = true;  // false: the build has no CUDA
};

// Thread safe. A device that is asked for and missing, a driver that is too old, or a build without
// CUDA: fewer devices, and the reason.
CudaDevices NewCudaDevices(const CudaOptions& options);

}  // namespace attnd
