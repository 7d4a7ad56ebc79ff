// Operands of the backward of attend: tiles of keys and of queries as packed float32 rows.
#if defined(ATTND_CPU_ATTEND_OPERANDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_OPERANDS_INL_H_
#undef ATTND_CPU_ATTEND_OPERANDS_INL_H_
#else
#define ATTND_CPU_ATTEND_OPERANDS_INL_H_
#endif

#include <algorithm>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_grad_tile.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline Broadcast ByRow(const Packed& x) { return {x.data, x.stride, 1}; }
inline Broadcast ByColumn(const Packed& x) { return {x.data, 1, x.stride}; }
inline Rows AsRows(const Packed& x) { return {x.data, x.stride}; }
inline MutableRows Mutable(const Packed& x) { return {x.data, x.stride}; }
inline Packed From(const Packed& x, int64_t row, int64_t column) {
  return {x.Row(row) + column, x.stride, x.width};
}
inline int64_t Vectors(const Packed& x) { return RoundUp(x.width, kLanes); }
// What lies between the rows stays: the relative term keeps scores beside a tile.
inline void Zero(const Packed& x, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) std::fill_n(x.Row(i), Vectors(x), 0.0f);
}

// A row as float32, columns up to a whole vector filled with zeros.
HWY_INLINE void PackRow(const HeadRows& from, int64_t row, float factor, const Packed& to,
                        int64_t at) {
  float* target = to.Row(at);
  std::fill(target + to.width / kLanes * kLanes, target + Vectors(to), 0.0f);
  if (from.dtype != DType::kF32) {
    Widen(from.dtype, from.Row(row), to.width, target, factor);
    return;
  }
  const DF d;
  const float* source = reinterpret_cast<const float*>(from.Row(row));
  const VF scale = hn::Set(d, factor);
  int64_t x = 0;
  for (; x + kLanes <= to.width; x += kLanes) {
    hn::StoreU(hn::Mul(scale, hn::LoadU(d, source + x)), d, target + x);
  }
  for (; x < to.width; ++x) target[x] = factor * source[x];
}

// A stored row times a packed one. `space`: n floats.
HWY_INLINE float Dot(const HeadRows& stored, int64_t row, const float* packed, int64_t n,
                     float* space) {
  const DF d;
  const float* left = reinterpret_cast<const float*>(stored.Row(row));
  if (stored.dtype != DType::kF32) {
    Widen(stored.dtype, stored.Row(row), n, space);
    left = space;
  }
  VF sum = hn::Zero(d);
  int64_t x = 0;
  for (; x + kLanes <= n; x += kLanes) {
    sum = hn::MulAdd(hn::LoadU(d, left + x), hn::LoadU(d, packed + x), sum);
  }
  float dot = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; x < n; ++x) dot += left[x] * packed[x];
  return dot;
}

// The same of float32 as the micro-kernel adds it up: in order, one rounding a step with FMA.
HWY_INLINE float DotInOrder(const float* left, const float* right, int64_t n) {
  const hn::CappedTag<float, 1> d;
  auto sum = hn::Zero(d);
  for (int64_t x = 0; x < n; ++x) {
    sum = hn::MulAdd(hn::LoadU(d, left + x), hn::LoadU(d, right + x), sum);
  }
  return hn::GetLane(sum);
}

// The rows in the slots of one tile. Bit i of `exists`: slot i holds a row that takes part.
struct TileSlots {
  int64_t count = 0;
  int32_t rows[kTile];
  uint64_t exists = 0;
  bool in_order = true;  // rows[i] = rows[0] + i

  // `length`: rows where nothing is gathered.
  void Set(const std::vector<int32_t>* order, int64_t length, int64_t tile) {
    const int64_t first = tile * kTile;
    const bool gathers = order != nullptr && !order->empty();
    count = std::clamp<int64_t>((gathers ? static_cast<int64_t>(order->size()) : length) - first, 0,
                                kTile);
    exists = 0;
    in_order = true;
    for (int64_t i = 0; i < count; ++i) {
      rows[i] = gathers ? (*order)[first + i] : static_cast<int32_t>(first + i);
      if (rows[i] >= 0) exists |= uint64_t{1} << i;
      in_order = in_order && rows[i] == rows[0] + i && rows[0] >= 0;
    }
  }
  uint64_t all() const { return count == kTile ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }
};

// The range of the other tile that a strip of slots sees, so that the products of a pair of tiles
// leave out most invisible pairs. Blocks of the micro-kernel fill a strip.
constexpr int64_t kGradStrip = 4 * kRows, kGradStrips = CeilDiv(kTile, kGradStrip);
struct SeenByStrips {
  SlotRange of[kGradStrips];

  // Calls f(slots, what they see) for slots [0, count), strips that see the same at once.
  template <class F>
  HWY_INLINE void ForEach(int64_t count, const F& f) const {
    for (int64_t s = 0; s * kGradStrip < count;) {
      const int64_t first = s;
      while (s * kGradStrip < count && of[s] == of[first]) ++s;
      f(SlotRange{first * kGradStrip, std::min(s * kGradStrip, count)}, of[first]);
    }
  }
};

// In steps of a width at which the micro-kernel is fast; kLanes divides `columns`.
inline SlotRange WholeVectors(SlotRange keys, int64_t columns) {
  constexpr int64_t kUnit = std::max<int64_t>(kLanes, 16);
  if (keys.size() == 0) return {0, 0};
  return {keys.begin / kUnit * kUnit, std::min(RoundUp(keys.end, kUnit), columns)};
}

// Whether packed rows hold NaN or Inf, computed once at the first call.
class Finiteness {
 public:
  void Forget() { known_ = false; }
  bool HasNonFinite(const Packed& a, const Packed& b, int64_t rows) {
    if (!known_) {
      found_ = false;
      for (int64_t i = 0; i < rows; ++i) {
        found_ = found_ || (a.data != nullptr && Odd(a, i)) || (b.data != nullptr && Odd(b, i));
      }
      known_ = true;
    }
    return found_;
  }

 private:
  static bool Odd(const Packed& x, int64_t i) {
    return HWY_NAMESPACE::HasNonFinite(x.Row(i), x.width);
  }
  bool known_ = false, found_ = false;
};

// Up to 64 keys as the products read them.
struct GradKeys {
  GradScratch::Keys m;
  TileSlots slots;
  float bias[kTile];  // key_bias
  bool has_bias = false;
  Finiteness finiteness;
};

// Up to 64 queries of one head.
struct GradQueries {
  Packed q, dout, q_rel;
  TileSlots slots;  // `exists` without those that see nothing
  int64_t h = 0;
  // lse and lse_low; delta - dlse; the factor of a weight that is no softmax.
  float lse[kTile], lse_low[kTile], shift[kTile], factor[kTile];
  Finiteness finiteness;
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
