// FeatureRows on a CUDA device: short rows in one launch, long ones in another.
#include "kernels/cuda/features/feature_rows.cuh"

#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

struct Work {
  ProblemList<FeatureRowsTask> list;
  double elements = 0, bytes = 0;
};

template <int kThreads>
DeviceStatus LaunchRows(CudaDevice& device, Stream& stream, const FeatureRowsArgs& args,
                        Work& work) {
  // Of a feature, in each of the passes.
  constexpr double kFlops = 40;
  const double passes = (args.derivative ? 2 : 1) + (args.features.norm == RowNorm::kNone ? 0 : 1);
  const LaunchShape shape = {
      .threads = kRowBlock,
      .shared_bytes = kThreads > simt::kWarp ? kRowSharedBytes : 0,
      .seconds = device.cuda().Seconds(kFlops * passes * work.elements, work.bytes)};
  return LaunchOver(
      device, stream, shape,
      args.features.nu > 0 ? FeatureRowsKernel<kThreads, true> : FeatureRowsKernel<kThreads, false>,
      work.list, args.features, args.derivative);
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const FeatureRowsArgs& args) {
  Work short_rows, long_rows;
  for (const FeatureRowsProblem& p : args.problems) {
    const int64_t D = p.x.shape[p.x.shape.rank - 1], F = args.features.Features(D);
    const int64_t rows = D == 0 ? 0 : p.x.shape.size() / D;
    Work& work = F > kLongRow ? long_rows : short_rows;
    work.list.Add({.x = p.x, .dout = p.dout, .out = p.out.As<float>(), .rows = rows, .D = D},
                  F > kLongRow ? rows : DivideUp(rows, RowThreads<simt::kWarp>::kRows));
    work.elements += static_cast<double>(rows * F);
    work.bytes += static_cast<double>(p.x.bytes() + p.dout.bytes() + p.out.bytes());
  }
  if (DeviceStatus status = LaunchRows<simt::kWarp>(device, stream, args, short_rows);
      !status.ok()) {
    return status;
  }
  return LaunchRows<kRowBlock>(device, stream, args, long_rows);
}

}  // namespace attnd::cuda
