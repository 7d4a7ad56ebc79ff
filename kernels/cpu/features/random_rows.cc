// random_features on the CPU: an item takes some rows from their products, which stay in cache, to
// features or to the gradient.
#include "kernels/cpu/features/feature_item.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/run_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/features/random_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/element/element-inl.h"
#include "kernels/cpu/features/random_rows-inl.h"
#include "kernels/cpu/matmul/matmul_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// One panel of w [m,D], whose rows are `row` floats apart, for x w^T or for products with w.
void PackPanel(const float* w, int64_t row, int64_t m, int64_t D, bool by_direction, int64_t panel,
               float* to) {
  const int64_t n = panel * kPanel;
  if (!by_direction) {
    const char* from = reinterpret_cast<const char*>(w + n);
    return PackRows({from, DType::kF32, row, 1}, m, std::min(kPanel, D - n), to + n * m);
  }
  const char* from = reinterpret_cast<const char*>(w + n * row);
  const int64_t count = std::min(kPanel, m - n);
  PackTransposed({from, DType::kF32, 1, row}, D, count, to + n * D, /*wide=*/nullptr);
  for (int64_t k = 0; k < D && count < kPanel; ++k) {
    std::fill_n(to + n * D + k * kPanel + count, kPanel - count, 0.0f);
  }
}

// c [M,N] = a [M,K] times packed panels; steps of K as in matmul.
void Product(int64_t M, int64_t N, int64_t K, Broadcast a, const float* panels, MutableRows c) {
  for (int64_t k = 0; k < K && !CheckPoint(); k += MatMulTiling::kStep) {
    const int64_t count = std::min(MatMulTiling::kStep, K - k);
    for (int64_t n = 0; n < N; n += kPanel) {
      const int64_t columns = RoundUp(std::min(kPanel, N - n), kLanes);
      const Rows b = {panels + n * K + k * kPanel, kPanel};
      const MutableRows to = {c.data + n, c.stride};
      if (k == 0) {
        Gemm<Start::kZero>(M, columns, count, a.From(k), b, to);
      } else {
        Gemm<Start::kAddLast>(M, columns, count, a.From(k), b, to);
      }
    }
  }
}

class RandomRows {
 public:
  explicit RandomRows(const FeatureItem& item)
      : item_(item),
        problem_(*item.problem),
        o_(*item.params),
        layout_(problem_.x.shape, problem_.w.shape),
        count_(item.end - item.begin),
        D_(problem_.x.shape[3]),
        m_(problem_.w.shape[2]),
        factor_(static_cast<float>(o_.factor)),
        eps_(static_cast<float>(o_.eps)),
        streams_(Streams(problem_.phi, m_)),
        x_(item.scratch + layout_.x()),
        u_(item.scratch + layout_.u()),
        dx_(item.scratch + layout_.dx()),
        half_(item.scratch + layout_.half()) {}

