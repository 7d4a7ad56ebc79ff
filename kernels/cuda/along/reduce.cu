#include "kernels/cuda/along/reduce.cuh"

#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

constexpr int64_t kShareParts = 4;  // each problem has a multiple of them
static_assert(kShareParts * sizeof(Part) % 64 == 0);

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const ReduceArgs& args) {
  ProblemList<Lines> list, cut;
  double bytes = 0, elements = 0;
  int64_t parts = 0;
  for (const ReduceProblem& p : args.problems) {
    parts = RoundUp(parts, kShareParts);
    for (Lines lines : LinesOf({p.x, p.out, {}, {}}, args.axis, kReduceRows)) {
      lines.first_part = parts;
      list.Add(lines, lines.chunk_blocks());
      if (lines.chunks == 1) continue;
      parts += lines.parts();
      cut.Add(lines, lines.warp_blocks());
    }
    bytes += static_cast<double>(p.x.bytes() + p.out.bytes());
    elements += static_cast<double>(p.x.shape.size());
  }
  const auto scratch =
      TakeShared(stream, RoundUp(parts, kShareParts) * static_cast<int64_t>(sizeof(Part)));
  if (scratch == nullptr) return NoMemory(stream);
  const double flops = elements * (args.op == ReduceOp::kLogSumExp ? 30 : 8);
  DeviceStatus status = LaunchOver(device, stream,
                                   {.threads = Lines::kThreads,
                                    .shared_bytes = kReduceShared,
                                    .seconds = CudaOf(device).Seconds(flops, bytes)},
                                   Reduce, list, args.op, static_cast<Part*>(scratch->data()));
  if (!status.ok()) return status;
  const auto part_bytes = static_cast<double>(parts * static_cast<int64_t>(sizeof(Part)));
  return LaunchOver(device, stream,
                    {.threads = Lines::kThreads, .seconds = CudaOf(device).Seconds(0, part_bytes)},
                    FinishReduce, cut, args.op, static_cast<const Part*>(scratch->data()));
}

}  // namespace attnd::cuda
