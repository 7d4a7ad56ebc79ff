#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <new>
#include <utility>
#include <variant>

#include "kernels/core/run_control.h"
#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_queue.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/cufft.h"
#include "kernels/cuda/nvml.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

int Attribute(cudaDeviceAttr attribute, int ordinal) {
  int value = 0;
  static_cast<void>(cudaDeviceGetAttribute(&value, attribute, ordinal));
  return value;
}

Cuda Describe(int ordinal) {
  const int major = Attribute(cudaDevAttrComputeCapabilityMajor, ordinal);
  const int minor = Attribute(cudaDevAttrComputeCapabilityMinor, ordinal);
  const int processors = Attribute(cudaDevAttrMultiProcessorCount, ordinal);
  const double clock = 1e3 * Attribute(cudaDevAttrClockRate, ordinal);
  const double memory_clock = 1e3 * Attribute(cudaDevAttrMemoryClockRate, ordinal);
  const double bus_bytes = Attribute(cudaDevAttrGlobalMemoryBusWidth, ordinal) / 8.0;
  // Of a processor and cycle: float32 multiply-adds, and 16-bit ones of tensor cores (CUDA
  // programming guide, arithmetic instructions; Hopper's by mma.sync alone are about 0.6 of
  // wgmma's).
  const double lanes = major == 8 && minor == 0 ? 64 : 128;
  const double tensor = major >= 9 ? 1280 : major == 8 && minor == 0 ? 1024 : 512;
  return {.ordinal = ordinal,
          .processors = std::max(processors, 1),
          .shared_bytes = Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal),
          .flops = 2 * lanes * processors * clock,
          .tensor_flops = 2 * tensor * processors * clock,
          .bytes_per_second = 2 * memory_clock * bus_bytes};
}

// Of the rate by mma.sync, what libraries may reach by instructions of their own: wgmma of Hopper
// (2048 multiply-adds of a processor and cycle), tcgen05 of Blackwell (4096).
double LibraryRate(int major) { return major == 9 ? 1.6 : major == 10 ? 3.2 : 1; }

// "driver 580.65.06 for CUDA 13.0, NVIDIA H100 80GB HBM3, sm_90, 5f0c...".
std::string IdentityOf(const cudaDeviceProp& properties, const std::string& driver) {
  int cuda = 0;
  static_cast<void>(cudaDriverGetVersion(&cuda));
  std::string serial;
  for (const char byte : properties.uuid.bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    serial += kDigits[static_cast<unsigned char>(byte) >> 4];
    serial += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return "driver " + (driver.empty() ? "unknown" : driver) + " for CUDA " +
         std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10) + ", " +
         properties.name + ", sm_" + std::to_string(properties.major) +
         std::to_string(properties.minor) + ", " + serial;
}

DeviceStatus Stopped() { return {DeviceStatus::Code::kStopped, "run: stopped"}; }
DeviceStatus NoQueue() { return {DeviceStatus::Code::kFailed, "cuda: the driver gives no stream"}; }

// The driver gave none, as on a device that has failed.
bool LacksQueue(const Stream& stream) { return !stream.is_dry() && stream.queue() == nullptr; }

}  // namespace

CudaDevice::CudaDevice(const CudaDeviceOptions& options)
    : cuda_(Describe(options.ordinal)),
      declined_(options.declined),
      memory_(options.retain_bytes, options.poison_memory,
              NewCudaMemory(options.ordinal, options.memory_bytes)) {
  cudaDeviceProp properties = {};
  static_cast<void>(cudaGetDeviceProperties(&properties, options.ordinal));
  info_ = {.name = "cuda:" + std::to_string(options.ordinal),
           .description = std::string(properties.name) + ", " + std::to_string(cuda_.processors) +
                          " processors",
           .instruction_set =
               "sm_" + std::to_string(properties.major) + std::to_string(properties.minor),
           .threads = cuda_.processors,
           .peak_flops = cuda_.tensor_flops * LibraryRate(properties.major),
           .bytes_per_second = cuda_.bytes_per_second,
           .memory_bytes = options.memory_bytes,
           .has_host_memory = false};
  Open("cuBLASLt", options, &cublas_lt_);
  Open("cuFFT", options, &cufft_);
  Open("cuDNN", options, &cudnn_);
  uses_cudnn_in_bands_ = std::ranges::count(options.unused_libraries, "cuDNN in bands") == 0;
  uses_cudnn_gradients_ = std::ranges::count(options.unused_libraries, "cuDNN gradients") == 0;
  nvml_ = Nvml::Open(
      Nvml::BusIdOf(properties.pciDomainID, properties.pciBusID, properties.pciDeviceID));
  identity_ = IdentityOf(properties, nvml_ == nullptr ? "" : nvml_->DriverVersion());
  for (const OfLibrary& of : libraries_) {
    if (of.loaded == nullptr) continue;
    info_.description += ", " + of.loaded->name();
    identity_ += ", " + of.loaded->name();
  }
}