  // The largest s of the rows.
  float Forward() {
    LoadX();
    Project();
    float largest = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < count_; ++i) {
      const float s = ForwardRow(i);
      if (!(s <= largest)) largest = std::isnan(largest) ? largest : s;
    }
    if (streams_) hwy::FlushStream();
    return largest;
  }

  // From features relative to each row's own s to those relative to the s that all rows share.
  void Share() {
    const float all = *At(problem_.shift, 0);
    for (int64_t i = 0; i < count_; ++i) {
      const float factor = factor_ * std::exp(item_.row_shift[item_.begin + i] - all);
      ScaleRow(factor, factor_ * eps_, problem_.phi.shape[3], At(problem_.phi, item_.begin + i));
    }
  }

  void Backward() {
    if (LoadsX()) LoadX();
    if (NeedsProducts(o_)) Project();
    float sums[FeatureLayout::kMostRows];
    for (int64_t i = 0; i < count_; ++i) sums[i] = BackwardRow(i);
    Product(count_, D_, m_, {u_, layout_.u_pitch, 1}, item_.by_column, {dx_, layout_.x_pitch});
    const View& dx = item_.grad->dx;
    for (int64_t i = 0; i < count_; ++i) {
      float* const row = dx_ + i * layout_.x_pitch;
      // Features have a factor e^h, or e^-h.
      if (HasShift(o_.feature)) {
        const float sum = o_.feature == RandomFeature::kCosSin ? sums[i] : -sums[i];
        AddRow(sum, X(i), RoundUp(D_, kLanes), row);
      }
      Narrow(dx.dtype, row, D_, RowOf(dx, item_.begin + i), static_cast<float>(o_.alpha));
    }
  }

 private:
  // Whether a gradient needs rows of x.
  bool LoadsX() const { return NeedsProducts(o_) || HasShift(o_.feature); }
  // Whether features go to memory past the caches: those of many heads leave them before they are
  // read, and their lines would be fetched only to be overwritten.
  static bool Streams(const View& phi, int64_t m) {
    constexpr int64_t kCachedBytes = 24 << 20, kLineBytes = 64;
    const auto address = reinterpret_cast<uintptr_t>(phi.data);
    return address % kLineBytes == 0 && m * static_cast<int64_t>(sizeof(float)) % kLineBytes == 0 &&
           phi.bytes() > kCachedBytes;
  }
  char* RowOf(const View& view, int64_t n) const {
    const int64_t offset = item_.b * view.stride[0] + item_.h * view.stride[1] + n * view.stride[2];
    return view.As<char>() + offset * SizeOf(view.dtype);
  }
  float* At(const View& view, int64_t n) const { return reinterpret_cast<float*>(RowOf(view, n)); }
  float* X(int64_t i) const { return x_ + i * layout_.x_pitch; }
  float* U(int64_t i) const { return u_ + i * layout_.u_pitch; }

  void LoadX() {
    for (int64_t i = 0; i < count_; ++i) {
      Widen(problem_.x.dtype, RowOf(problem_.x, item_.begin + i), D_, X(i),
            static_cast<float>(o_.alpha));
      std::fill(X(i) + D_, X(i) + RoundUp(D_, kLanes), 0.0f);
    }
  }

  void Project() {
    Product(count_, m_, D_, {x_, layout_.x_pitch, 1}, item_.by_direction, {u_, layout_.u_pitch});
    for (int64_t i = 0; i < count_; ++i) FillRow(m_, U(i));
  }

  float HalfSquareOf(int64_t i) const { return HalfSquare(X(i), RoundUp(D_, kLanes)); }

  // Features of row i, with a shared s before factor and eps. Returns its own s.
  float ForwardRow(int64_t i) {
    const FeatureOut phi = {At(problem_.phi, item_.begin + i), streams_};
    float* const u = U(i);
    const float factor = o_.shares_shift ? 1.0f : factor_, eps = o_.shares_shift ? 0.0f : eps_;
    const bool is_relu = o_.map == ElementOp::kRelu;
    float s = 0;
    switch (o_.feature) {
      case RandomFeature::kExp:
      case RandomFeature::kCosh: {
        const bool has_signs = o_.feature == RandomFeature::kCosh;
        const float h = HalfSquareOf(i);
        s = LargestOf(u, m_, has_signs);
        Exponentials(u, m_, /*is_negative=*/false, s, h, factor, eps, phi);
        if (has_signs) Exponentials(u, m_, /*is_negative=*/true, s, h, factor, eps, phi.From(m_));
        break;
      }
      case RandomFeature::kCosSin:
        s = HalfSquareOf(i);
        Waves(u, m_, factor, phi.From(m_), phi);
        break;
      case RandomFeature::kSinCos:
        Waves(u, m_, factor, phi, phi.From(m_));
        return s;
      case RandomFeature::kMapped:
        if (is_relu) {
          Relus(u, m_, factor, eps, phi);
        } else {
          ElementForward({.op = o_.map}, {.in = {u}, .out = u, .n = m_});
          Mapped(u, m_, factor, eps, phi);
        }
        return s;
    }
    if (o_.shares_shift) {
      item_.row_shift[item_.begin + i] = s;
    } else {
      *At(problem_.shift, item_.begin + i) = s;
    }
    return s;
  }

  float ShiftOf(int64_t i) const {
    return *At(problem_.shift, o_.shares_shift ? 0 : item_.begin + i);
  }

  // Half `part` of a row of features as whole vectors: where it lies, or in slot `slot` of scratch.
  const float* Half(const View& view, int64_t i, int64_t part, int64_t slot) const {
    const char* from = RowOf(view, item_.begin + i) + part * m_ * SizeOf(view.dtype);
    if (view.dtype == DType::kF32 && m_ % kLanes == 0) {
      return reinterpret_cast<const float*>(from);
    }
    float* const to = half_ + slot * layout_.u_pitch;
    Widen(view.dtype, from, m_, to);
    std::fill(to + m_, to + RoundUp(m_, kLanes), 0.0f);
    return to;
  }

  float BackwardRow(int64_t i) {
    const View& dphi = item_.grad->dphi;
    const float* const first = Half(dphi, i, 0, 0);
    if (o_.feature == RandomFeature::kExp && !NeedsProducts(o_)) {
      return PowersGrad(first, nullptr, Half(problem_.phi, i, 0, 2), nullptr, m_, U(i));
    }
    if (o_.feature == RandomFeature::kExp) {
      return ExponentialsGrad(first, nullptr, m_, ShiftOf(i), HalfSquareOf(i), factor_, U(i));
    }
    if (o_.feature == RandomFeature::kMapped) {
      if (!NeedsProducts(o_)) {
        RelusGrad(first, Half(problem_.phi, i, 0, 2), m_, factor_, U(i));
        return 0;
      }
      ElementDerivative({.op = o_.map, .derivative = true},
                        {.in = {first, U(i)}, .out = U(i), .n = m_});
      ScaleRow(factor_, 0, m_, U(i));
      return 0;
    }
    const float* const second = Half(dphi, i, 1, 1);
    if (o_.feature == RandomFeature::kCosh && NeedsProducts(o_)) {
      return ExponentialsGrad(first, second, m_, ShiftOf(i), HalfSquareOf(i), factor_, U(i));
    }
    const float *const phi_1 = Half(problem_.phi, i, 0, 2), *const phi_2 =
                                                                Half(problem_.phi, i, 1, 3);
    if (o_.feature == RandomFeature::kCosh) {
      return PowersGrad(first, second, phi_1, phi_2, m_, U(i));
    }
    if (o_.feature == RandomFeature::kCosSin)
      return WavesGrad(second, first, phi_2, phi_1, m_, U(i));
    return WavesGrad(first, second, phi_1, phi_2, m_, U(i));
  }

  const FeatureItem& item_;
  const RandomFeaturesProblem& problem_;
  const RandomFeaturesParams& o_;
  const FeatureLayout layout_;
  const int64_t count_, D_, m_;
  const float factor_, eps_;
  const bool streams_;
  float *const x_, *const u_, *const dx_, *const half_;
};

