#include "kernels/cuda/along/layer_norm.cuh"

#include "kernels/cuda/along/cut_lines.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

constexpr double kFlops = 40;  // of an element: operations of float64 count four times

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const LayerNormArgs& args) {
  CutLines lines;
  for (const LayerNormProblem& p : args.problems) {
    lines.Add(LinesOf({p.x, p.y, p.rstd, {}}, p.x.shape.rank - 1, Lines::kDenseChunk,
                      /*dense_only=*/true),
              SizeOf(p.x.dtype), SizeOf(p.y.dtype));
  }
  const auto scratch = lines.TakeParts<Moments>(stream);
  if (scratch == nullptr) return NoMemory(stream);
  auto* parts = static_cast<Moments*>(scratch->data());
  const Cuda& cuda = CudaOf(device);
  DeviceStatus first = ForEachRowKind([&](auto kind) {
    CutList& list = lines.of(kind);
    return LaunchOver(device, stream,
                      {.threads = Lines::kThreads,
                       .shared_bytes = kNormShared,
                       .seconds = list.AllSeconds(cuda, kFlops)},
                      LayerNorm<HeldFours(kind)>, list.all, args.eps, parts);
  });
  if (!first.ok()) return first;
  DeviceStatus merged = LaunchOver(
      device, stream,
      {.threads = Lines::kThreads, .seconds = lines.MergedSeconds(cuda, sizeof(Moments))},
      MergeLayerNorm, lines.merged, args.eps, parts);
  if (!merged.ok()) return merged;
  CutList& list = lines.of(LineKind::kRows);
  return LaunchOver(device, stream,
                    {.threads = Lines::kThreads, .seconds = list.CutSeconds(cuda, kFlops)},
                    WriteLayerNorm, list.cut, parts);
}

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const LayerNormGradArgs& args) {
  CutLines lines;
  for (const LayerNormGradProblem& p : args.problems) {
    lines.Add(LinesOf({p.y, p.dy, p.dx, p.rstd}, p.y.shape.rank - 1, Lines::kDenseChunk,
                      /*dense_only=*/true),
              SizeOf(p.y.dtype) + SizeOf(p.dy.dtype), SizeOf(p.dx.dtype));
  }
  const auto scratch = lines.TakeParts<Part>(stream);
  if (scratch == nullptr) return NoMemory(stream);
  auto* parts = static_cast<Part*>(scratch->data());
  const Cuda& cuda = CudaOf(device);
  DeviceStatus first = ForEachRowKind([&](auto kind) {
    CutList& list = lines.of(kind);
    return LaunchOver(device, stream,
                      {.threads = Lines::kThreads,
                       .shared_bytes = kNormShared,
                       .seconds = list.AllSeconds(cuda, kFlops)},
                      LayerNormGrad<HeldFours(kind)>, list.all, parts);
  });
  if (!first.ok()) return first;
  DeviceStatus merged =
      LaunchOver(device, stream,
                 {.threads = Lines::kThreads, .seconds = lines.MergedSeconds(cuda, sizeof(Part))},
                 MergeLayerNormGrad, lines.merged, parts);
  if (!merged.ok()) return merged;
  CutList& list = lines.of(LineKind::kRows);
  return LaunchOver(device, stream,
                    {.threads = Lines::kThreads, .seconds = list.CutSeconds(cuda, kFlops)},
                    WriteLayerNormGrad, list.cut, parts);
}

}  // namespace attnd::cuda
