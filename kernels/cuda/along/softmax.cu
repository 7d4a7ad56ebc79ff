#include "kernels/cuda/along/softmax.cuh"

#include "kernels/cuda/primitives.h"

namespace attnd::cuda {

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const SoftmaxArgs& args) {
  constexpr double kFlops = 30;  // of an exponential and its sum
  ProblemList<Lines> list, merged, cut;
  double elements = 0, bytes = 0, cut_elements = 0, cut_bytes = 0;
  int64_t parts = 0;
  for (const SoftmaxProblem& p : args.problems) {
    if (p.x.shape.size() == 0) continue;
    const auto own_elements = static_cast<double>(p.x.shape.size());
    elements += own_elements;
    for (Lines lines : LinesOf({p.x, p.out, {}, {}}, args.axis, Lines::kColumnChunk)) {
      lines.first_part = parts;
      list.Add(lines, lines.blocks());
      if (lines.chunks == 1) {
        bytes += static_cast<double>(lines.count) * static_cast<double>(lines.n) *
                 (SizeOf(p.x.dtype) + SizeOf(p.out.dtype));
        continue;
      }
      parts += lines.parts();
      merged.Add(lines, MergeBlocks(lines));
      cut.Add(lines, lines.blocks());
      const double of_piece = static_cast<double>(lines.count) * static_cast<double>(lines.n);
      cut_elements += of_piece;
      bytes += of_piece * SizeOf(p.x.dtype);
      cut_bytes += of_piece * (SizeOf(p.x.dtype) + SizeOf(p.out.dtype));
    }
  }
  const int64_t part_bytes = parts * static_cast<int64_t>(sizeof(Part));
  const auto scratch = Take(stream, part_bytes);
  if (scratch == nullptr) return NoMemory(stream);
  auto* all_parts = static_cast<Part*>(scratch->data());
  const Cuda& cuda = device.cuda();
  DeviceStatus status = LaunchOver(device, stream,
                                   {.threads = Lines::kThreads,
                                    .shared_bytes = kSoftmaxShared,
                                    .seconds = cuda.Seconds(elements * kFlops, bytes)},
                                   Softmax, list, args.log, all_parts);
  if (!status.ok()) return status;
  DeviceStatus meeting = LaunchOver(
      device, stream,
      {.threads = Lines::kThreads, .seconds = cuda.Seconds(0, static_cast<double>(part_bytes))},
      MergeSoftmax, merged, all_parts);
  if (!meeting.ok()) return meeting;
  return LaunchOver(
      device, stream,
      {.threads = Lines::kThreads, .seconds = cuda.Seconds(cut_elements * kFlops, cut_bytes)},
      WriteSoftmax, cut, args.log, all_parts);
}

}  // namespace attnd::cuda
