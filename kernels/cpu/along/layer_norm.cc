// The CPU kernels of layer_norm: a row is read three times (mean, variance, result), for the
// gradient twice, and stays in L1 or L2 between them. Bound by memory.
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

// Calls f(v) with each element.
template <class F>
void ForEachElement(RowPieces& x, const F& f) {
  for (int64_t begin = 0; begin < x.n(); begin += kPiece) {
    const float* const from = x.At(begin);
    for (int64_t i = 0; i < x.count(begin); ++i) f(from[i]);
  }
}

struct Moments {
  float mean;
  double squares;  // sum (x - mean)^2
};
Moments WideMomentsOf(RowPieces& x) {
  double sum = 0, squares = 0;
  ForEachElement(x, [&](double v) { sum += v; });
  const double mean = sum / static_cast<double>(x.n());
  ForEachElement(x, [&](double v) { squares += (v - mean) * (v - mean); });
  return {static_cast<float>(mean), squares};
}
Moments MomentsOf(RowPieces& x) {
  const hn::ScalableTag<float> d;
  const auto sum = SumOfRow(
      x, [](auto v) HWY_ATTR { return v; }, /*filler=*/0);
  const auto mean = static_cast<float>(sum / static_cast<double>(x.n()));
  const auto center = hn::Set(d, mean);
  const double squares = SumOfRow(
      x,
      [&](auto v) HWY_ATTR {
        const auto distance = hn::Sub(v, center);
        return hn::Mul(distance, distance);
      },
      /*filler=*/mean);
  return std::isfinite(squares) ? Moments{mean, squares} : WideMomentsOf(x);
}

void NormalizeRow(RowPieces& x, RowPieces& y, double eps, float* rstd) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  const auto [mean, squares] = MomentsOf(x);
  *rstd = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(x.n()) + eps));
  const auto center = hn::Set(d, mean), scale = hn::Set(d, *rstd);
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

// The gradient of a row; y and dx are dense.
void GradientOfRow(const float* y, float rstd, RowPieces& dy, float* dx) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  const auto n = static_cast<double>(dy.n());
  double sum = 0, along = 0;
  for (int64_t begin = 0; begin < dy.n(); begin += kPiece) {
    const float *g = dy.At(begin), *of_y = y + begin;
    const int64_t count = dy.count(begin);
    auto sums = hn::Zero(d), products = hn::Zero(d), more = hn::Zero(d), others = hn::Zero(d);
    int64_t i = 0;
    for (; i + 2 * kStep <= count; i += 2 * kStep) {
      const auto a = hn::LoadU(d, g + i), b = hn::LoadU(d, g + i + kStep);
      sums = hn::Add(sums, a);
      more = hn::Add(more, b);
      products = hn::MulAdd(a, hn::LoadU(d, of_y + i), products);
      others = hn::MulAdd(b, hn::LoadU(d, of_y + i + kStep), others);
    }
    sum += hn::GetLane(hn::SumOfLanes(d, hn::Add(sums, more)));
    along += hn::GetLane(hn::SumOfLanes(d, hn::Add(products, others)));
    for (; i < count; ++i) {
      sum += g[i];
      along += static_cast<double>(g[i]) * of_y[i];
    }
  }
  const auto mean = static_cast<float>(sum / n), slope = static_cast<float>(along / n);
  const auto shift = hn::Set(d, mean), scale = hn::Set(d, slope), by = hn::Set(d, rstd);
  for (int64_t begin = 0; begin < dy.n(); begin += kPiece) {
    const float *g = dy.At(begin), *of_y = y + begin;
    const int64_t count = dy.count(begin);
    float* to = dx + begin;
    int64_t i = 0;
    for (; i + kStep <= count; i += kStep) {
      const auto centered = hn::Sub(hn::LoadU(d, g + i), shift);
      const auto rest = hn::NegMulAdd(scale, hn::LoadU(d, of_y + i), centered);
      hn::StoreU(hn::Mul(rest, by), d, to + i);
    }
    for (; i < count; ++i) to[i] = (g[i] - mean - slope * of_y[i]) * rstd;
  }
}

void GradientOfRows(const LayerNormGradProblem& p, int64_t begin, int64_t end) {
  const int last = p.y.shape.rank - 1;
  const int64_t n = p.y.shape[last];
  for (int64_t i = begin; i < end; ++i) {
    RowPieces dy(p.dy, RowOffset(p.dy, i), n, p.dy.stride[last]);
    GradientOfRow(p.y.As<float>() + i * n, p.rstd.As<float>()[i], dy, p.dx.As<float>() + i * n);
  }
}

}  // namespace
}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

namespace {

// The rows of every problem as items; returns the seconds of one thread.
double AddRows(const Cpu& cpu, const View& row, const View& rstd, int64_t bytes, RowItems* items) {
  items->Add(rstd.shape.size(),
             AlongWalk::kItem / std::max<int64_t>(row.shape[row.shape.rank - 1], 1));
  return std::max(static_cast<double>(bytes) / (cpu.bytes_per_second / cpu.threads),
                  30e-9 * static_cast<double>(rstd.shape.size()));
}

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const LayerNormArgs& args) {
  const Cpu& cpu = device.cpu();
  RowItems items;
  double serial = 0;
  for (const LayerNormProblem& p : args.problems) {
    serial += AddRows(cpu, p.x, p.rstd, p.x.bytes() + 2 * p.y.bytes(), &items);
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

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const LayerNormGradArgs& args) {
  const Cpu& cpu = device.cpu();
  RowItems items;
  double serial = 0;
  for (const LayerNormGradProblem& p : args.problems) {
    serial += AddRows(cpu, p.y, p.rstd, p.y.bytes() + p.dy.bytes() + 2 * p.dx.bytes(), &items);
  }
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(GradientOfRows), HWY_CHOOSE_AVX2(GradientOfRows),
                     HWY_CHOOSE_AVX3(GradientOfRows));
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int) {
    const RowItems::Item item = items[i];
    run(args.problems[item.problem], item.begin, item.end);
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
