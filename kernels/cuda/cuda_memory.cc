#include "kernels/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <atomic>

#include "kernels/cuda/cuda_queue.h"

namespace attnd::cuda {
namespace {

// The allocator of the driver works in the order of a stream. This one has a stream of its own, on
// which nothing else runs: memory is there when it returns.
class CudaMemory final : public MemorySource {
 public:
  CudaMemory(int ordinal, int64_t most) : ordinal_(ordinal), most_(most) {
    static_cast<void>(cudaSetDevice(ordinal_));
    if (cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) != cudaSuccess) {
      stream_ = nullptr;
    }
  }
  ~CudaMemory() override {
    static_cast<void>(cudaSetDevice(ordinal_));
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }

  void* Allocate(int64_t bytes) override {
    if (stream_ == nullptr) return nullptr;
    if (taken_.fetch_add(bytes) + bytes > most_) {
      taken_.fetch_sub(bytes);
      return nullptr;
    }
    static_cast<void>(cudaSetDevice(ordinal_));
    void* data = nullptr;
    if (cudaMallocAsync(&data, static_cast<size_t>(bytes), stream_) != cudaSuccess ||
        cudaStreamSynchronize(stream_) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // forgets it: the caller frees memory and asks again
      taken_.fetch_sub(bytes);
      return nullptr;
    }
    return data;
  }

  // The pool frees only what no stream uses any more.
  void Free(void* data, int64_t bytes) override {
    static_cast<void>(cudaSetDevice(ordinal_));
    static_cast<void>(cudaFreeAsync(data, stream_));
    taken_.fetch_sub(bytes);
  }

  void Fill(WorkQueue* queue, void* data, int64_t bytes, uint8_t value) override {
    static_cast<void>(cudaSetDevice(ordinal_));
    if (queue == nullptr) {
      static_cast<void>(cudaMemsetAsync(data, value, static_cast<size_t>(bytes), stream_));
      static_cast<void>(cudaStreamSynchronize(stream_));
      return;
    }
    auto* cuda_queue = static_cast<CudaQueue*>(queue);
    static_cast<void>(
        cudaMemsetAsync(data, value, static_cast<size_t>(bytes), cuda_queue->stream()));
    cuda_queue->cuda_progress().Add(0);
  }

 private:
  const int ordinal_;
  const int64_t most_;
  cudaStream_t stream_ = nullptr;
  std::atomic<int64_t> taken_ = 0;
};

}  // namespace

std::unique_ptr<MemorySource> NewCudaMemory(int ordinal, int64_t most) {
  return std::make_unique<CudaMemory>(ordinal, most);
}

}  // namespace attnd::cuda
