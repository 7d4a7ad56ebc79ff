#include "tests/plain/plain_attend_rows.h"
#include "tests/pattern/pattern_masks.h"

namespace attnd::testing {
namespace {

struct Slots {
  const Pattern& pattern;
  const AttendSeq& seq;
  std::vector<std::vector<SeenSlot>>& seen;

  int64_t QueryOf(int64_t slot) const {
    if (slot >= pattern.Nq) return -1;
    const int64_t i = pattern.query_rows.empty() ? slot : pattern.query_rows[slot];
    return i < seq.nq ? i : -1;
  }
  // Rows of a gather order all exist; others are clipped.
  int64_t KeyOf(int64_t slot) const {
    if (slot >= pattern.Nk) return -1;
    if (!pattern.key_rows.empty()) return pattern.key_rows[slot];
    return slot < seq.nk ? slot : -1;
  }

  void Visit(int64_t q_tile, int64_t key_tile, const Run& run) const {
    const TileMask mask = MaskOfRun(pattern, run, q_tile, key_tile);
    const TileTerms terms = TermsOfRun(pattern, run, q_tile, key_tile);
    for (int64_t q = 0; q < kTile; ++q) {
      const int64_t i = QueryOf(q_tile * kTile + q);
      for (int64_t k = 0; k < kTile && i >= 0; ++k) {
        const int64_t slot = key_tile * kTile + k, j = KeyOf(slot);
        const bool visible = (mask[k] >> q & 1) != 0;
        if (j < 0 || !visible) continue;
        SeenSlot key{.row = j};
        if (!pattern.key_bias.empty()) key.bias += pattern.key_bias[slot];
        const size_t at = static_cast<size_t>(k * kTile + q);
        if (!terms.bias.empty()) key.bias += terms.bias[at];
        if (!terms.labels.empty() && terms.labels[at] != TileTerms::kNoLabel) {
          key.label = terms.labels[at];
        }
        seen[i].push_back(key);
      }
    }
  }
};

}  // namespace

std::vector<std::vector<SeenSlot>> SeenSlots(const Pattern* pattern, const AttendSeq& seq,
                                             int64_t Nq) {
  std::vector<std::vector<SeenSlot>> seen(static_cast<size_t>(Nq));
  if (pattern == nullptr) {
    for (int64_t i = 0; i < seq.nq; ++i) {
      for (int64_t j = 0; j < seq.nk; ++j) seen[i].push_back({.row = j});
    }
    return seen;
  }
  for (size_t i = 0; pattern->is_listed() && i + 1 < pattern->keys_of.begin.size(); ++i) {
    for (int64_t at = pattern->keys_of.begin[i]; at < pattern->keys_of.begin[i + 1]; ++at) {
      seen[i].push_back({.row = pattern->keys_of.columns[at]});
    }
  }
  const Slots slots{*pattern, seq, seen};
  const TileRows& tiles = pattern->by_query;
  for (int64_t tile = 0; tile < tiles.rows(); ++tile) {
    for (int64_t r = tiles.begin[tile]; r < tiles.begin[tile + 1]; ++r) {
      const Run& run = tiles.runs[r];
      for (int64_t n = 0; n < run.count; ++n) slots.Visit(tile, run.first + n, run);
    }
  }
  return seen;
}

}  // namespace attnd::testing
