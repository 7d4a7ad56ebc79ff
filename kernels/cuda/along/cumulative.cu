#include "kernels/cuda/along/cumulative.cuh"

#include "kernels/cuda/along/cut_lines.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

using cumulative_internal::Way;

// The same elements along `axis`, the last one first.
View Turned(View view, int axis) {
  if (!view.given() || view.shape.size() == 0) return view;
  if (view.data != nullptr) {
    view.data = view.As<char>() + (view.shape[axis] - 1) * view.stride[axis] *
                                      static_cast<int64_t>(SizeOf(view.dtype));
  }
  view.stride[axis] = -view.stride[axis];
  return view;
}

// Of an element: operations of float64 count four times.
double FlopsOf(CumulativeOp op) { return op == CumulativeOp::kLogSumExp ? 600 : 40; }

template <CumulativeOp kOp>
DeviceStatus Run(CudaDevice& device, Stream& stream, const CumulativeArgs& args, CutLines& lines,
                 Seen* parts) {
  const Cuda& cuda = CudaOf(device);
  const double flops = FlopsOf(kOp);
  DeviceStatus totals = ForEachLineKind([&](auto kind) {
    CutList& list = lines.of(kind);
    return LaunchOver(device, stream,
                      {.threads = Lines::kThreads,
                       .shared_bytes = kScanShared,
                       .seconds = list.CutSeconds(cuda, flops)},
                      Cumulative<kOp, kind>, list.cut, Way{args.exclusive, false}, parts);
  });
  if (!totals.ok()) return totals;
  DeviceStatus starts =
      LaunchOver(device, stream,
                 {.threads = Lines::kThreads, .seconds = lines.MergedSeconds(cuda, sizeof(Seen))},
                 ScanParts<kOp>, lines.merged, parts);
  if (!starts.ok()) return starts;
  return ForEachLineKind([&](auto kind) {
    CutList& list = lines.of(kind);
    return LaunchOver(device, stream,
                      {.threads = Lines::kThreads,
                       .shared_bytes = kScanShared,
                       .seconds = list.AllSeconds(cuda, flops)},
                      Cumulative<kOp, kind>, list.all, Way{args.exclusive, true}, parts);
  });
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const CumulativeArgs& args) {
  CutLines lines;
  for (const CumulativeProblem& p : args.problems) {
    if (p.x.shape.size() == 0) continue;
    std::array<View, Lines::kViews> views = {p.x, p.out, p.reset, {}};
    if (args.reverse) {
      for (View& view : views) view = Turned(view, args.axis);
    }
    lines.Add(LinesOf(views, args.axis, Lines::kColumnChunk),
              SizeOf(p.x.dtype) + (p.reset.given() ? SizeOf(p.reset.dtype) : 0),
              SizeOf(p.out.dtype));
  }
  const auto scratch = lines.TakeParts<Seen>(stream);
  if (scratch == nullptr) return NoMemory(stream);
  auto* parts = static_cast<Seen*>(scratch->data());
  switch (args.op) {
    case CumulativeOp::kSum:
      return Run<CumulativeOp::kSum>(device, stream, args, lines, parts);
    case CumulativeOp::kMax:
      return Run<CumulativeOp::kMax>(device, stream, args, lines, parts);
    case CumulativeOp::kLogSumExp:
      return Run<CumulativeOp::kLogSumExp>(device, stream, args, lines, parts);
  }
  return {};
}

}  // namespace attnd::cuda
