// CUDA devices for the engine. Without CUDA in the build (no_cuda.cc) there is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  // Libraries that serve nothing, though they may be installed: "cuBLASLt", "cuDNN", "cuFFT"; or
  // parts of one: "cuDNN in bands", attention (not its gradient) that is not dense, and "cuDNN
  // gradients".
  std::vector<std::string> unused_libraries;
  // Gets one line when a library has failed, and own kernels serve from then on. On any thread.
  std::function<void(const std::string&)> warn;
};

struct CudaDevices {
  std::vector<std::unique_ptr<Device>> devices;  // named "cuda:0", ...
  std::vector<int> ordinals;                     // the driver's number of each
  // What a finding about each holds for: driver, model, compute capability, serial and libraries of
  // it.
  std::vector<std::string> identities;
  std::string why_not;  // one line; empty unless a device is missing
  // Of those that are missing, the names of what the driver has; "cuda": all that it may have.
  std::vector<std::string> unusable;
  bool is_built = true;  // false: the build has no CUDA
};

// A library of NVIDIA that computes part of a primitive on a device where it is installed.
struct CudaLibrary {
  std::string name;  // "cuBLASLt 13.1.0"; empty: own kernels
  std::string
      why_not;  // one line: why it is missing or has failed; empty: it is not wanted, or serves
  int64_t calls = 0;  // that it was asked for so far: products, ...
};
// By its name without a version: "cuBLASLt", which computes large products of 16-bit matrices;
// "cuDNN", which attends to large plain sequences of 16-bit numbers, and computes their gradients
// where they need not be deterministic; "cuFFT", large transforms.
// REQUIRES: a device of NewCudaDevices. Thread safe.
CudaLibrary CudaLibraryOf(const Device& device, const std::string& name);

// Thread safe. A device that is asked for and missing, a driver that is too old, or a build without
// CUDA: fewer devices, and the reason.
CudaDevices NewCudaDevices(const CudaOptions& options);

}  // namespace attnd
