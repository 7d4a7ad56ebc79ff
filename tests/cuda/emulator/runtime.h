// The CUDA runtime that the emulator is: it defines the functions of cuda_runtime_api.h that are
// in use, and is linked in place of libcudart.
//
// A stream runs its work when a thread waits for it (or for an event of it), on that thread, and
// not before (streams.h: or at another pace). Until then sources and destinations must hold. The
// host may not touch device memory: it is inaccessible but while work runs. What would synchronise
// the device (the null stream, cudaMemcpy, cudaDeviceSynchronize, cudaFree beside work) aborts.
// Thread safe.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "fibers.h"

namespace emu {

// What the machine looks like to the runtime. Defaults come from the environment.
struct Machine {
  int devices = 1;                          // EMULATED_CUDA_DEVICES
  int64_t memory_bytes = int64_t{8} << 30;  // of each device: EMULATED_CUDA_MEMORY
  bool has_old_driver = false;              // EMULATED_CUDA_DRIVER=old
  int shared_bytes = 227 << 10;             // of a block at most: EMULATED_CUDA_SHARED
  int processors = 2;
  int speed = 1;  // GFLOP/s and GB/s of all processors, as the device describes itself
};
Machine MachineFromEnvironment();
extern Machine machine;

// The n-th call from here on fails; 0: none does. From EMULATED_CUDA_FAULT: "launch:3", "copy:1",
// "alloc:2". A launch or copy fails when it runs, with cudaErrorIllegalAddress: from then on the
// device's context is lost, every call returns that error and work is skipped. An allocation
// returns cudaErrorMemoryAllocation, and the next one succeeds.
struct Faults {
  Faults();
  std::atomic<int64_t> launch{0}, copy{0}, alloc{0};
};
extern Faults faults;

// As if the process began anew: contexts that are lost are whole again, no fault is planned.
void ForgetErrors();

// kernel<<<...>>>(args...), which `thread_body` calls, then cudaGetLastError().
cudaError_t Enqueue(cudaStream_t stream, LaunchShape shape, std::function<void()> thread_body);

constexpr int kThreads = 1024;

}  // namespace emu
