// The CPU kernels of layer_norm: a row is read three times (mean, variance, result) and stays in L1
// or L2 between them. Bound by memory.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/along_walk.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/element_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace {

// Elements of a row that are read at a time; the sums of such pieces are added in float64.
constexpr int64_t kPiece = 512;

// A row of any dtype and stride, in pieces of float32.
class RowPieces {
 public:
  RowPieces(DType dtype, char* data, int64_t n, int64_t stride)
      : patch_{dtype, data, 1, n, 0, stride} {}

  int64_t n() const { return patch_.columns; }
  int64_t count(int64_t begin) const { return std::min(kPiece, n() - begin); }
  const float* At(int64_t begin) {
    Patch piece = patch_;
    piece.data = patch_.At(0, begin);
    piece.columns = count(begin);
    if (IsInPlace(piece)) return reinterpret_cast<const float*>(piece.data);
    if (held_ != begin) LoadPatch(piece, scratch_, kPiece);
    held_ = begin;
    return scratch_;
  }
  // Where a piece of the result may be computed, before Store.
  float* Target(int64_t begin) {
    return patch_.dtype == DType::kF32 && patch_.column_stride == 1
               ? reinterpret_cast<float*>(patch_.At(0, begin))
               : scratch_;
  }
  void Store(int64_t begin) {
    Patch piece = patch_;
    piece.data = patch_.At(0, begin);
    piece.columns = count(begin);
    if (Target(begin) == scratch_) StorePatch(scratch_, kPiece, piece);
  }

 private:
  const Patch patch_;
  int64_t held_ = -1;
  HWY_ALIGN float scratch_[kPiece];
};

// sum f(x): four vectors, then their lanes in order, then what fills no vector.
template <class F>
HWY_INLINE double SumOf(RowPieces& row, const F& f) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  double total = 0;
  for (int64_t begin = 0; begin < row.n(); begin += kPiece) {
    const float* x = row.At(begin);
    const int64_t n = row.count(begin);
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 4 * kStep <= n; i += 4 * kStep) {
      s0 = hn::Add(s0, f(hn::LoadU(d, x + i)));
      s1 = hn::Add(s1, f(hn::LoadU(d, x + i + kStep)));
      s2 = hn::Add(s2, f(hn::LoadU(d, x + i + 2 * kStep)));
      s3 = hn::Add(s3, f(hn::LoadU(d, x + i + 3 * kStep)));
    }
    for (; i + kStep <= n; i += kStep) s0 = hn::Add(s0, f(hn::LoadU(d, x + i)));
    total += hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
    for (; i < n; ++i) total += hn::GetLane(f(hn::Set(d, x[i])));
  }
  return total;
}

void NormalizeRow(RowPieces& x, RowPieces& y, double eps, float* rstd) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  const auto n = static_cast<double>(x.n());
  const float mean = static_cast<float>(SumOf(x, [](auto v) HWY_ATTR { return v; }) / n);
  const auto center = hn::Set(d, mean);
  const double squares = SumOf(x, [&](auto v) HWY_ATTR {
    const auto distance = hn::Sub(v, center);
    return hn::Mul(distance, distance);
  });
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
    RowPieces x(p.x.dtype, RowAt(p.x, i), p.x.shape[last], p.x.stride[last]);
    RowPieces y(p.y.dtype, RowAt(p.y, i), p.y.shape[last], p.y.stride[last]);
    NormalizeRow(x, y, eps, reinterpret_cast<float*>(RowAt(p.rstd, i)));
  }
}

}  // namespace
}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

absl::Status CpuLayerNorm(CpuBackend& backend, Stream& stream, const LayerNormArgs& args) {
  const Cpu& cpu = backend.cpu();
  RowItems items;
  double serial = 0;
  for (const LayerNormProblem& p : args.problems) {
    items.Add(p.rstd.shape.size(),
              AlongWalk::kItem / std::max<int64_t>(p.x.shape[p.x.shape.rank - 1], 1));
    const double bytes = static_cast<double>(p.x.bytes() + 2 * p.y.bytes());
    const double rows = static_cast<double>(p.rstd.shape.size());
    serial += std::max(bytes / (cpu.bytes_per_second / cpu.threads), 30e-9 * rows);
  }
  if (stream.is_dry()) {
    stream.work().seconds += cpu.ParallelSeconds(serial, items.count());
    return absl::OkStatus();
  }
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(NormalizeRows), HWY_CHOOSE_AVX2(NormalizeRows),
                     HWY_CHOOSE_AVX3(NormalizeRows));
  cpu.pool->ParallelFor(items.count(), cpu.Parallel(serial), [&](int64_t i, int) {
    const RowItems::Item item = items[i];
    run(args.problems[item.problem], args.eps, item.begin, item.end);
  });
  return absl::OkStatus();
}

}  // namespace attnd
#endif
