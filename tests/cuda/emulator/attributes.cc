// What the emulated devices are like.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "devices.h"

namespace emu {
namespace {

// 64 float32 lanes a processor (compute capability 8.0), two FLOPs a clock each: at speed 1 1
// GFLOP/s, about what an emulated kernel reaches.
int ClockKhz() { return machine.speed * 1'000'000 / (machine.processors * 64 * 2); }
// Two transfers a clock of 32 bits: 1 GB/s.
constexpr int kBusBits = 32, kMemoryClockKhz = 1'000'000 / (2 * kBusBits / 8);
constexpr int kStaticSharedBytes = 48 << 10, kReservedSharedBytes = 1 << 10;
constexpr int kThreadsOfProcessor = 2048, kBlocksOfProcessor = 32, kRegisters = 65536;
constexpr int kMostGridX = INT32_MAX, kMostGridYZ = 65535;

struct Attribute {
  cudaDeviceAttr which;
  int value;
};
constexpr Attribute kAttributes[] = {
    {cudaDevAttrMaxThreadsPerBlock, kThreads},
    {cudaDevAttrMaxGridDimX, kMostGridX},
    {cudaDevAttrMaxGridDimY, kMostGridYZ},
    {cudaDevAttrMaxGridDimZ, kMostGridYZ},
    {cudaDevAttrMaxSharedMemoryPerBlock, kStaticSharedBytes},
    {cudaDevAttrReservedSharedMemoryPerBlock, kReservedSharedBytes},
    {cudaDevAttrMaxRegistersPerBlock, kRegisters},
    {cudaDevAttrMaxRegistersPerMultiprocessor, kRegisters},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrGlobalMemoryBusWidth, kBusBits},
    {cudaDevAttrMaxThreadsPerMultiProcessor, kThreadsOfProcessor},
    {cudaDevAttrMaxBlocksPerMultiprocessor, kBlocksOfProcessor},
    {cudaDevAttrL2CacheSize, 1 << 20},
    {cudaDevAttrAsyncEngineCount, 2},
    {cudaDevAttrConcurrentKernels, 1},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrComputeCapabilityMajor, 8},
    {cudaDevAttrComputeCapabilityMinor, 0},
    {cudaDevAttrStreamPrioritiesSupported, 1},
    {cudaDevAttrMemoryPoolsSupported, 1},
    {cudaDevAttrIntegrated, 0},
};

cudaError_t CheckOrdinal(int device) {
  const cudaError_t error = CheckDriver();
  if (error != cudaSuccess) return error;
  return device < 0 || device >= machine.devices ? cudaErrorInvalidDevice : cudaSuccess;
}

// By device and kernel, for all threads.
struct AllowedShared {
  std::mutex mu;
  std::map<std::pair<const Device*, const void*>, int> bytes;
};
AllowedShared& Allowed() {
  static AllowedShared& allowed = *new AllowedShared;
  return allowed;
}

}  // namespace

int AllowedSharedBytes(const void* kernel) {
  if (kernel == nullptr) return machine.shared_bytes;
  AllowedShared& allowed = Allowed();
  const std::lock_guard lock(allowed.mu);
  const auto known = allowed.bytes.find({&CurrentDevice(), kernel});
  return std::min(machine.shared_bytes,
                  known == allowed.bytes.end() ? kStaticSharedBytes : known->second);
}

}  // namespace emu

using namespace emu;

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const cudaError_t error = CheckOrdinal(device); error != cudaSuccess) return Report(error);
  const Attribute of_machine[] = {
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, machine.shared_bytes},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, machine.shared_bytes + kReservedSharedBytes},
      {cudaDevAttrMultiProcessorCount, machine.processors},
      {cudaDevAttrClockRate, ClockKhz()},
      {cudaDevAttrMemoryClockRate, machine.speed * kMemoryClockKhz},
  };
  for (const Attribute& own : of_machine) {
    if (own.which != attribute) continue;
    *value = own.value;
    return cudaSuccess;
  }
  for (const Attribute& known : kAttributes) {
    if (known.which != attribute) continue;
    *value = known.value;
    return cudaSuccess;
  }
  Misuse("cudaDeviceGetAttribute: attribute %d is not emulated", attribute);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (const cudaError_t error = CheckOrdinal(device); error != cudaSuccess) return Report(error);
  std::memset(p, 0, sizeof *p);
  std::strcpy(p->name, "Emulated GPU");
  p->uuid.bytes[15] = static_cast<char>(device + 1);
  p->totalGlobalMem = static_cast<size_t>(machine.memory_bytes);
  p->sharedMemPerBlock = kStaticSharedBytes;
  p->sharedMemPerBlockOptin = static_cast<size_t>(machine.shared_bytes);
  p->sharedMemPerMultiprocessor = static_cast<size_t>(machine.shared_bytes + kReservedSharedBytes);
  p->reservedSharedMemPerBlock = kReservedSharedBytes;
  p->regsPerBlock = p->regsPerMultiprocessor = kRegisters;
  p->warpSize = 32;
  p->maxThreadsPerBlock = kThreads;
  p->maxThreadsPerMultiProcessor = kThreadsOfProcessor;
  p->maxBlocksPerMultiProcessor = kBlocksOfProcessor;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = kThreads;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = kMostGridX;
  p->maxGridSize[1] = p->maxGridSize[2] = kMostGridYZ;
  p->totalConstMem = 64 << 10;
  p->major = 8;
  p->multiProcessorCount = machine.processors;
  p->concurrentKernels = p->unifiedAddressing = 1;
  p->streamPrioritiesSupported = p->memoryPoolsSupported = 1;
  p->asyncEngineCount = 2;
  p->memoryBusWidth = kBusBits;
  p->l2CacheSize = 1 << 20;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  if (kernel == nullptr) return Report(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || value > machine.shared_bytes) return Report(cudaErrorInvalidValue);
    AllowedShared& allowed = Allowed();
    const std::lock_guard lock(allowed.mu);
    allowed.bytes[{&CurrentDevice(), kernel}] = value;
  }
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int threads, size_t shared_bytes) {
  *blocks = 0;
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  if (kernel == nullptr) return Report(cudaErrorInvalidDeviceFunction);
  if (threads <= 0) return Report(cudaErrorInvalidValue);
  if (threads > kThreads || shared_bytes > static_cast<size_t>(machine.shared_bytes))
    return cudaSuccess;
  const int by_shared =
      static_cast<int>(static_cast<size_t>(machine.shared_bytes + kReservedSharedBytes) /
                       (shared_bytes + kReservedSharedBytes));
  *blocks =
      std::min({kBlocksOfProcessor, kThreadsOfProcessor / ((threads + 31) / 32 * 32), by_shared});
  return cudaSuccess;
}
