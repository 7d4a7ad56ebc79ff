// A CUDA device: its memory, its streams, and what primitives need to know of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_rates.h"
#include "kernels/cuda/staging.h"
#include "kernels/device/device.h"

namespace attnd::cuda {

class CublasLt;
class Cufft;
class Cudnn;
class Library;
class Nvml;
struct QueueResources;

struct CudaDeviceOptions {
  int ordinal = 0;
  int64_t retain_bytes = 0;
  bool poison_memory = false;
  int64_t memory_bytes = 0;  // > 0
  std::vector<size_t> declined;
  std::vector<std::string> unused_libraries;
  std::function<void(const std::string&)> warn;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaDeviceOptions& options);
  ~CudaDevice() override;

  const DeviceInfo& info() const override { return info_; }
  BufferPool& memory() override { return memory_; }
  std::shared_ptr<WorkQueue> NewQueue() override;
  DeviceStatus Run(Stream& stream, Launch launch) override;
  DeviceStatus Upload(Stream& stream, void* destination,
                      std::span<const std::span<const std::byte>> spans,
                      std::shared_ptr<const void> source) override;
  DeviceStatus Download(Stream& stream, const void* source, std::span<std::byte> bytes) override;
  std::string failure() const override;
  int64_t launches() const override { return launches_.load(std::memory_order_relaxed); }
  DeviceCounters counters() const override;
  DeviceReadings readings() const override;

  const Cuda& cuda() const { return cuda_; }
  const std::string& identity() const { return identity_; }  // CudaDevices::identities
  CublasLt* cublas_lt() { return cublas_lt_.get(); }         // null: there is none
  Cufft* cufft() { return cufft_.get(); }                    // null: there is none
  Cudnn* cudnn() { return cudnn_.get(); }                    // null: there is none
  bool uses_cudnn_in_bands() const { return uses_cudnn_in_bands_; }
  bool uses_cudnn_gradients() const { return uses_cudnn_gradients_; }
  CudaLibrary AboutLibrary(const std::string& name) const;
  // Resources of a queue that has ended.
  void GiveBack(std::unique_ptr<QueueResources> resources);

 private:
  struct OfLibrary {
    std::string short_name;
    const Library* loaded = nullptr;  // null: there is none
    std::string why_not;              // one line
  };
  template <class L>
  void Open(const char* short_name, const CudaDeviceOptions& options, std::unique_ptr<L>* library);

  const Cuda cuda_;
  const std::vector<size_t> declined_;
  DeviceInfo info_;
  std::string identity_;
  std::unique_ptr<const Nvml> nvml_;  // null: there is none
  std::unique_ptr<CublasLt> cublas_lt_;
  std::unique_ptr<Cufft> cufft_;
  std::unique_ptr<Cudnn> cudnn_;
  bool uses_cudnn_in_bands_ = true, uses_cudnn_gradients_ = true;
  std::vector<OfLibrary> libraries_;  // that are used
  std::atomic<int64_t> launches_ = 0;
  CopiedBytes copied_;
  Mutex mu_;
  std::vector<std::unique_ptr<QueueResources>> idle_ ATTND_GUARDED_BY(mu_);
  BufferPool memory_;
};

}  // namespace attnd::cuda
