// Tiles of keys and values of one head in the form that the products of attend read.
#if defined(ATTND_CPU_KEY_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_KEY_TILES_INL_H_
#undef ATTND_CPU_KEY_TILES_INL_H_
#else
#define ATTND_CPU_KEY_TILES_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_item.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The last kBlockTiles tiles that were used, one place each, packed once for all the query tiles of
// an item. Keys are read where they lie unless they need widening or gathering. Values are
// packed in groups of kRows columns, [group][place][key][kRows]: read by column where they lie, 64
// rows a power of two apart would fight for few cache sets. Where one tile of queries is all that
// would use them and they are few or the rows lie close together, that costs less than packing:
// then they are read like keys.
class KeyTiles {
 public:
  // `take`(floats) returns scratch memory.
  template <class Take>
  KeyTiles(const AttendItem& item, const Take& take)
      : t_(item), packs_(item.rows > kTile || (item.queries > kPanel / 2 && !LieClose(item))) {
    v_ = take(CeilDiv(t_.Dv, kRows) * kGroup);
    k_ = take(kBlockTiles * kTile * t_.D);
    wide_ = take(kTile * t_.Dv);
    row_ = take(t_.Dv);
    zeros_ = take(t_.Dv);
    std::fill_n(zeros_, t_.Dv, 0.0f);
    std::fill_n(tiles_, kBlockTiles, int64_t{-1});
  }

  // The place that holds tile `index`, filled if need be. Tiles in the places `busy` (bits) stay.
  // REQUIRES: a place that is not busy.
  int Prepare(int64_t index, uint32_t busy) {
    for (int place = 0; place < kBlockTiles; ++place) {
      if (tiles_[place] == index) return place;
    }
    while ((busy >> oldest_ & 1) != 0) oldest_ = (oldest_ + 1) % kBlockTiles;
    const int place = oldest_;
    oldest_ = (oldest_ + 1) % kBlockTiles;
    tiles_[place] = index;
    Fill(place);
    return place;
  }

  // The keys of a place, [64][D].
  Rows Keys(int place) const { return keys_[place]; }

  // V^T of a place, [Dv][64]. If values are packed, the keys of the places that follow come next.
  bool packs() const { return packs_; }
  Broadcast ValuesT(int place) const {
    if (!packs_) return {values_[place].data, 1, values_[place].stride};
    return {v_ + place * kTile * kRows, 1, kRows, kGroup};
  }

  // Slots (bits) that hold no key.
  uint64_t absent(int place) const { return absent_[place]; }
  // Rows of V (bits) that ValuesT shows as zeros, since NaN or Inf in them must reach only queries
  // that see them: a weight of 0 does not hide them. Where every pair is visible there are none.
  uint64_t hidden_values(int place) const { return hidden_[place]; }
  // Such a row as it is. Valid until the next call.
  const float* Value(int64_t slot) {
    const int64_t row = t_.KeyRow(slot);
    Widen(DTypeOf(t_.v, t_.v2, row), t_.Value(row), t_.Dv, row_);
    return row_;
  }

 private:
  // Whether a column of 64 values that are read in place has a cache line of its own for each.
  static bool LieClose(const AttendItem& item) {
    constexpr int64_t kCloseBytes = 512;
    return item.pattern == nullptr && item.v.dtype == DType::kF32 && item.v.stride <= kCloseBytes;
  }

  static constexpr int64_t kStored = 4;
  static_assert(kRows <= kStored);
  // Floats from group to group: no power of two.
  static constexpr int64_t kGroup = kBlockTiles * kTile * kRows + 16;

