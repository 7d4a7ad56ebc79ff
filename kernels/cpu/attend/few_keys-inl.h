// Softmax attention to few keys that every query sees: queries in rows, keys in lanes. Neither Q
// nor the result is transposed, as it would be for queries in lanes; K^T and V are packed once for
// all queries of an item, and one pass over all scores of a row needs no online softmax.
#if defined(ATTND_CPU_FEW_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_FEW_KEYS_INL_H_
#undef ATTND_CPU_FEW_KEYS_INL_H_
#else
#define ATTND_CPU_FEW_KEYS_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/attend/attend_item.h"
#include "kernels/cpu/attend/log_sums-inl.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

class FewKeys {
 public:
  // `scratch`: FewKeysFloats.
  FewKeys(const AttendItem& item, float* scratch)
      : t_(item),
        q_(scratch),
        weights_(q_ + kTile * FewKeysStride(t_.D)),
        out_(weights_ + kTile * FewKeysStride(kFewKeys)),
        kt_(out_ + kTile * FewKeysStride(t_.Dv)),
        v_(kt_ + t_.D * FewKeysStride(kFewKeys)) {}

  void Run() {
    LoadKeys();
    for (int64_t first = 0; first < t_.queries && !CheckPoint(); first += kTile) {
      RunTile(first, std::min(kTile, t_.queries - first));
    }
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    for (int64_t i = t_.queries; i < t_.rows; ++i) {
      std::memset(t_.out.Row(t_.first + i), 0, t_.Dv * SizeOf(t_.out.dtype));
      t_.lse.Scalar(t_.first + i) = kNothing;
      if (t_.lse_low.data != nullptr) t_.lse_low.Scalar(t_.first + i) = 0;
    }
  }

 private:
  void LoadKeys() const;
  void RunTile(int64_t first, int64_t rows) const;
  void LoadQueries(int64_t row, int64_t rows, int64_t at) const;
  void FetchQueries(int64_t row, int64_t rows) const;
  void StoreRow(const float* from, float sum, char* row) const;
  void WeighRows(int64_t rows, float* most, float* sums) const;

  const AttendItem& t_;
  const int64_t columns_ = RoundUp(t_.keys, kLanes);
  float* const q_;        // [kTile][D], times query_scale as in the backward
  float* const weights_;  // [kTile][key]: scores, then weights
  float* const out_;      // some rows of Dv, where the result cannot be built in place
  float* const kt_;       // [D][key]
  float* const v_;        // [key][Dv]
};

inline void FewKeys::LoadKeys() const {
  const int64_t stride = FewKeysStride(kFewKeys), v_stride = FewKeysStride(t_.Dv);
  for (int64_t d = 0; d < t_.D; ++d) {
    std::fill(kt_ + d * stride + t_.keys, kt_ + d * stride + columns_, 0.0f);
  }
  for (int64_t first = 0; first < t_.keys; first += kTile) {
    const int64_t keys = std::min(kTile, t_.keys - first), k_stride = FewKeysStride(t_.D);
    for (int64_t i = 0; i < keys; ++i) {
      Widen(t_.k.dtype, t_.k.Row(first + i), t_.D, q_ + i * k_stride);
      float* const value = v_ + (first + i) * v_stride;
      Widen(t_.v.dtype, t_.v.Row(first + i), t_.Dv, value);
      std::fill(value + t_.Dv, value + RoundUp(t_.Dv, kLanes), 0.0f);
    }
    Transpose(q_, k_stride, keys, t_.D, kt_ + first, stride);
  }
}

// Rows of Q that are needed soon, a few at a time: memory works while products run.
inline void FewKeys::FetchQueries(int64_t row, int64_t rows) const {
  const int64_t end = std::min(row + rows, t_.first + t_.queries);
  for (; row < end; ++row) Fetch(t_.q.Row(row), t_.D * SizeOf(t_.q.dtype));
}

