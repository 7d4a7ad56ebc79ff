// What a device must be able to do: one function (and its gradient where that is a kernel of its
// own) per primitive, on lists of problems. The contracts are in kernels/ops/<primitive>.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/core/stream.h"
#include "kernels/core/view.h"
#include "kernels/ops/attend.h"
#include "kernels/ops/conv1d.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/fft.h"
#include "kernels/ops/gather.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/merge.h"
#include "kernels/ops/pool.h"
#include "kernels/ops/reduce.h"
#include "kernels/ops/scan.h"

namespace attnd {

struct DeviceInfo {
  std::string name;             // "cpu" or "cuda:0": metric label, `device` field of requests
  std::string description;      // "AVX2, 2 threads": for people
  double peak_flops = 0;        // measured at start-up, float32 FLOP/s of the whole device
  double bytes_per_second = 0;  // measured at start-up, streaming read
  // Measured at start-up: writing to memory that the process does not have yet, which the system
  // clears first. 0: new memory costs no more than other.
  double new_bytes_per_second = 0;
  int64_t memory_bytes = 0;  // what may be used; 0: unknown
};

// Stateless apart from its device; thread safe. Every function runs on `stream`, takes scratch
// memory from its workspace only, adds its work to stream.work() and, on a dry stream, does no more
// than that: the very same allocations, the visible pairs and FLOPs, and the predicted seconds.
// Results do not depend on how a device cuts the work, on the other problems of the list, or on the
// run. Outputs may not overlap inputs unless a contract says so; no problem of a list reads what
// another one writes. Errors: RESOURCE_EXHAUSTED when memory ends. Arguments were checked by ops.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const DeviceInfo& info() const = 0;

  using Status = absl::Status;
  [[nodiscard]] virtual Status Attend(Stream& stream, const AttendArgs& args) = 0;
  [[nodiscard]] virtual Status AttendGrad(Stream& stream, const AttendGradArgs& args) = 0;
  [[nodiscard]] virtual Status Merge(Stream& stream, const MergeArgs& args) = 0;
  [[nodiscard]] virtual Status MergeGrad(Stream& stream, const MergeGradArgs& args) = 0;
  [[nodiscard]] virtual Status Scan(Stream& stream, const ScanArgs& args) = 0;
  [[nodiscard]] virtual Status ScanGrad(Stream& stream, const ScanGradArgs& args) = 0;
  [[nodiscard]] virtual Status MatMul(Stream& stream, const MatMulArgs& args) = 0;
  [[nodiscard]] virtual Status Elementwise(Stream& stream, const ElementwiseArgs& args) = 0;
  [[nodiscard]] virtual Status Reduce(Stream& stream, const ReduceArgs& args) = 0;
  [[nodiscard]] virtual Status Softmax(Stream& stream, const SoftmaxArgs& args) = 0;
  [[nodiscard]] virtual Status Cumulative(Stream& stream, const CumulativeArgs& args) = 0;
  [[nodiscard]] virtual Status LayerNorm(Stream& stream, const LayerNormArgs& args) = 0;
  [[nodiscard]] virtual Status Pool(Stream& stream, const PoolArgs& args) = 0;
  [[nodiscard]] virtual Status DepthwiseConv(Stream& stream, const DepthwiseConvArgs& args) = 0;
  [[nodiscard]] virtual Status DepthwiseConvGrad(Stream& stream,
                                                 const DepthwiseConvGradArgs& args) = 0;
  [[nodiscard]] virtual Status GatherRows(Stream& stream, const GatherRowsArgs& args) = 0;
  [[nodiscard]] virtual Status ScatterRows(Stream& stream, const ScatterRowsArgs& args) = 0;
  [[nodiscard]] virtual Status Sort(Stream& stream, const SortArgs& args) = 0;
  [[nodiscard]] virtual Status RealFft2(Stream& stream, const FftArgs& args) = 0;

  // Copies bytes into device memory that the caller got from a workspace of this device: payloads,
  // drawn tables. `spans` are the pieces in order, of any alignment.
  [[nodiscard]] virtual Status Upload(Stream& stream, void* destination,
                                      std::span<const std::span<const std::byte>> spans) = 0;
  // Waits for the stream and copies device memory out: what a pattern is built from. Not on a dry
  // stream.
  [[nodiscard]] virtual Status Download(Stream& stream, const void* source,
                                        std::span<std::byte> bytes) = 0;

  // Parallel launches so far; a test proves with it that a primitive launches once for a list.
  virtual int64_t launches() const { return 0; }
};

struct CpuOptions {
  int threads = 0;  // 0: one per core this process may use
  std::string isa;  // "avx512", "avx2", "sse4"; empty: the best of this machine
};

// Errors: FAILED_PRECONDITION when the machine lacks the instructions. Measuring the peak takes
// about 50 ms.
absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(const CpuOptions& options);

}  // namespace attnd