  DType DTypeOf(const HeadRows& own, const HeadRows& second, int64_t row) const {
    return row < t_.k_rows ? own.dtype : second.dtype;
  }
  // True with `rows` set: slots [first, first + keys) can be read where they lie.
  bool LiesInPlace(const HeadRows& own, const HeadRows& second, int64_t first, int64_t keys,
                   Rows* rows) const;
  void Fill(int place);
  void FillKeys(int place, int64_t first, int64_t keys);
  void FillValues(int place, int64_t first, int64_t keys);
  bool AllFinite(const float* const* rows, int64_t keys) const;
  void PackAll(int place, const float* const* rows, int64_t keys) const;

  // Writes a row to its groups in whole vectors, which may run into the memory of the next key;
  // after the last key that belongs to another place.
  HWY_INLINE void Pack(const float* row, float* to, bool is_last) const {
    const hn::FixedTag<float, kStored> d;
    int64_t j = 0;
    for (; !is_last && j + kStored <= t_.Dv; j += kRows, to += kGroup) {
      hn::StoreU(hn::LoadU(d, row + j), d, to);
    }
    for (; j < t_.Dv; j += kRows, to += kGroup) {
      for (int64_t i = 0; i < std::min<int64_t>(kRows, t_.Dv - j); ++i) to[i] = row[j + i];
    }
  }

  const AttendItem& t_;
  const bool packs_;
  float *v_, *k_;
  float *wide_, *row_, *zeros_;  // values of a tile as float32, of a key, of none
  int64_t tiles_[kBlockTiles];
  Rows keys_[kBlockTiles], values_[kBlockTiles];
  uint64_t absent_[kBlockTiles], hidden_[kBlockTiles];
  int oldest_ = 0;
};

inline void KeyTiles::Fill(int place) {
  const int64_t first = tiles_[place] * kTile, keys = std::min(kTile, t_.keys - first);
  absent_[place] = 0;
  for (int64_t i = 0; t_.key_rows != nullptr && i < keys; ++i) {
    if (t_.key_rows[first + i] < 0) absent_[place] |= uint64_t{1} << i;
  }
  FillKeys(place, first, keys);
  FillValues(place, first, keys);
}

inline bool KeyTiles::LiesInPlace(const HeadRows& own, const HeadRows& second, int64_t first,
                                  int64_t keys, Rows* rows) const {
  const int64_t row = t_.KeyRow(first);
  if (row < 0 || DTypeOf(own, second, row) != DType::kF32) return false;
  for (int64_t i = 1; t_.key_rows != nullptr && i < keys; ++i) {
    if (t_.key_rows[first + i] != row + i || row + i == t_.k_rows) return false;
  }
  const HeadRows& source = row < t_.k_rows ? own : second;
  const int64_t at = row < t_.k_rows ? row : row - t_.k_rows;
  *rows = {reinterpret_cast<const float*>(source.Row(at)),
           source.stride / static_cast<int64_t>(sizeof(float))};
  return true;
}

inline void KeyTiles::FillKeys(int place, int64_t first, int64_t keys) {
  if (LiesInPlace(t_.k, t_.k2, first, keys, &keys_[place])) return;
  float* to = k_ + place * kTile * t_.D;
  keys_[place] = {to, t_.D};
  for (int64_t i = 0; i < keys; ++i, to += t_.D) {
    const int64_t row = t_.KeyRow(first + i);
    if (row < 0) {
      std::fill_n(to, t_.D, 0.0f);
    } else if (DTypeOf(t_.k, t_.k2, row) == DType::kF32) {
      std::memcpy(to, t_.Key(row), t_.D * sizeof(float));
    } else {
      Widen(DTypeOf(t_.k, t_.k2, row), t_.Key(row), t_.D, to);
    }
  }
}

