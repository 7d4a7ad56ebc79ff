// Rows of any dtype and stride as pieces of float32, and what is reduced along them.
#if defined(ATTND_CPU_ROW_PIECES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ROW_PIECES_INL_H_
#undef ATTND_CPU_ROW_PIECES_INL_H_
#else
#define ATTND_CPU_ROW_PIECES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/element/element_tile-inl.h"
#include "kernels/cpu/simd/feature_map-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Elements of a row that are read at a time.
constexpr int64_t kPiece = 512;

// A row of any dtype and stride, in pieces of float32.
class RowPieces {
 public:
  RowPieces(const View& view, int64_t offset, int64_t n, int64_t stride)
      : patch_{view.dtype, view.As<char>() + offset * SizeOf(view.dtype), 1, n, 0, stride} {}

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

constexpr float kLeast = -std::numeric_limits<float>::infinity();

// merge(.. merge(acc, f(x)) ..) by four vectors of a piece, in a fixed order; what fills no vector
// is padded with `filler`. `acc` holds what comes out, a vector.
template <class V, class F, class Merge>
HWY_INLINE V FoldPiece(const float* x, int64_t n, float filler, V acc, const F& f,
                       const Merge& merge) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  int64_t i = 0;
  if (n >= 4 * kStep) {
    V s0 = acc, s1 = f(hn::LoadU(d, x + kStep)), s2 = f(hn::LoadU(d, x + 2 * kStep)),
      s3 = f(hn::LoadU(d, x + 3 * kStep));
    s0 = merge(s0, f(hn::LoadU(d, x)));
    for (i = 4 * kStep; i + 4 * kStep <= n; i += 4 * kStep) {
      s0 = merge(s0, f(hn::LoadU(d, x + i)));
      s1 = merge(s1, f(hn::LoadU(d, x + i + kStep)));
      s2 = merge(s2, f(hn::LoadU(d, x + i + 2 * kStep)));
      s3 = merge(s3, f(hn::LoadU(d, x + i + 3 * kStep)));
    }
    acc = merge(merge(s0, s1), merge(s2, s3));
  }
  for (; i + kStep <= n; i += kStep) acc = merge(acc, f(hn::LoadU(d, x + i)));
  if (i == n) return acc;
  float rest[kStep];
  std::fill(rest, rest + kStep, filler);
  std::memcpy(rest, x + i, static_cast<size_t>(n - i) * sizeof(float));
  return merge(acc, f(hn::LoadU(d, rest)));
}

// sum f(x), f(filler) being 0. Pieces are added in float64.
template <class F>
HWY_INLINE double SumOfRow(RowPieces& row, const F& f, float filler) {
  const hn::ScalableTag<float> d;
  double total = 0;
  for (int64_t begin = 0; begin < row.n(); begin += kPiece) {
    const auto sum = FoldPiece(row.At(begin), row.count(begin), filler, hn::Zero(d), f,
                               [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
    total += hn::GetLane(hn::SumOfLanes(d, sum));
  }
  return total;
}

// NaN if there is one.
HWY_INLINE float MaxOfRow(RowPieces& row) {
  const hn::ScalableTag<float> d;
  auto most = hn::Set(d, kLeast);
  for (int64_t begin = 0; begin < row.n(); begin += kPiece) {
    most = FoldPiece(
        row.At(begin), row.count(begin), kLeast, most, [](auto x) HWY_ATTR { return x; },
        [](auto a, auto b)
            HWY_ATTR { return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a); });
  }
  if (!hn::AllFalse(d, hn::IsNaN(most))) return std::numeric_limits<float>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// sum e^(x - most), 0 where all are -inf.
HWY_INLINE float ExpSumOfRow(RowPieces& row, float most) {
  const hn::ScalableTag<float> d;
  const auto shift = hn::Set(d, most == kLeast ? 0.0f : most);
  return static_cast<float>(SumOfRow(
      row,
      [=](auto x) HWY_ATTR { return ExpNegative(hn::ScalableTag<float>(), hn::Sub(x, shift)); },
      kLeast));
}

// The first place of `value` in x [n]; n: it is not there.
HWY_INLINE int64_t PlaceIn(const float* x, int64_t n, float value) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    const int64_t lane = hn::FindFirstTrue(d, hn::Eq(hn::LoadU(d, x + i), hn::Set(d, value)));
    if (lane >= 0) return i + lane;
  }
  while (i < n && x[i] != value) ++i;
  return i;
}

// The first of the largest elements, NaN counting as -inf: its place, 0 if there is none.
HWY_INLINE int64_t ArgMaxOfRow(RowPieces& row) {
  const hn::ScalableTag<float> d;
  const auto ignored = [&](auto x)
                           HWY_ATTR { return hn::IfThenElse(hn::IsNaN(x), hn::Set(d, kLeast), x); };
  float most = kLeast;
  int64_t place = 0;
  for (int64_t begin = 0; begin < row.n(); begin += kPiece) {
    const float* x = row.At(begin);
    const int64_t n = row.count(begin);
    const auto largest = FoldPiece(x, n, kLeast, hn::Set(d, kLeast), ignored,
                                   [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); });
    const float of_piece = hn::GetLane(hn::MaxOfLanes(d, largest));
    if (!(of_piece > most)) continue;
    most = of_piece;
    place = begin + PlaceIn(x, n, most);
  }
  return place;
}

// The same of the row followed by its negative: the place of x, or -1 - place of -x.
HWY_INLINE int64_t ArgMaxSignedOfRow(RowPieces& row) {
  const hn::ScalableTag<float> d;
  const auto size = [&](auto x) HWY_ATTR {
    return hn::IfThenElse(hn::IsNaN(x), hn::Set(d, kLeast), hn::Abs(x));
  };
  float most = kLeast;
  int64_t place = 0;
  for (int64_t begin = 0; begin < row.n(); begin += kPiece) {
    const float* x = row.At(begin);
    const int64_t n = row.count(begin);
    // NaN, which does not count: |-inf| would be the largest.
    constexpr float kFiller = std::numeric_limits<float>::quiet_NaN();
    const auto largest = FoldPiece(x, n, kFiller, hn::Set(d, kLeast), size,
                                   [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); });
    const float of_piece = hn::GetLane(hn::MaxOfLanes(d, largest));
    if (of_piece < most || of_piece == kLeast || (of_piece == most && place >= 0)) continue;
    const int64_t at = PlaceIn(x, n, of_piece);
    if (at == n && of_piece == most) continue;
    most = of_piece;
    place = at < n ? begin + at : -1 - (begin + PlaceIn(x, n, -most));
  }
  return place;
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
