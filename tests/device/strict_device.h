// A device as unlike the host as can be: what only works because the CPU shares the host's memory
// fails on it.
//
// Its memory is inaccessible but while the device itself works: whoever else touches it gets
// SIGSEGV. It is asynchronous: launches and copies run on a thread of its own, in the order of
// asking, and not before somebody waits; until then sources, arguments and freed buffers must hold.
// It checks that every view of a launch lies in its memory, keeps patterns as copies of its own,
// and declines what ops can compose (StrictOptions). The numbers are those of the CPU.
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
  int64_t memory_bytes = 0;  // DeviceInfo::memory_bytes
};

absl::StatusOr<std::unique_ptr<Device>> NewStrictDevice(const StrictOptions& options);

}  // namespace attnd::testing
