// Launches of kernels over the problems of a list: one launch for the whole list, in slices of a
// few milliseconds between which a run can end.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/cuda/cuda_rates.h"
#include "kernels/cuda/simt.h"
#include "kernels/device/status.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

// The problems of a launch as its kernel gets them: const __grid_constant__ Problems<P>. P is plain
// data (views, numbers, device pointers).
template <class P>
struct Problems {
  const P* list = nullptr;        // in device memory; null: there is only `first`
  const int64_t* ends = nullptr;  // of the blocks of each problem, counted through the list
  int64_t first_block = 0;        // of this slice
  int count = 0;
  P first;
};

template <class P>
struct Place {
  const P& problem;
  int64_t block;  // of this problem, from 0 on
  int index;      // of the problem
};

// What this block works on. REQUIRES: a grid of one dimension.
template <class P>
SIMT_FN Place<P> FindPlace(const Problems<P>& problems) {
  const int64_t block = problems.first_block + blockIdx.x;
  if (problems.list == nullptr) return {problems.first, block, 0};
  int low = 0, high = problems.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (block < problems.ends[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return {problems.list[low], low == 0 ? block : block - problems.ends[low - 1], low};
}

// Of one slice: between two slices other streams get their turn, and a cancelled run ends.
constexpr double kSliceSeconds = 2e-3;

// One kernel over all blocks of a list.
struct LaunchShape {
  int threads = 256;        // of a block, at most 1024
  size_t shared_bytes = 0;  // of SharedTiles
  double seconds = 0;       // predicted, of all blocks
  // What blocks may take that usually have nothing to do: slices are cut by it where it is more.
  double most_seconds = 0;
};

// The part of a launch that does not depend on the kernel.
class SlicedLaunch {
 public:
  // On a dry stream adds the seconds, and has no slices.
  SlicedLaunch(CudaDevice& device, Stream& stream, const LaunchShape& shape, int64_t blocks);

  // Whether there is another slice: blocks [first_block(), first_block() + grid()).
  bool Next();
  int64_t first_block() const { return first_; }
  unsigned grid() const { return grid_; }
  cudaStream_t stream() const;
  // Before the first slice: lets blocks of the kernel have `bytes` of shared memory.
  cudaError_t AllowShared(const void* kernel, size_t bytes) const;
  void Launched(cudaError_t error);
  // After Next() returned false.
  DeviceStatus status() const { return status_; }

 private:
  CudaDevice& device_;
  Stream& stream_;
  const int64_t blocks_;
  int64_t slice_ = 0, first_ = 0, next_ = 0;
  unsigned grid_ = 0;
  double seconds_a_block_ = 0;
  DeviceStatus status_;
};

// Copies host data to scratch memory of the stream, `shares` bytes: of each problem what it has of
// the table, as Share counts it. Null `buffer` where there is no memory. On a dry stream, and where
// it is not used, only allocates: the plans of single problems then add up to that of their list. A
// dry stream, on which `shares` are those of all AlikeProblems, also counts what the host keeps.
struct Table {
  std::shared_ptr<Buffer> buffer;
  DeviceStatus status;
  template <class T>
  const T* As() const {
    return static_cast<const T*>(buffer->data());
  }
};
Table NewTable(Stream& stream, int64_t shares, std::span<const std::span<const std::byte>> pieces,
               bool is_used = true);

// What a problem's part of a buffer counts that its list shares (Workspace::AllocateShared).
inline int64_t Share(int64_t bytes) { return RoundUp(bytes, 64); }
template <class T>
int64_t ShareOf(int64_t count) {
  return Share(count * static_cast<int64_t>(sizeof(T)));
}

template <class T>
std::span<const std::byte> BytesOf(const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

// The list that a launch walks, in the order of its blocks. Several launches may walk one list.
template <class P>
class ProblemList {
 public:
  // Problems without blocks are left out.
  void Add(const P& problem, int64_t blocks) {
    static_assert(std::is_trivially_copyable_v<P>);
    if (blocks <= 0) return;
    problems_.push_back(problem);
    ends_.push_back(this->blocks() + blocks);
  }
  int64_t blocks() const { return ends_.empty() ? 0 : ends_.back(); }
  bool empty() const { return problems_.empty(); }

  // As the kernel gets it; the first call copies the list to the device.
  DeviceStatus Get(Stream& stream, Problems<P>* problems) {
    problems->count = static_cast<int>(problems_.size());
    if (table_.buffer == nullptr) {
      const std::span<const std::byte> pieces[] = {BytesOf(ends_), BytesOf(problems_)};
      const int64_t shares =
          stream.alike().ProblemsOf(problems->count) * Share(sizeof(P) + sizeof(int64_t));
      table_ = NewTable(stream, shares, pieces, /*is_used=*/problems_.size() > 1);
      if (!table_.status.ok()) return table_.status;
    }
    if (problems_.size() == 1) {
      problems->first = problems_[0];
      return {};
    }
    problems->ends = table_.As<int64_t>();
    problems->list = reinterpret_cast<const P*>(problems->ends + ends_.size());
    return {};
  }

 private:
  std::vector<P> problems_;
  std::vector<int64_t> ends_;
  Table table_;
};

// Runs kernel(problems, args...) over the blocks of `list`. Nothing happens where it is empty. On a
// dry stream counts memory and predicts.
template <class P, class... A>
DeviceStatus LaunchOver(CudaDevice& device, Stream& stream, const LaunchShape& shape,
                        void (*kernel)(Problems<P>, A...), ProblemList<P>& list,
                        const std::type_identity_t<A>&... args) {
  if (list.empty()) return {};
  Problems<P> problems;
  if (DeviceStatus status = list.Get(stream, &problems); !status.ok()) return status;
  SlicedLaunch launch(device, stream, shape, list.blocks());
  while (launch.Next()) {
    problems.first_block = launch.first_block();
    const auto* const entry = reinterpret_cast<const void*>(kernel);
    cudaError_t error = launch.AllowShared(entry, shape.shared_bytes);
#ifdef __CUDACC__
    if (error == cudaSuccess) {
      kernel<<<launch.grid(), shape.threads, shape.shared_bytes, launch.stream()>>>(problems,
                                                                                    args...);
      error = cudaGetLastError();
    }
#else
    if (error == cudaSuccess) {
      error = emu::Enqueue(launch.stream(),
                           {dim3(launch.grid()), dim3(shape.threads), shape.shared_bytes, entry},
                           [kernel, tuple = std::tuple<Problems<P>, A...>(problems, args...)] {
                             std::apply(kernel, tuple);
                           });
    }
#endif
    launch.Launched(error);
  }
  return launch.status();
}

// Scratch of a stream, aligned to 64, of one problem or of all those of a list, each with its
// Share; null when there is no memory (NoMemory). On a dry stream the buffer has no data.
inline std::shared_ptr<Buffer> Take(Stream& stream, int64_t bytes) {
  return stream.workspace().Allocate(bytes);
}
inline std::shared_ptr<Buffer> TakeShared(Stream& stream, int64_t shares) {
  return stream.workspace().AllocateShared(shares);
}
DeviceStatus NoMemory(Stream& stream);

inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace attnd::cuda
