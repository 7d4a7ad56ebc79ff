#include "kernels/cuda/launch.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_queue.h"

namespace attnd::cuda {
namespace {

// A slice has at least so many blocks a processor: fewer would leave processors idle at its end.
constexpr int64_t kBlocksAProcessor = 8;
// But where these would take longer than this: what a processor runs at once.
constexpr double kLongSliceSeconds = 4e-3;
constexpr int64_t kLeastBlocksAProcessor = 2;
// Of shared memory, what every kernel may have without asking.
constexpr size_t kSharedForAll = size_t{48} << 10;
constexpr int64_t kMostBlocks = int64_t{1} << 30;  // of a grid

DeviceStatus Stopped() { return {DeviceStatus::Code::kStopped, "run: stopped"}; }

}  // namespace

SlicedLaunch::SlicedLaunch(CudaDevice& device, Stream& stream, const LaunchShape& shape,
                           int64_t blocks)
    : device_(device), stream_(stream), blocks_(blocks) {
  if (stream.is_dry()) {
    stream.work().seconds += shape.seconds;
    next_ = blocks;
    return;
  }
  seconds_a_block_ = std::max(shape.seconds, shape.most_seconds) / static_cast<double>(blocks);
  const auto fitting = [&](double seconds) {
    return static_cast<int64_t>(std::min(seconds / std::max(seconds_a_block_, 1e-12), 1e15));
  };
  const int64_t processors = CudaOf(device).processors;
  const int64_t least = std::clamp(fitting(kLongSliceSeconds), kLeastBlocksAProcessor * processors,
                                   kBlocksAProcessor * processors);
  const int64_t most = std::clamp(fitting(kSliceSeconds), least, kMostBlocks);
  // Of equal length: a short one at the end would leave processors idle.
  slice_ = CeilDiv(blocks, CeilDiv(blocks, most));
}

cudaStream_t SlicedLaunch::stream() const { return QueueOf(stream_).stream(); }

bool SlicedLaunch::Next() {
  if (next_ >= blocks_ || !status_.ok()) return false;
  if (stream_.stopped()) {
    status_ = Stopped();
    return false;
  }
  first_ = next_;
  next_ = std::min(blocks_, first_ + slice_);
  grid_ = static_cast<unsigned>(next_ - first_);
  // A launch learns of its error as the last one of this thread. Those that calls before it left
  // there were told by them.
  static_cast<void>(cudaGetLastError());
  return true;
}

cudaError_t SlicedLaunch::AllowShared(const void* kernel, size_t bytes) const {
  if (first_ > 0 || bytes <= kSharedForAll) return cudaSuccess;
  // Always all that a block may have: the limit is that of the kernel for all threads, of which
  // another one may be between this call and its launch.
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(CudaOf(device_).shared_bytes));
}

void SlicedLaunch::Launched(cudaError_t error) {
  if (error != cudaSuccess) {
    status_ = StatusOf(error, "launch");
    return;
  }
  QueueOf(stream_).cuda_progress().Add(seconds_a_block_ * grid_);
}

Table NewTable(Stream& stream, int64_t shares, std::span<const std::span<const std::byte>> pieces,
               bool is_used) {
  Table table{TakeShared(stream, shares), {}};
  if (table.buffer == nullptr) return {nullptr, NoMemory(stream)};
  if (stream.is_dry()) {
    stream.work().host_bytes += 2 * shares;  // here, and in a vector that grew
    return table;
  }
  if (!is_used) return table;
  CudaQueue& queue = QueueOf(stream);
  table.status = StatusOf(queue.staging().Send(table.buffer->data(), pieces, [] { return true; }),
                          "copy of a table");
  queue.cuda_progress().Add(0);
  return table;
}

DeviceStatus NoMemory(Stream& stream) {
  return {DeviceStatus::Code::kNoMemory, "cuda: no memory for " +
                                             std::to_string(stream.workspace().refused_bytes()) +
                                             " bytes of scratch"};
}

}  // namespace attnd::cuda
