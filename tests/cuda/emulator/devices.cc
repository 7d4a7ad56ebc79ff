#include "devices.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace emu {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current = 0;

}  // namespace

thread_local bool in_host_function = false;

Machine MachineFromEnvironment() {
  Machine m;
  if (const char* text = std::getenv("EMULATED_CUDA_DEVICES")) {
    m.devices = std::clamp(std::atoi(text), 0, kMostDevices);
  }
  if (const char* text = std::getenv("EMULATED_CUDA_MEMORY")) m.memory_bytes = std::atoll(text);
  if (const char* text = std::getenv("EMULATED_CUDA_SHARED")) m.shared_bytes = std::atoi(text);
  if (const char* text = std::getenv("EMULATED_CUDA_DRIVER")) {
    m.has_old_driver = std::strcmp(text, "old") == 0;
  }
  return m;
}
Machine machine = MachineFromEnvironment();

Faults::Faults() {
  if (const char* text = std::getenv("EMULATED_CUDA_FAULT")) {
    const std::string_view fault = text;
    const size_t colon = fault.find(':');
    const int64_t n = colon == fault.npos ? 0 : std::atoll(text + colon + 1);
    if (fault.starts_with("launch:")) launch = n;
    if (fault.starts_with("copy:")) copy = n;
    if (fault.starts_with("alloc:")) alloc = n;
  }
}
Faults faults;

Device& GetDevice(int index) {
  static auto& devices = *new std::array<Device, kMostDevices>;
  return devices[static_cast<size_t>(index)];
}

Device& CurrentDevice() { return GetDevice(current); }

void ForgetErrors() {
  for (int i = 0; i < kMostDevices; ++i) GetDevice(i).error = cudaSuccess;
  faults.launch = faults.copy = faults.alloc = 0;
  last_error = cudaSuccess;
}

cudaError_t Report(cudaError_t error) {
  // "Not ready" is no error (CUDA programming guide, error checking).
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t CheckDriver() {
  if (in_host_function) return cudaErrorNotPermitted;
  if (machine.has_old_driver) return cudaErrorInsufficientDriver;
  return machine.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t CheckContext(const Device& device) {
  const cudaError_t error = CheckDriver();
  return error != cudaSuccess ? error : device.error.load();
}

void Misuse(const char* format, ...) {
  std::fputs("cuda emulator: ", stderr);
  va_list list;
  va_start(list, format);
  std::vfprintf(stderr, format, list);
  va_end(list);
  std::fputc('\n', stderr);
  std::abort();
}

bool IsFaulty(std::atomic<int64_t>* fault) {
  if (fault->load(std::memory_order_relaxed) <= 0) return false;
  return fault->fetch_sub(1) == 1;
}

}  // namespace emu

using namespace emu;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (const cudaError_t error = CheckDriver(); error != cudaSuccess) return Report(error);
  *count = machine.devices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = CheckDriver(); error != cudaSuccess) return Report(error);
  if (device < 0 || device >= machine.devices) return Report(cudaErrorInvalidDevice);
  current = device;
  return Report(GetDevice(device).error);
}

cudaError_t cudaSetDeviceFlags(unsigned) { return Report(CheckContext(CurrentDevice())); }

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return Report(CheckDriver());
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = machine.has_old_driver ? 11000 : machine.devices == 0 ? 0 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return Report(CheckContext(CurrentDevice()));
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  const cudaError_t lost = CurrentDevice().error;
  return lost != cudaSuccess ? lost : error;
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t lost = CurrentDevice().error;
  return lost != cudaSuccess ? lost : last_error;
}

cudaError_t cudaDeviceSynchronize() { Misuse("cudaDeviceSynchronize waits for other streams"); }
