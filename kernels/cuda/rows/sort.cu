#include <algorithm>

#include "kernels/cuda/primitives.h"
#include "kernels/cuda/rows/sort.cuh"
#include "kernels/device/gather.h"

namespace attnd::cuda {
namespace {

// Below this share of the keys of long rows the first M are selected before they are sorted.
constexpr int64_t kFewest = 8;
bool IsSelection(const SortArgs& args, int64_t N, int64_t M) {
  return N > kSortTile && (args.by_index || M * kFewest <= N);
}

KeyOrder OrderOf(DType dtype, bool descending) {
  if (dtype == DType::kI32) return descending ? KeyOrder::kIntsDescending : KeyOrder::kInts;
  return descending ? KeyOrder::kFloatsDescending : KeyOrder::kFloats;
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const SortArgs& args) {
  constexpr double kSelectFlops = 800, kSelectSeconds = 3e-9;  // of a key, of one in a row
  ProblemList<SelectOver> selections;
  std::vector<KeyRows> rows;
  double keys = 0, longest = 0;
  for (const SortProblem& p : args.problems) {
    KeyRows of{.x = p.x,
               .order = OrderOf(p.x.dtype, args.descending),
               .M = p.order.shape[p.order.shape.rank - 1],
               .indices = p.order.As<int32_t>()};
    if (of.M == 0) continue;
    if (IsSelection(args, of.N(), of.M)) {
      selections.Add({p.x, of.order, of.N(), of.M, of.indices}, of.rows());
      keys += static_cast<double>(p.x.shape.size());
      longest = std::max(longest, static_cast<double>(of.N()));
      if (args.by_index) continue;
      of.is_chosen = true;
      of.chosen = of.indices;
    }
    of.by_index = args.by_index;
    rows.push_back(of);
  }
  const double seconds =
      std::max(CudaOf(device).Seconds(kSelectFlops * keys, 4 * keys), kSelectSeconds * longest);
  DeviceStatus status =
      LaunchOver(device, stream,
                 {.threads = kSelectThreads, .shared_bytes = kSelectShared, .seconds = seconds},
                 SelectKernel, selections);
  return status.ok() ? SortKeys(device, stream, rows) : status;
}

}  // namespace attnd::cuda
