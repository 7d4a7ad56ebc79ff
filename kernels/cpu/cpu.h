// The processor as a device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"

namespace attnd {

struct CpuOptions {
  int threads = 0;  // 0: one per core this process may use
  std::string isa;  // "avx512", "avx2", "sse4"; empty: the best of this machine
  // Freed memory kept for reuse; an eighth of the machine's or cgroup's memory at most.
  int64_t retain_bytes = int64_t{4} << 30;
  bool poison_memory = false;  // BufferPool
};

// Errors: FAILED_PRECONDITION when the machine lacks the instructions. Measuring the peak takes
// about 50 ms.
absl::StatusOr<std::unique_ptr<Device>> NewCpuDevice(const CpuOptions& options);

}  // namespace attnd