inline void KeyTiles::FillValues(int place, int64_t first, int64_t keys) {
  const bool all_see_all = t_.pattern == nullptr && t_.terms.bias.data == nullptr;
  hidden_[place] = 0;
  if (!packs_ && all_see_all && LiesInPlace(t_.v, t_.v2, first, keys, &values_[place])) return;
  const float* rows[kTile];
  for (int64_t i = 0; i < keys; ++i) {
    const int64_t row = t_.KeyRow(first + i);
    rows[i] = zeros_;
    if (row < 0) continue;
    rows[i] = reinterpret_cast<const float*>(t_.Value(row));
    const DType dtype = DTypeOf(t_.v, t_.v2, row);
    if (dtype == DType::kF32) continue;
    Widen(dtype, rows[i], t_.Dv, wide_ + i * t_.Dv);
    rows[i] = wide_ + i * t_.Dv;
  }
  if (!all_see_all && !AllFinite(rows, keys)) {
    for (int64_t i = 0; i < keys; ++i) {
      if (!HasNonFinite(rows[i], t_.Dv)) continue;
      hidden_[place] |= uint64_t{1} << i;
      rows[i] = zeros_;
    }
  }
  if (packs_) return PackAll(place, rows, keys);
  float* to = v_ + place * kTile * t_.Dv;
  values_[place] = {to, t_.Dv};
  for (int64_t i = 0; i < keys; ++i, to += t_.Dv) std::copy_n(rows[i], t_.Dv, to);
}

// Of a whole tile at once: a row at a time, most of the time goes to combining the results.
inline bool KeyTiles::AllFinite(const float* const* rows, int64_t keys) const {
  const DF d;
  // x - x is 0 for finite x, else NaN; NaN survives the sum.
  VF sum0 = hn::Zero(d), sum1 = sum0;
  float sum = 0;
  for (int64_t i = 0; i < keys; ++i) {
    const float* row = rows[i];
    int64_t j = 0;
    for (; j + 2 * kLanes <= t_.Dv; j += 2 * kLanes) {
      const VF x0 = hn::LoadU(d, row + j), x1 = hn::LoadU(d, row + j + kLanes);
      sum0 = hn::Add(sum0, hn::Sub(x0, x0));
      sum1 = hn::Add(sum1, hn::Sub(x1, x1));
    }
    for (; j < t_.Dv; ++j) sum += row[j] - row[j];
  }
  return sum == 0.0f && hn::AllTrue(d, hn::Eq(hn::Add(sum0, sum1), hn::Zero(d)));
}

inline void KeyTiles::PackAll(int place, const float* const* rows, int64_t keys) const {
  float* to = v_ + place * kTile * kRows;
  int64_t i = 0;
#if HWY_TARGET == HWY_AVX3
  // Four rows at a time a group gets a whole vector: a transposition of 4 x 4 quarters.
  static_assert(kRows == 4);
  for (; t_.Dv % kLanes == 0 && i + 4 <= keys; i += 4) {
    for (int64_t j = 0; j < t_.Dv; j += kLanes) {
      const auto a = _mm512_loadu_ps(rows[i] + j), b = _mm512_loadu_ps(rows[i + 1] + j);
      const auto c = _mm512_loadu_ps(rows[i + 2] + j), d = _mm512_loadu_ps(rows[i + 3] + j);
      const auto ab0 = _mm512_shuffle_f32x4(a, b, 0x44), ab1 = _mm512_shuffle_f32x4(a, b, 0xEE);
      const auto cd0 = _mm512_shuffle_f32x4(c, d, 0x44), cd1 = _mm512_shuffle_f32x4(c, d, 0xEE);
      float* groups = to + j / kRows * kGroup + i * kRows;
      _mm512_storeu_ps(groups, _mm512_shuffle_f32x4(ab0, cd0, 0x88));
      _mm512_storeu_ps(groups + kGroup, _mm512_shuffle_f32x4(ab0, cd0, 0xDD));
      _mm512_storeu_ps(groups + 2 * kGroup, _mm512_shuffle_f32x4(ab1, cd1, 0x88));
      _mm512_storeu_ps(groups + 3 * kGroup, _mm512_shuffle_f32x4(ab1, cd1, 0xDD));
    }
  }
#endif
  for (; i < keys; ++i) Pack(rows[i], to + i * kRows, i + 1 == keys);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
