// FeatureRows on a CUDA device: short rows of a map in one launch, of dpfp in another, long ones in
// a third.
#include "kernels/cuda/features/feature_rows.cuh"

#include <algorithm>

#include "kernels/cuda/features/mapped_rows.cuh"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

// Of a feature, in each of the passes; of a block or warp that works on a row, for each feature of
// a thread.
constexpr double kFlops = 40, kStepSeconds = 3e-7;

template <class P>
struct Work {
  ProblemList<P> list;
  double elements = 0, bytes = 0;
  int64_t longest = 0;  // features of a thread

  void Count(const FeatureRowsProblem& p, double features) {
    elements += features;
    bytes += static_cast<double>(p.x.bytes() + p.dout.bytes() + p.out.bytes());
  }
  double Seconds(const CudaDevice& device, const FeatureRowsArgs& args) const {
    const double passes =
        (args.derivative ? 2 : 1) + (args.features.norm == RowNorm::kNone ? 0 : 1);
    return std::max(CudaOf(device).Seconds(kFlops * passes * elements, bytes),
                    kStepSeconds * passes * static_cast<double>(longest));
  }
};

template <int kThreads, bool kDpfp>
DeviceStatus LaunchRows(CudaDevice& device, Stream& stream, const FeatureRowsArgs& args,
                        Work<FeatureRowsTask>& work) {
  const LaunchShape shape = {.threads = kRowBlock,
                             .shared_bytes = kThreads > simt::kWarp ? kRowSharedBytes : 0,
                             .seconds = work.Seconds(device, args)};
  return LaunchOver(device, stream, shape, FeatureRowsKernel<kThreads, kDpfp>, work.list,
                    args.features, args.derivative);
}

// The lines of a problem whose threads can hold its rows; none of others.
std::vector<Lines> HeldLines(const FeatureRowsProblem& p) {
  std::vector<Lines> all = LinesOf({p.x, p.out, p.dout, {}}, p.x.shape.rank - 1, Lines::kDenseChunk,
                                   /*dense_only=*/true);
  if (!all.empty() && all[0].kind() != LineKind::kShortRows) all.clear();
  return all;
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const FeatureRowsArgs& args) {
  const bool is_dpfp = args.features.nu > 0;
  Work<Lines> mapped;
  Work<FeatureRowsTask> short_rows, long_rows;
  for (const FeatureRowsProblem& p : args.problems) {
    const int64_t D = p.x.shape[p.x.shape.rank - 1], F = args.features.Features(D);
    const int64_t rows = D == 0 ? 0 : p.x.shape.size() / D;
    if (rows == 0) continue;
    const double features = static_cast<double>(rows * F);
    if (!is_dpfp) {
      const std::vector<Lines> held = HeldLines(p);
      for (const Lines& lines : held) mapped.list.Add(lines, lines.chunk_blocks());
      if (!held.empty()) {
        mapped.Count(p, features);
        continue;
      }
    }
    const bool is_long = !is_dpfp || F > kLongRow;
    Work<FeatureRowsTask>& work = is_long ? long_rows : short_rows;
    work.list.Add({.x = p.x, .dout = p.dout, .out = p.out.As<float>(), .rows = rows, .D = D},
                  is_long ? rows : DivideUp(rows, RowThreads<simt::kWarp>::kRows));
    work.Count(p, features);
    work.longest = std::max(work.longest, DivideUp(F, is_long ? kRowBlock : simt::kWarp));
  }
  DeviceStatus status =
      LaunchOver(device, stream,
                 {.threads = Lines::kThreads,
                  .shared_bytes = kMappedShared,
                  .seconds = mapped.Seconds(device, args)},
                 args.derivative ? MappedRowsKernel<true> : MappedRowsKernel<false>, mapped.list,
                 args.features);
  if (!status.ok()) return status;
  status = LaunchRows<simt::kWarp, true>(device, stream, args, short_rows);
  if (!status.ok()) return status;
  return is_dpfp ? LaunchRows<kRowBlock, true>(device, stream, args, long_rows)
                 : LaunchRows<kRowBlock, false>(device, stream, args, long_rows);
}

}  // namespace attnd::cuda
