// Devices, their errors, and what every call of the runtime checks first.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstdint>

#include "runtime.h"

namespace emu {

constexpr int kMostDevices = 16;

struct Device {
  std::atomic<cudaError_t> error{cudaSuccess};  // lost context: never leaves by itself
  std::atomic<int64_t> used_bytes{0};
  std::atomic<int64_t> pending{0};  // pieces of work of all streams that have not run
};
Device& GetDevice(int index);
Device& CurrentDevice();

// Keeps an error for cudaGetLastError, and returns it.
cudaError_t Report(cudaError_t error);
// Whether there is a driver and a device, and the host may call the runtime on this thread.
cudaError_t CheckDriver();
// The same, and the device's context is not lost.
cudaError_t CheckContext(const Device& device);

// Prints the message and aborts: what a program of this project must never do.
[[noreturn]] void Misuse(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Shared memory that a launch of the kernel may ask for on the current device: 48 KiB, or what
// cudaFuncSetAttribute has allowed. Null, of tests: all there is.
int AllowedSharedBytes(const void* kernel);

// Whether the call that counts `fault` down is the one to fail.
bool IsFaulty(std::atomic<int64_t>* fault);

// While a host function of a stream runs on this thread.
extern thread_local bool in_host_function;

}  // namespace emu
