// A visible key tile as a panel of queries sees it.
#if defined(ATTND_CPU_KEY_PART_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_KEY_PART_INL_H_
#undef ATTND_CPU_KEY_PART_INL_H_
#else
#define ATTND_CPU_KEY_PART_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_tile.h"
#include "kernels/cpu/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// A visible key tile of a block of scores.
struct KeyPart {
  int64_t first, keys;  // slots
  int64_t offset;       // where its rows of scores start
  const TileMask* mask;
  const TileTerms* terms;
  int place;        // in KeyTiles
  uint64_t absent;  // slots (bits) without a key
  // No query of the panel at work sees a key beyond: their scores are neither computed nor read.
  SlotRange seen = {};
  bool is_even = true;  // else strips of the panel differ, those with queries in
  SlotRange strips[kStrips] = {};

  // Queries of the tile that see a key, apart from bias.
  uint64_t Sees(int64_t key) const {
    const uint64_t word = mask == nullptr ? ~uint64_t{0} : (*mask)[key];
    return (absent >> key & 1) != 0 ? 0 : word;
  }
  bool hides() const { return mask != nullptr || absent != 0; }
  // The next panel at work, of which `lanes` have queries.
  void LookFrom(int64_t panel, int64_t lanes);

 private:
  SlotRange SeenBy(uint64_t queries) const {
    SlotRange range = {0, keys};
    while (range.size() > 0 && (Sees(range.begin) & queries) == 0) ++range.begin;
    while (range.size() > 0 && (Sees(range.end - 1) & queries) == 0) --range.end;
    return range;
  }
};

inline void KeyPart::LookFrom(int64_t panel, int64_t lanes) {
  seen = {0, keys};
  is_even = true;
  if (!hides()) return;
  constexpr uint64_t kBits = ~uint64_t{0} >> (64 - kStrip);
  seen = {keys, 0};
  const int64_t count = CeilDiv(lanes, kStrip);
  int64_t rows = 0;
  for (int64_t s = 0; s < count; ++s) {
    strips[s] = SeenBy(kBits << (panel * kPanel + s * kStrip));
    if (strips[s].size() == 0) continue;
    rows += strips[s].size();
    seen = {std::min(seen.begin, strips[s].begin), std::max(seen.end, strips[s].end)};
  }
  if (rows == 0) seen = {0, 0};
  // Whole panels are a little faster than strips.
  is_even = rows * 8 >= seen.size() * count * 7;
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