template <class L>
void CudaDevice::Open(const char* short_name, const CudaDeviceOptions& options,
                      std::unique_ptr<L>* library) {
  if (std::ranges::count(options.unused_libraries, short_name) > 0) return;
  OfLibrary& of = libraries_.emplace_back(OfLibrary{.short_name = short_name});
  *library = L::Open(
      [name = info_.name, warn = options.warn](const std::string& line) {
        if (warn) warn(name + ": " + line);
      },
      &of.why_not);
  of.loaded = library->get();
}

CudaDevice::~CudaDevice() { static_cast<void>(cudaSetDevice(cuda_.ordinal)); }

CudaLibrary CudaDevice::AboutLibrary(const std::string& name) const {
  const auto of = std::ranges::find(libraries_, name, &OfLibrary::short_name);
  if (of == libraries_.end()) return {};
  if (of->loaded == nullptr) return {.name = {}, .why_not = of->why_not};
  return {
      .name = of->loaded->name(), .why_not = of->loaded->failure(), .calls = of->loaded->calls()};
}

std::shared_ptr<WorkQueue> CudaDevice::NewQueue() {
  static_cast<void>(cudaSetDevice(cuda_.ordinal));
  std::unique_ptr<QueueResources> resources;
  {
    const MutexLock lock(&mu_);
    if (!idle_.empty()) {
      resources = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (resources == nullptr) resources = QueueResources::New(cuda_.ordinal, &copied_);
  if (resources == nullptr) return nullptr;
  return std::make_shared<CudaQueue>(this, std::move(resources));
}

void CudaDevice::GiveBack(std::unique_ptr<QueueResources> resources) {
  const MutexLock lock(&mu_);
  try {
    idle_.push_back(std::move(resources));
  } catch (const std::bad_alloc&) {  // of a destructor: they end with it
  }
}

// Every call on a device reports an error from which it cannot recover.
std::string CudaDevice::failure() const {
  static_cast<void>(cudaSetDevice(cuda_.ordinal));
  size_t free = 0, total = 0;
  const cudaError_t error = cudaMemGetInfo(&free, &total);
  if (error == cudaSuccess) return {};
  return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
}

DeviceCounters CudaDevice::counters() const {
  return {.launches = launches(),
          .bytes_to_device = copied_.to_device.load(std::memory_order_relaxed),
          .bytes_to_host = copied_.to_host.load(std::memory_order_relaxed)};
}

const Cuda& CudaOf(const CudaDevice& device) { return device.cuda(); }

DeviceReadings CudaDevice::readings() const {
  return nvml_ == nullptr ? DeviceReadings{} : nvml_->Read();
}

DeviceStatus CudaDevice::Run(Stream& stream, Launch launch) {
  if (std::find(declined_.begin(), declined_.end(), launch.index()) != declined_.end()) {
    return {DeviceStatus::Code::kDeclined, "cuda: switched off"};
  }
  if (stream.stopped()) return Stopped();
  if (LacksQueue(stream)) return NoQueue();
  if (!stream.is_dry()) {
    static_cast<void>(cudaSetDevice(cuda_.ordinal));
    launches_.fetch_add(1, std::memory_order_relaxed);
  }
  const RunScope scope(stream.control());
  DeviceStatus status =
      std::visit([&](const auto& args) { return RunOnCuda(*this, stream, args); }, launch);
  return status.ok() && stream.stopped() ? Stopped() : status;
}

DeviceStatus CudaDevice::Upload(Stream& stream, void* destination,
                                std::span<const std::span<const std::byte>> spans,
                                std::shared_ptr<const void>) {
  int64_t bytes = 0;
  for (const auto& span : spans) bytes += static_cast<int64_t>(span.size());
  const double seconds = Cuda::CopySeconds(bytes);
  if (stream.is_dry()) {
    stream.work().seconds += seconds;
    return {};
  }
  if (stream.stopped()) return Stopped();
  if (LacksQueue(stream)) return NoQueue();
  static_cast<void>(cudaSetDevice(cuda_.ordinal));
  CudaQueue& queue = QueueOf(stream);
  const cudaError_t error =
      queue.staging().Send(destination, spans, [&] { return !stream.stopped(); });
  queue.cuda_progress().Add(seconds);  // also of a part, where the rest found no memory
  return stream.stopped() ? Stopped() : StatusOf(error, "upload");
}

DeviceStatus CudaDevice::Download(Stream& stream, const void* source, std::span<std::byte> bytes) {
  if (stream.is_dry()) {
    stream.work().seconds += Cuda::CopySeconds(static_cast<int64_t>(bytes.size()));
    return {};
  }
  if (stream.stopped()) return Stopped();
  if (LacksQueue(stream)) return NoQueue();
  static_cast<void>(cudaSetDevice(cuda_.ordinal));
  CudaQueue& queue = QueueOf(stream);
  const cudaError_t error = queue.staging().Fetch(bytes, source, [&] { return !stream.stopped(); });
  queue.cuda_progress().Add(0);
  return stream.stopped() ? Stopped() : StatusOf(error, "download");
}

}  // namespace attnd::cuda
