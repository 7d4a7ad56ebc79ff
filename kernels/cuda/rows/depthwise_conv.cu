#include "kernels/cuda/rows/depthwise_conv.cuh"

#include <algorithm>

#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

// Of the multiply-adds alone: half of the instructions are others.
constexpr double kShareOfPeak = 0.5;
// Of four columns of the gradient's rows: a thread waits for those of x and dout.
constexpr double kQuadSeconds = 2e-6;

double FlopsOf(const View& x, int64_t w) {
  return 2 * static_cast<double>(x.shape.size()) * static_cast<double>(w) / kShareOfPeak;
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const DepthwiseConvArgs& args) {
  ProblemList<ConvOver> list;
  double flops = 0, bytes = 0;
  for (const DepthwiseConvProblem& p : args.problems) {
    const int64_t N = p.x.shape[2], D = p.x.shape[3];
    ConvOver over = {.x = p.x,
                     .weight = p.weight,
                     .out = p.out,
                     .left = args.left,
                     .flipped = args.flipped,
                     .by_quads = HasQuads(p.x) && HasQuads(p.out),
                     .group_log2 = 0,
                     .row_blocks = 0,
                     .column_blocks = 0,
                     .taps = p.weight.shape[1],
                     .shares = nullptr};
    const int64_t units = over.by_quads ? D / kQuad : D;
    over.group_log2 = static_cast<uint8_t>(Log2Up(units, 6));
    over.row_blocks = DivideUp(N, (kConvThreads >> over.group_log2) * kConvRows);
    over.column_blocks = DivideUp(units, int64_t{1} << over.group_log2);
    list.Add(over, p.x.shape[0] * p.x.shape[1] * over.row_blocks * over.column_blocks);
    flops += FlopsOf(p.x, over.taps);
    bytes += static_cast<double>(p.x.bytes() + p.out.bytes());
  }
  return LaunchOver(device, stream,
                    {.threads = kConvThreads, .seconds = CudaOf(device).Seconds(flops, bytes)},
                    DepthwiseConvKernel, list);
}

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const DepthwiseConvGradArgs& args) {
  std::vector<ConvOver> overs;
  std::vector<int64_t> firsts;
  int64_t floats = 0, shares_bytes = 0;
  double flops = 0, bytes = 0, of_block = 0;
  for (const DepthwiseConvGradProblem& p : args.problems) {
    const int64_t matrices = p.x.shape[0] * p.x.shape[1];
    ConvOver over = {.x = p.x,
                     .weight = {},
                     .out = p.dout,
                     .left = args.left,
                     .flipped = false,
                     .by_quads = HasQuads(p.x) && HasQuads(p.dout),
                     .group_log2 = static_cast<uint8_t>(Log2Up(DivideUp(p.x.shape[3], kQuad), 6)),
                     .row_blocks = 0,
                     .column_blocks = 1,
                     .taps = p.dweight.shape[1],
                     .shares = nullptr};
    over.row_blocks = DivideUp(p.x.shape[2], (kConvThreads >> over.group_log2) * kConvGradRows);
    overs.push_back(over);
    firsts.push_back(floats);
    floats += matrices * over.row_blocks * over.taps;
    shares_bytes += ShareOf<float>(matrices * over.row_blocks * over.taps);
    flops += FlopsOf(p.x, over.taps);
    bytes += static_cast<double>(p.x.bytes() + p.dout.bytes());
    const int64_t quads = DivideUp(p.x.shape[3], int64_t{kQuad} << over.group_log2);
    of_block = std::max(of_block, kQuadSeconds * static_cast<double>(quads));
  }
  const std::shared_ptr<Buffer> memory = TakeShared(stream, shares_bytes);
  if (memory == nullptr) return NoMemory(stream);
  ProblemList<ConvOver> shares;
  ProblemList<ConvTotalOver> totals;
  for (size_t i = 0; i < overs.size(); ++i) {
    const DepthwiseConvGradProblem& p = args.problems[i];
    ConvOver& over = overs[i];
    if (memory->data() != nullptr) over.shares = static_cast<float*>(memory->data()) + firsts[i];
    const int64_t H = p.x.shape[1];
    shares.Add(over, p.x.shape[0] * H * over.row_blocks * DivideUp(over.taps, kConvTaps));
    totals.Add({p.dweight, over.shares, p.x.shape[0], over.row_blocks},
               p.dweight.shape[0] * DivideUp(over.taps, simt::kWarp));
  }
  const Cuda& cuda = CudaOf(device);
  DeviceStatus status = LaunchOver(device, stream,
                                   {.threads = kConvThreads,
                                    .shared_bytes = kConvGradShared,
                                    .seconds = std::max(cuda.Seconds(flops, bytes), of_block)},
                                   ConvSharesKernel, shares);
  if (!status.ok()) return status;
  const double moved = static_cast<double>(floats) * static_cast<double>(sizeof(float));
  return LaunchOver(device, stream,
                    {.threads = kConvThreads,
                     .shared_bytes = kConvTotalShared,
                     .seconds = cuda.Seconds(0, moved)},
                    ConvTotalKernel, totals);
}

}  // namespace attnd::cuda
