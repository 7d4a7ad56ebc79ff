#include "kernels/pattern/shapes/lists.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "kernels/core/run_control.h"
#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/shapes/draws.h"

namespace attnd {
namespace {

struct Lists : KeyLists {
  PatternSeq seq;

  bool Sees(int64_t i, int64_t j) const {
    if (j < 0 || j >= seq.lengths.nk || (seq.causal && j > i + seq.offset)) return false;
    return ids_q.empty() || (ids_q[i] >= 0 && ids_q[i] == ids_k[j]);
  }
  // Appends the visible keys of query i, ascending. Returns how many of them are repeats.
  int64_t OfQuery(int64_t i, std::vector<int32_t>* listed) const {
    if (i >= seq.lengths.nq) return 0;
    const auto first = static_cast<int64_t>(listed->size());
    const int32_t* list = keys.data() + i * R;
    for (int64_t t = 0; t < R; ++t) {
      if (Sees(i, list[t])) listed->push_back(list[t]);
    }
    const int64_t self = i + seq.offset;
    if (include_self && Sees(i, self) && std::find(list, list + R, self) == list + R) {
      listed->push_back(static_cast<int32_t>(self));
    }
    const auto begin = listed->begin() + first;
    if (!std::is_sorted(begin, listed->end())) std::sort(begin, listed->end());
    if (!multiset) {
      listed->erase(std::unique(begin, listed->end()), listed->end());
      return 0;
    }
    int64_t again = 0;
    for (size_t at = first + 1; at < listed->size(); ++at) {
      again += (*listed)[at] == (*listed)[at - 1];
    }
    return again;
  }
};

// The same pairs, by column.
PairList Transposed(const PairList& list, int64_t columns) {
  PairList other{.begin = std::vector<int64_t>(static_cast<size_t>(columns) + 1, 0)};
  for (size_t row = 0; row + 1 < list.begin.size(); ++row) {
    if (row % kTile == 0 && CheckPoint()) break;
    for (int64_t at = list.begin[row]; at < list.begin[row + 1]; ++at) {
      ++other.begin[list.columns[at] + 1];
    }
  }
  std::partial_sum(other.begin.begin(), other.begin.end(), other.begin.begin());
  other.columns.resize(list.columns.size());
  std::vector<int64_t> next(other.begin.begin(), other.begin.end() - 1);
  for (size_t row = 0; row + 1 < list.begin.size(); ++row) {
    if (row % kTile == 0 && CheckPoint()) break;
    for (int64_t at = list.begin[row]; at < list.begin[row + 1]; ++at) {
      other.columns[next[list.columns[at]]++] = static_cast<int32_t>(row);
    }
  }
  return other;
}

Pattern PairLists(const Lists& lists) {
  Pattern pattern{.Nq = lists.seq.Nq, .Nk = lists.seq.Nk};
  PairList& list = pattern.keys_of;
  list.begin = {0};
  list.columns.reserve(static_cast<size_t>(lists.seq.lengths.nq * lists.R));
  for (int64_t i = 0; i < lists.seq.Nq; ++i) {
    if (i % kTile == 0 && CheckPoint()) break;
    const auto first = static_cast<int64_t>(list.columns.size());
    pattern.listed_again += lists.OfQuery(i, &list.columns);
    const auto end = static_cast<int64_t>(list.columns.size());
    pattern.visible_pairs += end - first;
    list.begin.push_back(end);
  }
  list.begin.resize(static_cast<size_t>(lists.seq.Nq) + 1, list.begin.back());  // a stopped run
  pattern.queries_of = Transposed(list, lists.seq.Nk);
  return pattern;
}

Pattern Tiled(const Lists& lists) {
  PatternBuilder builder(lists.seq.lengths.nq, lists.seq.lengths.nk);
  std::vector<TileMask> tiles(Tiles(lists.seq.lengths.nk));
  std::vector<int32_t> listed;
  for (int64_t q_tile = 0; q_tile < Tiles(lists.seq.lengths.nq); ++q_tile) {
    if (CheckPoint()) break;
    std::fill(tiles.begin(), tiles.end(), TileMask{});
    for (int64_t query = 0; query < kTile; ++query) {
      listed.clear();
      lists.OfQuery(q_tile * kTile + query, &listed);
      for (const int32_t key : listed) tiles[key / kTile][key % kTile] |= uint64_t{1} << query;
    }
    for (size_t tile = 0; tile < tiles.size(); ++tile) {
      builder.AddMasked(q_tile, static_cast<int64_t>(tile), tiles[tile]);
    }
  }
  return std::move(builder).Build();
}

struct ListParameters {
  PatternSeq seq;
  KeyLists lists;
  bool is_listed;
};

Pattern Build(const ListParameters& p) {
  Lists filled{p.lists, p.seq};
  if (filled.keys.empty()) {
    filled.keys = DrawnKeys(p.seq, filled.R, filled.seed, filled.head);
  }
  assert(static_cast<int64_t>(filled.keys.size()) >= p.seq.lengths.nq * filled.R);
  return p.is_listed ? PairLists(filled) : Tiled(filled);
}

// Lists as sent, sorted and by key, or the tiles that they fill.
HostCost CostOfLists(const PatternSeq& seq, int64_t longest, bool is_listed) {
  const int64_t listed = seq.lengths.nq * longest, slots = seq.Nq + seq.Nk;
  constexpr int64_t kKeyBytes = 5 * sizeof(int32_t), kSlotBytes = 40;
  HostCost cost{kKeyBytes * listed + kSlotBytes * slots, 6e-8 * static_cast<double>(listed)};
  if (is_listed) return cost;
  const int64_t tiles = Tiles(seq.Nq) * Tiles(seq.Nk);
  cost.bytes += tiles * (3 * static_cast<int64_t>(sizeof(TileMask)) + 256);
  cost.seconds += 1e-6 * static_cast<double>(tiles);
  return cost;
}

// A draw lists different keys, as many as there are. What include_self adds is an estimate.
double ListedPairs(const PatternSeq& seq, const KeyLists& lists) {
  const auto [nq, nk] = seq.lengths;
  const int64_t most = std::min(lists.R, nk);
  double pairs = static_cast<double>(nq) * static_cast<double>(most);
  if (lists.keys.empty() && seq.causal) pairs = SteppedSum(nq, seq.offset, 1, 1, most);
  if (!lists.include_self || nk == 0) return pairs;
  // Queries whose own position is a key.
  const int64_t first = std::clamp<int64_t>(seq.offset, 0, nk);
  const auto own = static_cast<double>(std::clamp(seq.offset + nq, first, nk) - first);
  return pairs + own * static_cast<double>(nk - most) / static_cast<double>(nk);
}

}  // namespace

PatternSource ListSource(const PatternSeq& seq, KeyLists lists) {
  const auto [nq, nk] = seq.lengths;
  const int64_t longest = lists.R + (lists.include_self ? 1 : 0);
  // Tiles show a pair once.
  const bool is_listed = lists.multiset || longest * seq.tuning.device.pairs_a_listed < seq.Nk;
  PatternSource source{.Nq = seq.Nq,
                       .Nk = seq.Nk,
                       .visible_pairs = ListedPairs(seq, lists),
                       .knows_pairs = lists.keys.empty() && !lists.include_self,
                       .is_counted = false,
                       .is_listed = is_listed,
                       .longest_list = is_listed ? longest : 0};
  source.visible_tiles =
      is_listed ? 0 : static_cast<double>(Tiles(nq)) * static_cast<double>(Tiles(nk));
  source.host = CostOfLists(seq, longest, is_listed);
  ListParameters parameters{seq, std::move(lists), is_listed};
  source.key = KeyOf("lists", parameters);
  source.build = [shared = std::make_shared<const ListParameters>(std::move(parameters))] {
    return Build(*shared);
  };
  return source;
}

}  // namespace attnd
