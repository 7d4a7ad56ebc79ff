// The CPU kernels of layer_norm: a row is read three times (mean, variance, result) and stays in L1
// or L2 between them. Bound by memory.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/along/along_walk.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/along/layer_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/along/row_pieces-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace {

void NormalizeRow(RowPieces& x, RowPieces& y, double eps, float* rstd) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  const auto n = static_cast<double>(x.n());
  const auto sum = SumOfRow(
      x, [](auto v) HWY_ATTR { return v; }, /*filler=*/0);
  const auto mean = static_cast<float>(sum / n);
  const auto center = hn::Set(d, mean);
  const double squares = SumOfRow(
      x,
      [&](auto v) HWY_ATTR {
        const auto distance = hn::Sub(v, center);
        return hn::Mul(distance, distance);
      },
      /*filler=*/mean);
  *rstd = static_cast<float>(1 / std::sqrt(squares / n + eps));
  const auto scale = hn::Set(d, *rstd);
  for (int64_t begin = 0; begin < x.n(); begin += kPiece) {
    const float* from = x.At(begin);
    float* to = y.Target(begin);
    const int64_t count = x.count(begin);
    int64_t i = 0;
    for (; i + kStep <= count; i += kStep) {
      hn::StoreU(hn::Mul(hn::Sub(hn::LoadU(d, from + i), center), scale), d, to + i);
    }
    for (; i < count; ++i) to[i] = (from[i] - mean) * *rstd;
    y.Store(begin);
  }
}

void NormalizeRows(const LayerNormProblem& p, double eps, int64_t begin, int64_t end) {
  const int last = p.x.shape.rank - 1;
  for (int64_t i = begin; i < end; ++i) {
    RowPieces x(p.x, RowOffset(p.x, i), p.x.shape[last], p.x.stride[last]);
    RowPieces y(p.y, RowOffset(p.y, i), p.y.shape[last], p.y.stride[last]);
    NormalizeRow(x, y, eps, p.rstd.As<float>() + RowOffset(p.rstd, i));
  }
}

}  // namespace
}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const LayerNormArgs& args) {
  const Cpu& cpu = device.cpu();
  RowItems items;
  double serial = 0;
  for (const LayerNormProblem& p : args.problems) {
    items.Add(p.rstd.shape.size(),
              AlongWalk::kItem / std::max<int64_t>(p.x.shape[p.x.shape.rank - 1], 1));
    const double bytes = static_cast<double>(p.x.bytes() + 2 * p.y.bytes());
    const double rows = static_cast<double>(p.rstd.shape.size());
    serial += std::max(bytes / (cpu.bytes_per_second / cpu.threads), 30e-9 * rows);
  }
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(NormalizeRows), HWY_CHOOSE_AVX2(NormalizeRows),
                     HWY_CHOOSE_AVX3(NormalizeRows));
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int) {
    const RowItems::Item item = items[i];
    run(args.problems[item.problem], args.eps, item.begin, item.end);
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
