// A device as unlike the host as can be: code that works only because the CPU shares the host's
// memory fails on it.
//
// Its memory is inaccessible except while the device itself works: any other access is a SIGSEGV.
// It is asynchronous: every stream has a thread, on which launches and copies run in the order of
// asking, and not before somebody waits; until then sources, arguments and freed buffers must hold.
// It fails where a view of a launch or a copy does not lie in one block of its memory, keeps
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
  // All but scan, whose composition takes more memory in a batch than the plans of its problems say
  // together, and whose kExp is less exact than the harness demands (declined_scan_test.cc holds it
  // to 1e-4).
  LaunchSet declined = ComposedLaunches() & ~SetOf<ScanArgs, ScanGradArgs>();
  // As an asynchronous device has it that shares memory with the host: accessible at any time.
  bool has_host_memory = false;
};

absl::StatusOr<std::unique_ptr<Device>> NewStrictDevice(const StrictOptions& options);

}  // namespace attnd::testing
