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

// One float32 operation a lane and clock, 64 lanes a processor (compute capability 8.0), two
// FLOPs each: 1 GFLOP/s, about what an emulated kernel reaches.
constexpr int kClockKhz = 1'000'000 / (kProcessors * 64 * 2);
// Two transfers a clock of 32 bits: 1 GB/s.
constexpr int kBusBits = 32, kMemoryClockKhz = 1'000'000 / (2 * kBusBits / 8);
constexpr int kThreadsOfProcessor = 2048, kBlocksOfProcessor = 32;

}  // namespace

thread_local bool in_host_function = false;

Machine MachineFromEnvironment() {
  Machine m;
  if (const char* text = std::getenv("EMULATED_CUDA_DEVICES")) {
    m.devices = std::clamp(std::atoi(text), 0, kMostDevices);
  }
  if (const char* text = std::getenv("EMULATED_CUDA_MEMORY")) m.memory_bytes = std::atoll(text);
  if (const char* text = std::getenv("EMULATED_CUDA_DRIVER")) {
    m.has_old_driver = std::strcmp(text, "old") == 0;
  }
  if (const char* text = std::getenv("EMULATED_CUDA_FAULT")) {
    const std::string_view fault = text;
    const size_t colon = fault.find(':');
    const int64_t n = colon == fault.npos ? 0 : std::atoll(text + colon + 1);
    if (fault.starts_with("launch:")) faults.launch = n;
    if (fault.starts_with("copy:")) faults.copy = n;
    if (fault.starts_with("alloc:")) faults.alloc = n;
  }
  return m;
}

Faults faults;
Machine machine = MachineFromEnvironment();

Device& GetDevice(int index) {
  static auto& devices = *new std::array<Device, kMostDevices>;
  Device& device = devices[static_cast<size_t>(index)];
  device.index = index;
  return device;
}

Device& CurrentDevice() { return GetDevice(current); }

void ForgetErrors() {
  for (int i = 0; i < kMostDevices; ++i) GetDevice(i).error = cudaSuccess;
  faults.launch = faults.copy = faults.alloc = 0;
  last_error = cudaSuccess;
}

cudaError_t Report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
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

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return Report(CheckDriver());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (const cudaError_t error = CheckDriver(); error != cudaSuccess) return Report(error);
  if (device < 0 || device >= machine.devices) return Report(cudaErrorInvalidDevice);
  std::memset(p, 0, sizeof *p);
  std::strcpy(p->name, "Emulated GPU");
  p->totalGlobalMem = static_cast<size_t>(machine.memory_bytes);
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = kSharedBytes;
  p->sharedMemPerMultiprocessor = kSharedBytes + 1024;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = kThreads;
  p->maxThreadsPerMultiProcessor = kThreadsOfProcessor;
  p->maxBlocksPerMultiProcessor = kBlocksOfProcessor;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = INT32_MAX;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 64 << 10;
  p->major = 8;
  p->minor = 0;
  p->multiProcessorCount = kProcessors;
  p->concurrentKernels = p->unifiedAddressing = p->streamPrioritiesSupported = 1;
  p->memoryPoolsSupported = 1;
  p->asyncEngineCount = 2;
  p->memoryBusWidth = kBusBits;
  p->l2CacheSize = 1 << 20;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  if (const cudaError_t error = cudaGetDeviceProperties(&p, device); error != cudaSuccess) {
    return error;
  }
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: *value = p.maxGridSize[1]; break;
    case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[2]; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kSharedBytes; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = kSharedBytes + 1024; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrClockRate: *value = kClockKhz; break;
    case cudaDevAttrMemoryClockRate: *value = kMemoryClockKhz; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = p.memoryBusWidth; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    case cudaDevAttrAsyncEngineCount: *value = p.asyncEngineCount; break;
    case cudaDevAttrConcurrentKernels: *value = p.concurrentKernels; break;
    case cudaDevAttrUnifiedAddressing: *value = p.unifiedAddressing; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrStreamPrioritiesSupported: *value = 1; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    case cudaDevAttrIntegrated: *value = 0; break;
    default: Misuse("cudaDeviceGetAttribute: attribute %d is not emulated", attribute);
  }
  return cudaSuccess;
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

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  if (kernel == nullptr) return Report(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    return Report(value < 0 || value > kSharedBytes ? cudaErrorInvalidValue : cudaSuccess);
  }
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int threads, size_t shared_bytes) {
  *blocks = 0;
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  if (kernel == nullptr) return Report(cudaErrorInvalidDeviceFunction);
  if (threads <= 0) return Report(cudaErrorInvalidValue);
  if (threads > kThreads || shared_bytes > size_t{kSharedBytes}) return cudaSuccess;
  const int by_shared = static_cast<int>((kSharedBytes + 1024) / (shared_bytes + 1024));
  *blocks = std::min({kBlocksOfProcessor, kThreadsOfProcessor / ((threads + 31) / 32 * 32),
                      by_shared});
  return cudaSuccess;
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
