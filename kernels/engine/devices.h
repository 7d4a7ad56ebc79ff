// The devices of a process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/engine/self_test.h"

namespace attnd {

struct DeviceOptions {
  enum class Kinds : uint8_t {
    kAuto,  // the processor, and every CUDA device that there is
    kCpu,
    kCuda,  // without the processor
  };
  Kinds kinds = Kinds::kCpu;
  CpuOptions cpu;
  CudaOptions cuda;
  enum class Proof : uint8_t {
    kNone,    // libraries, of which nothing is known then, are not used
    kCached,  // by an earlier process, if engine/self_test_cache.h has its result
    kFresh,
  };
  // CUDA devices pass engine/self_test.h first, which takes seconds.
  Proof proof = Proof::kCached;
  std::string cache_folder;  // for the results; empty: they are not kept
  std::string version;       // of attnd
};

struct Devices {
  std::vector<std::unique_ptr<Device>> list;  // never empty; the processor first
  // Of each of them; without rows where nothing had to be proven.
  std::vector<SelfTestReport> self_tests;
  // One line: why a device that was asked for is missing, or what of it is switched off; empty:
  // nothing is.
  std::string note;
  // CUDA devices that their driver has and that are not in the list: lost, refused, or disproven.
  std::vector<std::string> unusable;  // names; "cuda": all that the driver may have
  // One line: why a result of a self-test could not be read or kept; empty: all were.
  std::string cache_note;
};

// Errors: those of NewCpuDevice; UNAVAILABLE, in one line, with kCuda if there is no CUDA device or
// one of `cuda.devices` is missing or cannot be trusted.
absl::StatusOr<Devices> NewDevices(const DeviceOptions& options);

}  // namespace attnd
