// Keys by list: a query tile shares the keys that its queries list, gathered side by side.
#include <bit>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "kernels/ops/pattern_parts.h"
#include "kernels/ops/pattern_plan.h"
#include "kernels/ops/pattern_tiles.h"

namespace attnd {
namespace {

// One query of a tile lists one key.
struct Listed {
  int32_t key, query;
  auto operator<=>(const Listed&) const = default;
};

struct Lists {
  PatternRow row;
  std::vector<int32_t> keys;
  int64_t R;
  bool multiset, include_self;
  std::vector<int32_t> ids_q, ids_k;

  bool Sees(int64_t i, int64_t j) const {
    if (j < 0 || j >= row.lengths.nk || (row.causal && j > i + row.offset)) return false;
    return ids_q.empty() || (ids_q[i] >= 0 && ids_q[i] == ids_k[j]);
  }
  // What the queries of a tile list, by key.
  void OfTile(int64_t q_tile, std::vector<Listed>* listed) const {
    listed->clear();
    const int64_t end = std::min((q_tile + 1) * kTile, row.lengths.nq);
    for (int64_t i = q_tile * kTile; i < end; ++i) {
      const auto query = static_cast<int32_t>(i % kTile);
      const int32_t* list = keys.data() + i * R;
      for (int64_t t = 0; t < R; ++t) {
        if (Sees(i, list[t])) listed->push_back({list[t], query});
      }
      const int64_t self = i + row.offset;
      if (include_self && Sees(i, self) && std::find(list, list + R, self) == list + R) {
        listed->push_back({static_cast<int32_t>(self), query});
      }
    }
    std::sort(listed->begin(), listed->end());
    if (!multiset) listed->erase(std::unique(listed->begin(), listed->end()), listed->end());
  }
};

// Calls slot(key, queries, is_again): for each key one slot, and one more for those that list it
// again.
template <class Slot>
void ForEachSlot(const std::vector<Listed>& listed, const Slot& slot) {
  std::vector<uint64_t> levels;  // queries that list the key more than t times
  for (size_t at = 0; at < listed.size();) {
    const int32_t key = listed[at].key;
    levels.clear();
    for (size_t times = 0; at < listed.size() && listed[at].key == key; ++at) {
      const bool is_again = times > 0 && listed[at - 1].query == listed[at].query;
      times = is_again ? times + 1 : 1;
      if (times > levels.size()) levels.push_back(0);
      levels[times - 1] |= uint64_t{1} << listed[at].query;
    }
    for (size_t t = 0; t < levels.size(); ++t) slot(key, levels[t], t > 0);
  }
}

Pattern GatheredLists(const Lists& lists) {
  RowOrder key_rows;
  std::vector<uint64_t> seen_by;  // of every slot
  std::vector<int64_t> tiles;     // key tiles below those of each query tile
  std::vector<Listed> listed;
  int64_t again = 0;  // pairs that are listed before
  const int64_t rows = Tiles(lists.row.lengths.nq);
  for (int64_t q_tile = 0; q_tile < rows; ++q_tile) {
    tiles.push_back(static_cast<int64_t>(key_rows.size()) / kTile);
    lists.OfTile(q_tile, &listed);
    ForEachSlot(listed, [&](int32_t key, uint64_t queries, bool is_again) {
      if (is_again) again += std::popcount(queries);
      key_rows.push_back(key);
      seen_by.push_back(queries);
    });
    key_rows.resize(Tiles(static_cast<int64_t>(key_rows.size())) * kTile, -1);
    seen_by.resize(key_rows.size(), 0);
  }
  tiles.push_back(static_cast<int64_t>(key_rows.size()) / kTile);
  PatternBuilder builder(lists.row.lengths.nq, static_cast<int64_t>(key_rows.size()));
  for (int64_t q_tile = 0; q_tile < rows; ++q_tile) {
    for (int64_t tile = tiles[q_tile]; tile < tiles[q_tile + 1]; ++tile) {
      TileMask mask;
      std::copy_n(seen_by.begin() + tile * kTile, kTile, mask.begin());
      builder.AddMasked(q_tile, tile, mask);
    }
  }
  // An order of no slots would read as the natural one.
  if (key_rows.empty()) return PatternBuilder(lists.row.Nq, lists.row.Nk).Build();
  Pattern pattern = std::move(builder).Build();
  pattern.key_rows = std::move(key_rows);
  pattern.listed_again = again;
  return pattern;
}

Pattern NaturalLists(const Lists& lists) {
  PatternBuilder builder(lists.row.lengths.nq, lists.row.lengths.nk);
  std::vector<Listed> listed;
  for (int64_t q_tile = 0; q_tile < Tiles(lists.row.lengths.nq); ++q_tile) {
    lists.OfTile(q_tile, &listed);
    for (auto at = listed.begin(); at != listed.end();) {
      const int64_t tile = at->key / kTile;
      TileMask mask{};
      for (; at != listed.end() && at->key / kTile == tile; ++at) {
        mask[at->key % kTile] |= uint64_t{1} << at->query;
      }
      builder.AddMasked(q_tile, tile, mask);
    }
  }
  return std::move(builder).Build();
}

}  // namespace

PatternSource ListSource(const PatternRow& row, const KeyLists& lists) {
  const auto [nq, nk] = row.lengths;
  const int64_t longest = lists.R + (lists.include_self ? 1 : 0);
  // Gathered keys fill at most `longest` tiles of a row; natural ones at most all.
  const bool is_natural = !lists.multiset && Tiles(nk) <= longest;
  PatternSource source{.Nq = row.Nq, .Nk = row.Nk, .is_counted = false, .gathers = !is_natural};
  source.visible_pairs = static_cast<double>(nq) *
                         static_cast<double>(lists.multiset ? longest : std::min(longest, nk));
  source.visible_tiles =
      static_cast<double>(Tiles(nq)) * static_cast<double>(is_natural ? Tiles(nk) : longest);
  source.key =
      absl::StrCat(row.Nq, " ", row.Nk, " lists ", nq, " ", nk, " ", row.offset, " ", row.causal,
                   " ", lists.R, " ", lists.multiset, " ", lists.include_self, " ", lists.name, " ",
                   Fingerprint(lists.ids_q), " ", Fingerprint(lists.ids_k));
  const auto copy = [](std::span<const int32_t> list) {
    return std::vector<int32_t>(list.begin(), list.end());
  };
  source.build = [is_natural, keys = lists.keys,
                  own = std::make_shared<const Lists>(Lists{row,
                                                            {},
                                                            lists.R,
                                                            lists.multiset,
                                                            lists.include_self,
                                                            copy(lists.ids_q),
                                                            copy(lists.ids_k)})] {
    Lists filled = *own;
    filled.keys = keys();
    assert(static_cast<int64_t>(filled.keys.size()) >= filled.row.lengths.nq * filled.R);
    return is_natural ? NaturalLists(filled) : GatheredLists(filled);
  };
  return source;
}

}  // namespace attnd