// Rows [first, first + rows) of the item, at most kTile. kStretch rows at a time are in L1 when
// they are read again.
inline void FewKeys::RunTile(int64_t first, int64_t rows) const {
  const int64_t q_stride = FewKeysStride(t_.D), stride = FewKeysStride(kFewKeys);
  const int64_t v_stride = FewKeysStride(t_.Dv), width = RoundUp(t_.Dv, kLanes);
  constexpr int64_t kStretch = 4 * kRows;
  first += t_.first;
  for (int64_t i = 0; i < rows; ++i) {
    if (i % kStretch == 0) LoadQueries(first + i, std::min(kStretch, rows - i), i);
    if (i % kRows != 0) continue;
    const int64_t count = std::min<int64_t>(kRows, rows - i);
    Gemm<Start::kZero>(count, columns_, t_.D, {q_ + i * q_stride, q_stride, 1}, {kt_, stride},
                       {weights_ + i * stride, stride});
    FetchQueries(first + i + kTile, count);
  }
  float most[kTile], sums[kTile];
  WeighRows(rows, most, sums);
  const LogSums log_sums(most, sums);
  for (int64_t i = 0; i < rows; ++i) log_sums.Store(i, t_.lse, t_.lse_low, first + i);
  const bool in_place = t_.out.dtype == DType::kF32 && t_.Dv % kLanes == 0;
  const int64_t out_stride =
      in_place ? t_.out.stride / static_cast<int64_t>(sizeof(float)) : v_stride;
  for (int64_t i = 0; i < rows; i += kStretch) {
    const int64_t count = std::min(kStretch, rows - i);
    float* const to = in_place ? reinterpret_cast<float*>(t_.out.Row(first + i)) : out_;
    Gemm<Start::kZero>(count, width, t_.keys, {weights_ + i * stride, stride, 1}, {v_, v_stride},
                       {to, out_stride});
    for (int64_t r = 0; r < count; ++r) {
      StoreRow(to + r * out_stride, sums[i + r], t_.out.Row(first + i + r));
    }
  }
}

inline void FewKeys::LoadQueries(int64_t row, int64_t rows, int64_t at) const {
  for (int64_t i = 0; i < rows; ++i) {
    Widen(t_.q.dtype, t_.q.Row(row + i), t_.D, q_ + (at + i) * FewKeysStride(t_.D), t_.query_scale);
  }
}

// `from` may be where `row` lies.
inline void FewKeys::StoreRow(const float* from, float sum, char* row) const {
  if (sum == 0.0f) {
    std::memset(row, 0, t_.Dv * SizeOf(t_.out.dtype));
  } else {
    Narrow(t_.out.dtype, from, t_.Dv, row, 1 / sum);
  }
}

// Turns scores into weights relative to the maximum of their row, and finds both and their sums, of
// kTile rows.
inline void FewKeys::WeighRows(int64_t rows, float* most, float* sums) const {
  const DF d;
  const VF nothing = hn::Set(d, -std::numeric_limits<float>::infinity());
  const int64_t last = columns_ - kLanes;
  const auto is_key = hn::FirstN(d, static_cast<size_t>(t_.keys - last));
  for (int64_t i = 0; i < rows; ++i) {
    float* const scores = weights_ + i * FewKeysStride(kFewKeys);
    // Lanes beyond the last key weigh nothing.
    VF max = hn::IfThenElse(is_key, hn::LoadU(d, scores + last), nothing);
    hn::StoreU(max, d, scores + last);
    for (int64_t x = 0; x < last; x += kLanes) max = hn::Max(hn::LoadU(d, scores + x), max);
    most[i] = hn::GetLane(hn::MaxOfLanes(d, max));
    // A row of -inf alone: -inf - 0 instead of -inf - -inf.
    const VF base = hn::Set(d, most[i] == -std::numeric_limits<float>::infinity() ? 0 : most[i]);
    VF sum = hn::Zero(d);
    for (int64_t x = 0; x <= last; x += kLanes) {
      const VF weight = ExpWeight(d, hn::Sub(hn::LoadU(d, scores + x), base));
      hn::StoreU(weight, d, scores + x);
      sum = hn::Add(sum, weight);
    }
    sums[i] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
  std::fill(most + rows, most + kTile, 0.0f);
  std::fill(sums + rows, sums + kTile, 1.0f);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
