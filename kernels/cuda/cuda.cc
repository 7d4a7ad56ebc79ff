#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/cuda_device.h"

namespace attnd {
namespace {

// The first driver that runs programs of CUDA 13.
constexpr int kLeastDriver = 13000;
// Of a block. Kernels take up to 120 KiB without asking what there is; those of compute capability
// 8.0, 8.7, 9.0 and 10 have it.
constexpr int kLeastSharedBytes = 128 << 10;

std::string Version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

}  // namespace

CudaLibrary CudaLibraryOf(const Device& device, const std::string& name) {
  return static_cast<const cuda::CudaDevice&>(device).AboutLibrary(name);
}

CudaDevices NewCudaDevices(const CudaOptions& options) {
  CudaDevices result;
  int driver = 0, count = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (driver == 0) {
    result.why_not = "cuda: there is no driver on this machine";
  } else if (driver < kLeastDriver) {
    result.why_not = "cuda: the driver must support CUDA " + Version(kLeastDriver) +
                     ", got one for CUDA " + Version(driver);
    result.unusable.push_back("cuda");
  } else if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    result.why_not = "cuda: there is no device on this machine";
  } else if (error != cudaSuccess) {
    result.why_not = std::string("cuda: ") + cudaGetErrorString(error);
    result.unusable.push_back("cuda");
  }
  if (!result.why_not.empty()) return result;

  std::vector<int> wanted = options.devices;
  if (wanted.empty()) {
    for (int i = 0; i < count; ++i) wanted.push_back(i);
  }
  const auto misses = [&](const std::string& why) {
    result.why_not += (result.why_not.empty() ? "" : "; ") + why;
  };
  for (const int ordinal : wanted) {
    const std::string name = "cuda:" + std::to_string(ordinal);
    const auto is_unusable = [&](const std::string& why) {
      result.unusable.push_back(name);
      misses(name + ": " + why);
    };
    if (ordinal < 0 || ordinal >= count) {
      misses("cuda: device must be one of cuda:0 to cuda:" + std::to_string(count - 1) + ", got " +
             name);
      continue;
    }
    size_t free = 0, total = 0;
    cudaError_t failure = cudaSetDevice(ordinal);
    // A waiting thread sleeps: cores belong to lanes that compute. Where it cannot, it spins.
    if (failure == cudaSuccess &&
        cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
    }
    if (failure == cudaSuccess) failure = cudaMemGetInfo(&free, &total);
    if (failure != cudaSuccess) {
      is_unusable(cudaGetErrorString(failure));
      continue;
    }
    int shared_bytes = 0;
    static_cast<void>(
        cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal));
    if (shared_bytes < kLeastSharedBytes) {
      is_unusable("a block must have " + std::to_string(kLeastSharedBytes >> 10) +
                  " KiB of shared memory (as on A100, H100 and later), got " +
                  std::to_string(shared_bytes >> 10) + " KiB");
      continue;
    }
    const auto usable = static_cast<int64_t>(free / 10 * 9);
    const int64_t memory =
        options.memory_bytes > 0 ? std::min(options.memory_bytes, usable) : usable;
    result.ordinals.push_back(ordinal);
    auto device = std::make_unique<cuda::CudaDevice>(
        cuda::CudaDeviceOptions{.ordinal = ordinal,
                                .retain_bytes = std::min(options.retain_bytes, memory / 4),
                                .poison_memory = options.poison_memory,
                                .memory_bytes = memory,
                                .declined = options.declined,
                                .unused_libraries = options.unused_libraries,
                                .warn = options.warn});
    result.identities.push_back(device->identity());
    result.devices.push_back(std::move(device));
  }
  return result;
}

}  // namespace attnd
