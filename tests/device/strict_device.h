// A device as unlike the host as can be: code that works only because the CPU shares the host's
// memory fails on it.
//
// Its memory is inaccessible except while the device itself works: any other access is a SIGSEGV.
// It is asynchronous: every stream has a thread, on which launches and copies run in the order of
// the calls, and not before a thread waits; until then sources, arguments and freed buffers must
// hold. It fails where a view of a launch or a copy does not lie in one block of its memory, keeps
// patterns as copies of its own, and declines what ops can compose (StrictOptions). The numbers are
// those of the CPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu.h"
#include "tests/plain/declining_device.h"

namespace attnd::testing {

struct StrictOptions {
  CpuOptions cpu;
  LaunchSet declined = ComposedLaunches();
  // Its memory is accessible at any time, as that of an asynchronous device that shares the host's.
  bool has_host_memory = false;
  int64_t memory_bytes = 0;  // DeviceInfo::memory_bytes
  int64_t most_bytes = 0;    // that it really has; 0: as many as are asked for
  int64_t fails_at = 0;      // the launch, from 1 on, at which it fails for good; 0: none
};

absl::StatusOr<std::unique_ptr<Device>> NewStrictDevice(const StrictOptions& options);

}  // namespace attnd::testing