float FeaturesForward(const FeatureItem& item) { return RandomRows(item).Forward(); }
void FeaturesShare(const FeatureItem& item) { RandomRows(item).Share(); }
void FeaturesBackward(const FeatureItem& item) { RandomRows(item).Backward(); }

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

FeatureKernels FeatureKernelsOf(Isa isa) {
  return {.panel = 4 * (isa == Isa::kAvx512 ? 16
                        : isa == Isa::kAvx2 ? 8
                                            : 4),
          .pack = Choose(isa, HWY_CHOOSE_SSE4(PackPanel), HWY_CHOOSE_AVX2(PackPanel),
                         HWY_CHOOSE_AVX3(PackPanel)),
          .forward = Choose(isa, HWY_CHOOSE_SSE4(FeaturesForward), HWY_CHOOSE_AVX2(FeaturesForward),
                            HWY_CHOOSE_AVX3(FeaturesForward)),
          .share = Choose(isa, HWY_CHOOSE_SSE4(FeaturesShare), HWY_CHOOSE_AVX2(FeaturesShare),
                          HWY_CHOOSE_AVX3(FeaturesShare)),
          .backward = Choose(isa, HWY_CHOOSE_SSE4(FeaturesBackward),
                             HWY_CHOOSE_AVX2(FeaturesBackward), HWY_CHOOSE_AVX3(FeaturesBackward))};
}

}  // namespace attnd
#endif
