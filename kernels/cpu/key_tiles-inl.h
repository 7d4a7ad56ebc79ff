// Tiles of keys and values of one head in the form that the products of attend read.
#if defined(ATTND_CPU_KEY_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_KEY_TILES_INL_H_
#undef ATTND_CPU_KEY_TILES_INL_H_
#else
#define ATTND_CPU_KEY_TILES_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/convert-inl.h"
#include "kernels/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The last kBlockTiles tiles that somebody asked for, one slot each: made once for all the query
// tiles of an item. Keys are read where they lie unless they need widening. Values are packed in
// groups of kRows columns, [group][slot][key][kRows]: read by column where they lie, 64 rows a
// power of two apart would fight for few cache sets.
class KeyTiles {
 public:
  // `take`(floats) returns scratch memory.
  template <class Take>
  KeyTiles(const AttendItem& item, const Take& take) : t_(item) {
    v_ = take(CeilDiv(t_.Dv, kRows) * kGroup);
    k_ = take(t_.k.dtype == DType::kF32 ? 0 : kBlockTiles * kTile * t_.D);
    row_ = take(t_.Dv);
    std::fill_n(tiles_, kBlockTiles, int64_t{-1});
  }

  // The slot that holds tile `index`, filled if need be. Tiles in the slots `busy` (bits) stay.
  // REQUIRES: a slot that is not busy.
  int Prepare(int64_t index, uint32_t busy) {
    for (int slot = 0; slot < kBlockTiles; ++slot) {
      if (tiles_[slot] == index) return slot;
    }
    while ((busy >> oldest_ & 1) != 0) oldest_ = (oldest_ + 1) % kBlockTiles;
    const int slot = oldest_;
    oldest_ = (oldest_ + 1) % kBlockTiles;
    tiles_[slot] = index;
    Fill(slot);
    return slot;
  }

  // The keys of a slot, [64][D].
  Rows Keys(int slot) const {
    const int64_t first = tiles_[slot] * kTile;
    if (t_.k.dtype != DType::kF32) return {k_ + slot * kTile * t_.D, t_.D};
    return {reinterpret_cast<const float*>(t_.k.Row(first)),
            t_.k.stride / static_cast<int64_t>(sizeof(float))};
  }

  // V^T of a slot, [Dv][64]; the keys of the slots that follow come next.
  Broadcast ValuesT(int slot) const { return {v_ + slot * kTile * kRows, 1, kRows, kGroup}; }

  // Rows of V (bits) that ValuesT shows as zeros, since NaN or Inf in them must reach only who sees
  // them: a weight of 0 does not hide them. Without a pattern everybody sees everything.
  uint64_t hidden_values(int slot) const { return hidden_[slot]; }
  // Such a row as it is. Valid until the next call.
  const float* Value(int64_t key) {
    Widen(t_.v.dtype, t_.v.Row(key), t_.Dv, row_);
    return row_;
  }

 private:
  static constexpr int64_t kStored = 4;
  static_assert(kRows <= kStored);
  // Floats from group to group: no power of two.
  static constexpr int64_t kGroup = kBlockTiles * kTile * kRows + 16;

  void Fill(int slot) {
    const int64_t first = tiles_[slot] * kTile, keys = std::min(kTile, t_.keys - first);
    hidden_[slot] = 0;
    for (int64_t key = 0; key < keys; ++key) {
      const float* v = reinterpret_cast<const float*>(t_.v.Row(first + key));
      if (t_.v.dtype != DType::kF32) v = Value(first + key);
      if (t_.pattern != nullptr && HasNonFinite(v, t_.Dv)) {
        hidden_[slot] |= uint64_t{1} << key;
        std::fill_n(row_, t_.Dv, 0.0f);
        v = row_;
      }
      Pack(v, v_ + (slot * kTile + key) * kRows, key + 1 == keys);
    }
    if (t_.k.dtype == DType::kF32) return;
    for (int64_t key = 0; key < keys; ++key) {
      Widen(t_.k.dtype, t_.k.Row(first + key), t_.D, k_ + (slot * kTile + key) * t_.D);
    }
  }

  // A row to its groups, in vectors that may end in the place of the next key; of the last key that
  // is another slot's.
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
  float *v_, *k_, *row_;
  int64_t tiles_[kBlockTiles];
  uint64_t hidden_[kBlockTiles];
  int oldest_ = 0;
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
