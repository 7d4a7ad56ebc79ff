#include "kernels/cuda/along/softmax.cuh"

#include "kernels/cuda/along/cut_lines.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const SoftmaxArgs& args) {
  constexpr double kFlops = 30;  // of an exponential and its sum
  CutLines lines;
  for (const SoftmaxProblem& p : args.problems) {
    if (p.x.shape.size() == 0) continue;
    lines.Add(LinesOf({p.x, p.out, {}, {}}, args.axis, Lines::kColumnChunk), SizeOf(p.x.dtype),
              SizeOf(p.out.dtype));
  }
  const auto scratch = lines.TakeParts<Part>(stream);
  if (scratch == nullptr) return NoMemory(stream);
  auto* parts = static_cast<Part*>(scratch->data());
  const Cuda& cuda = CudaOf(device);
  DeviceStatus first = ForEachLineKind([&](auto kind) {
    CutList& list = lines.of(kind);
    return LaunchOver(device, stream,
                      {.threads = Lines::kThreads,
                       .shared_bytes = kSoftmaxShared,
                       .seconds = list.AllSeconds(cuda, kFlops)},
                      Softmax<kind>, list.all, args.log, parts);
  });
  if (!first.ok()) return first;
  DeviceStatus merged =
      LaunchOver(device, stream,
                 {.threads = Lines::kThreads, .seconds = lines.MergedSeconds(cuda, sizeof(Part))},
                 MergeSoftmax, lines.merged, parts);
  if (!merged.ok()) return merged;
  const auto write = [&](auto kind) {
    CutList& list = lines.of(kind);
    return LaunchOver(device, stream,
                      {.threads = Lines::kThreads, .seconds = list.CutSeconds(cuda, kFlops)},
                      WriteSoftmax<kind>, list.cut, args.log, parts);
  };
  // Short rows are not cut.
  DeviceStatus rows = write(std::integral_constant<LineKind, LineKind::kRows>());
  return rows.ok() ? write(std::integral_constant<LineKind, LineKind::kColumns>()) : rows;
}

}  // namespace attnd::cuda
