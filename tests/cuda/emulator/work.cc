// What streams are asked for: launches, copies, memory in their order, host functions.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "device_memory.h"
#include "poison.h"
#include "streams.h"

namespace emu {

namespace {

cudaError_t AddLaunch(cudaStream_t stream, const LaunchShape& shape,
                      std::function<void()> thread_body) {
  cudaError_t error;
  Queue* queue = QueueFor(stream, "a launch", &error);
  if (queue == nullptr) return Report(error);
  if (&queue->device() != &CurrentDevice()) return Report(cudaErrorInvalidResourceHandle);
  const dim3 g = shape.grid, b = shape.block;
  const uint64_t threads = uint64_t{b.x} * b.y * b.z;
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > INT32_MAX || g.y > 65535 || g.z > 65535 ||
      threads == 0 || threads > kThreads || b.z > 64) {
    return Report(cudaErrorInvalidConfiguration);
  }
  if (shape.shared_bytes > static_cast<size_t>(AllowedSharedBytes(shape.kernel))) {
    return Report(cudaErrorInvalidValue);
  }
  queue->Add({.run = [shape, body = std::move(thread_body)] { RunLaunch(shape, body); },
              .fails = IsFaulty(&faults.launch)});
  return cudaSuccess;
}

}  // namespace

cudaError_t Enqueue(cudaStream_t stream, LaunchShape shape, std::function<void()> thread_body) {
  static_cast<void>(AddLaunch(stream, shape, std::move(thread_body)));
  return cudaGetLastError();
}

namespace {

// Aligned as the driver aligns it.
constexpr size_t kHostAlign = 4096;

// Pinned memory by its address.
struct HostMemory {
  std::mutex mu;
  std::map<const void*, size_t> all;
};
HostMemory& Pinned() {
  static HostMemory& memory = *new HostMemory;
  return memory;
}

cudaError_t AllocateDevice(void** data, size_t bytes) {
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (IsFaulty(&faults.alloc)) return cudaErrorMemoryAllocation;
  *data = DeviceMemory::Get().Allocate(&CurrentDevice(), bytes);
  return *data == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

bool IsCopyValid(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  DeviceMemory& memory = DeviceMemory::Get();
  const bool to_device = memory.IsDevice(to), from_device = memory.IsDevice(from);
  if (to_device && !memory.Holds(to, bytes)) return false;
  if (from_device && !memory.Holds(from, bytes)) return false;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

}  // namespace
}  // namespace emu

using namespace emu;

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  cudaError_t error;
  Queue* queue = QueueFor(stream, "cudaMemcpyAsync", &error);
  if (queue == nullptr) return Report(error);
  if (bytes == 0) return cudaSuccess;
  if (!IsCopyValid(to, from, bytes, kind)) return Report(cudaErrorInvalidValue);
  queue->Add({.run =
                  [=] {
                    std::memmove(to, from, bytes);
                    AddCounters({.copied_bytes = static_cast<int64_t>(bytes)});
                  },
              .fails = IsFaulty(&faults.copy)});
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  cudaError_t error;
  Queue* queue = QueueFor(stream, "cudaMemsetAsync", &error);
  if (queue == nullptr) return Report(error);
  if (bytes == 0) return cudaSuccess;
  if (!DeviceMemory::Get().Holds(to, bytes)) return Report(cudaErrorInvalidValue);
  queue->Add({[=] {
    std::memset(to, value, bytes);
    AddCounters({.copied_bytes = static_cast<int64_t>(bytes)});
  }});
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  cudaError_t error;
  Queue* queue = QueueFor(stream, "cudaLaunchHostFunc", &error);
  if (queue == nullptr) return Report(error);
  if (function == nullptr) return Report(cudaErrorInvalidValue);
  queue->Add({.run =
                  [=] {
                    const DeviceMemory::Scope closed(/*opens=*/false);
                    in_host_function = true;
                    function(data);
                    in_host_function = false;
                  },
              .waits = true});
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  const cudaError_t error = AllocateDevice(data, bytes);
  if (*data != nullptr) {
    const DeviceMemory::Scope open;
    DeviceMemory::Poison(*data, bytes);
  }
  return Report(error);
}

cudaError_t cudaFree(void* data) {
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  if (data == nullptr) return cudaSuccess;
  if (CurrentDevice().pending > 0) Misuse("cudaFree waits for the work of other streams");
  if (!DeviceMemory::Get().Retire(data)) return Report(cudaErrorInvalidValue);
  DeviceMemory::Get().Free(data);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream) {
  cudaError_t error;
  Queue* queue = QueueFor(stream, "cudaMallocAsync", &error);
  if (queue == nullptr) return Report(error);
  error = AllocateDevice(data, bytes);
  // What another stream wrote before this one comes to the allocation is lost.
  if (*data != nullptr) queue->Add({[p = *data, bytes] { DeviceMemory::Poison(p, bytes); }});
  return Report(error);
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  cudaError_t error;
  Queue* queue = QueueFor(stream, "cudaFreeAsync", &error);
  if (queue == nullptr) return Report(error);
  if (data == nullptr) return cudaSuccess;
  if (!DeviceMemory::Get().Retire(data)) return Report(cudaErrorInvalidValue);
  queue->Add({.run = [data] { DeviceMemory::Get().Free(data); }, .survives_loss = true});
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  *total = static_cast<size_t>(machine.memory_bytes);
  *free = *total - static_cast<size_t>(CurrentDevice().used_bytes);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned) {
  *data = nullptr;
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  if (bytes == 0) return cudaSuccess;
  if (IsFaulty(&faults.alloc)) return Report(cudaErrorMemoryAllocation);
  if (posix_memalign(data, kHostAlign, bytes) != 0) return Report(cudaErrorMemoryAllocation);
  Poison(*data, bytes);
  const std::lock_guard lock(Pinned().mu);
  Pinned().all[*data] = bytes;
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  return cudaHostAlloc(data, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* data) {
  if (const cudaError_t e = CheckContext(CurrentDevice()); e != cudaSuccess) return Report(e);
  if (data == nullptr) return cudaSuccess;
  const std::lock_guard lock(Pinned().mu);
  if (Pinned().all.erase(data) == 0) return Report(cudaErrorInvalidValue);
  std::free(data);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (const cudaError_t error = CheckDriver(); error != cudaSuccess) return Report(error);
  if (device < 0 || device >= machine.devices) return Report(cudaErrorInvalidDevice);
  *pool = reinterpret_cast<cudaMemPool_t>(&GetDevice(device));
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return Report(CheckDriver());
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return Report(CheckDriver()); }

cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind) {
  Misuse("cudaMemcpy waits for the device");
}
