#include "kernels/cuda/along/reduce.cuh"

#include "kernels/cuda/along/cut_lines.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

constexpr int64_t kShareParts = 4;  // each problem has a multiple of them
static_assert(kShareParts * sizeof(Part) % 64 == 0);

// Where the axis is not dense. One warp puts the chunks of a line together: they grow before it
// becomes slower than the blocks that make them.
int64_t RowsOfChunk(const View& x, int axis) {
  constexpr int64_t kMostChunks = 8192;
  return RoundUp(std::max<int64_t>(DivideUp(x.shape[axis], kMostChunks), 1), kReduceRows);
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const ReduceArgs& args) {
  ProblemList<Lines> list, cut;
  double bytes = 0, elements = 0;
  int64_t parts = 0, most_chunks = 0;
  for (const ReduceProblem& p : args.problems) {
    parts = RoundUp(parts, kShareParts);
    for (Lines lines : LinesOf({p.x, p.out, {}, {}}, args.axis, RowsOfChunk(p.x, args.axis))) {
      lines.first_part = parts;
      list.Add(lines, lines.chunk_blocks());
      if (lines.chunks == 1) continue;
      parts += lines.parts();
      most_chunks = std::max(most_chunks, lines.chunks);
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
                    {.threads = Lines::kThreads,
                     .seconds = MergeSeconds(CudaOf(device), most_chunks, part_bytes)},
                    FinishReduce, cut, args.op, static_cast<const Part*>(scratch->data()));
}

}  // namespace attnd::cuda
