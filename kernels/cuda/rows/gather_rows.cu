#include "kernels/cuda/rows/gather_rows.cuh"

#include <algorithm>

#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

// What an element that is looked up by its column takes, in bytes: a sector of memory.
constexpr double kPairBytes = 32;

GatherRowsOver OverOf(const GatherRowsProblem& p) {
  const int last = p.out.shape.rank - 1;
  const int64_t D = p.out.shape[last];
  GatherRowsOver over = {.views = p,
                         .rows = D == 0 ? 0 : p.out.shape.size() / D,
                         .units = D,
                         .row_blocks = 0,
                         .by = GatherBy::kElements,
                         .unit_bytes = 0,
                         .group_log2 = 0};
  if (!p.columns.given() && HasDenseRows(p.x) && HasDenseRows(p.out)) {
    if (p.x.dtype == p.out.dtype && !p.divisor.given()) {
      const int64_t bytes = D * SizeOf(p.out.dtype);
      const uint64_t all = RowAddresses(p.x) | RowAddresses(p.out) | static_cast<uint64_t>(bytes);
      over.by = GatherBy::kBytes;
      over.unit_bytes = static_cast<uint8_t>(all == 0 ? 16 : std::min<uint64_t>(all & -all, 16));
      over.units = bytes / over.unit_bytes;
    } else if (p.x.dtype != DType::kI32 && HasQuads(p.x) && HasQuads(p.out)) {
      over.by = GatherBy::kQuads;
      over.units = D / kQuad;
    }
  }
  over.group_log2 = static_cast<uint8_t>(Log2Up(over.units, 8));
  over.row_blocks = DivideUp(over.rows, kGatherMostRows >> over.group_log2);
  return over;
}

int64_t BlocksOf(const GatherRowsOver& over) {
  return over.row_blocks * DivideUp(over.units, int64_t{kGatherUnitsEach} << over.group_log2);
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const GatherRowsArgs& args) {
  ProblemList<GatherRowsOver> list;
  double bytes = 0;
  bool has_columns = false, divides = false;
  for (const GatherRowsProblem& p : args.problems) {
    const GatherRowsOver over = OverOf(p);
    list.Add(over, BlocksOf(over));
    bytes += static_cast<double>(over.rows * 8 + p.out.bytes()) +
             static_cast<double>(p.out.shape.size() * SizeOf(p.x.dtype));
    has_columns = has_columns || p.columns.given();
    divides = divides || p.divisor.given();
    if (p.columns.given()) bytes += kPairBytes * static_cast<double>(p.out.shape.size());
  }
  return LaunchOver(device, stream,
                    {.threads = kGatherThreads,
                     .shared_bytes = GatherShared(has_columns, divides),
                     .seconds = CudaOf(device).Seconds(0, bytes)},
                    GatherRowsKernel, list);
}

}  // namespace attnd::cuda
