#include "kernels/cuda/attend/stored_tiles.h"

#include <algorithm>
#include <bit>

#include "kernels/core/run_control.h"

namespace attnd::cuda {
namespace {

// Tiles between two check points.
constexpr int64_t kCheckedTiles = 32;

void Append(std::vector<Run>* runs, size_t begin, const Run& next) {
  if (runs->size() > begin) {
    Run& last = runs->back();
    if (last.first + last.count == next.first && last.mask == next.mask &&
        last.terms == next.terms) {
      last.count += next.count;
      return;
    }
  }
  runs->push_back(next);
}

bool Gathers(const Pattern& pattern) {
  return !pattern.query_rows.empty() || !pattern.key_rows.empty();
}

int64_t Tiles(int64_t slots) { return (slots + kTile - 1) / kTile; }

// Bits of the queries of a tile that are rows, below nq.
uint64_t QueriesOf(const Pattern& pattern, int64_t q_tile, int64_t nq) {
  uint64_t queries = LowBits(std::clamp<int64_t>(nq - q_tile * kTile, 0, kTile));
  for (int64_t q = 0; !pattern.query_rows.empty() && q < kTile; ++q) {
    const int64_t slot = q_tile * kTile + q;
    if (slot < nq && pattern.query_rows[slot] < 0) queries &= ~(uint64_t{1} << q);
  }
  return queries;
}

// Pairs of the mask of a tile with queries that are rows and keys that are, below nk.
int64_t CountPairs(const Pattern& pattern, const TileMask& mask, uint64_t queries, int64_t key_tile,
                   int64_t nk) {
  int64_t pairs = 0;
  for (int64_t k = 0; k < std::min(kTile, nk - key_tile * kTile); ++k) {
    if (!pattern.key_rows.empty() && pattern.key_rows[key_tile * kTile + k] < 0) continue;
    pairs += std::popcount(mask[k] & queries);
  }
  return pairs;
}

// Of key tiles, slots that are rows, below nk.
int64_t CountKeys(const Pattern& pattern, const TileSpan& span, int64_t nk) {
  const int64_t first = span.first * kTile, last = std::min(span.last * kTile, nk);
  if (pattern.key_rows.empty()) return std::max<int64_t>(last - first, 0);
  return std::count_if(pattern.key_rows.begin() + first, pattern.key_rows.begin() + last,
                       [](int32_t row) { return row >= 0; });
}

}  // namespace

StoredTiles::StoredTiles(const Pattern& pattern, int64_t nq, int64_t nk)
    : pattern_(pattern),
      nq_(Gathers(pattern) ? pattern.Nq : std::min(nq, pattern.Nq)),
      nk_(Gathers(pattern) ? pattern.Nk : std::min(nk, pattern.Nk)),
      has_own_(IsComputed(pattern)) {
  if (!has_own_) return;
  const int64_t rows = std::min(pattern.by_query.rows(), Tiles(nq_)), columns = Tiles(nk_);
  for (int64_t row = 0; row < rows && !CheckPoint(); ++row) {
    for (int64_t r = pattern.by_query.begin[row]; r < pattern.by_query.begin[row + 1]; ++r) {
      const Run& run = pattern.by_query.runs[r];
      if (!run.is_computed() || run.first >= columns) continue;
      FindSpans(row, run);
      for (const TileSpan& span : spans_) {
        if (!span.full) computed_masks_ += span.last - span.first;
        if (run.terms == Run::kComputed) computed_terms_ += span.last - span.first;
      }
    }
  }
}

void StoredTiles::FindSpans(int64_t row, const Run& run) {
  const int64_t last = std::min<int64_t>(int64_t{run.first} + run.count, Tiles(nk_));
  spans_.clear();
  if (run.mask == Run::kComputed) {
    pattern_.computed_masks->Spans(row, run.first, last, &spans_);
  } else {
    spans_.push_back({run.first, last, true});
  }
}

bool StoredTiles::Compute(TileStore* store) {
  const int64_t rows = std::min(pattern_.by_query.rows(), Tiles(nq_));
  by_query_.begin.reserve(static_cast<size_t>(rows) + 1);
  by_query_.begin.push_back(0);
  for (int64_t row = 0; row < rows; ++row) {
    if (CheckPoint()) return false;
    if (!ComputeRow(row, store)) return false;
    by_query_.begin.push_back(static_cast<int64_t>(by_query_.runs.size()));
  }
  return true;
}

bool StoredTiles::ComputeRow(int64_t row, TileStore* store) {
  const size_t begin = by_query_.runs.size();
  const int64_t columns = Tiles(nk_);
  for (int64_t r = pattern_.by_query.begin[row]; r < pattern_.by_query.begin[row + 1]; ++r) {
    Run run = pattern_.by_query.runs[r];
    if (run.first >= columns) break;
    if (!run.is_computed()) {
      run.count = static_cast<int32_t>(std::min<int64_t>(run.count, columns - run.first));
      by_query_.runs.push_back(run);
      continue;
    }
    FindSpans(row, run);
    for (const TileSpan& span : spans_) {
      if (!ComputeSpan(row, begin, run, span, store)) return false;
    }
  }
  return true;
}

bool StoredTiles::ComputeSpan(int64_t row, size_t begin, const Run& run, const TileSpan& span,
                              TileStore* store) {
  const int32_t full = run.mask == Run::kComputed ? Run::kFull : run.mask;
  const uint64_t queries = run.mask == Run::kComputed ? QueriesOf(pattern_, row, nq_) : 0;
  if (span.full) computed_pairs_ += std::popcount(queries) * CountKeys(pattern_, span, nk_);
  if (span.full && run.terms != Run::kComputed) {
    Append(&by_query_.runs, begin,
           {static_cast<int32_t>(span.first), static_cast<int32_t>(span.last - span.first), full,
            run.terms});
    return true;
  }
  TileMask mask;
  TileTerms terms;
  for (int64_t tile = span.first; tile < span.last; ++tile) {
    if (looked_at_++ % kCheckedTiles == 0 && CheckPoint()) return false;
    Run one = {static_cast<int32_t>(tile), 1, full, run.terms};
    if (!span.full) {
      const TileSight sight = ComputeMask(pattern_, row, tile, &mask);
      if (sight == TileSight::kNothing) continue;
      if (sight == TileSight::kSome) one.mask = store->AddMask(mask);
      computed_pairs_ += CountPairs(pattern_, mask, queries, tile, nk_);
    }
    if (run.terms == Run::kComputed) {
      ComputeTerms(pattern_, row, tile, &terms);
      const bool adds = !terms.bias.empty() || !terms.labels.empty();
      one.terms = adds ? store->AddTerms(terms) : Run::kNoTerms;
    }
    if (one.mask == TileStore::kFailed || one.terms == TileStore::kFailed) return false;
    Append(&by_query_.runs, begin, one);
  }
  return true;
}

// Runs of key tiles, from counts of the tiles of each: without lists that grow.
bool StoredTiles::Transpose(int64_t most_runs) {
  const int64_t columns = std::min(pattern_.by_key.rows(), Tiles(nk_));
  std::vector<int64_t> end(static_cast<size_t>(columns) + 1, 0);
  const auto for_each_tile = [&](const auto& f) {
    for (int64_t row = 0; row + 1 < static_cast<int64_t>(by_query_.begin.size()); ++row) {
      if (CheckPoint()) return;
      for (int64_t r = by_query_.begin[row]; r < by_query_.begin[row + 1]; ++r) {
        const Run& run = by_query_.runs[r];
        const int64_t last = std::min<int64_t>(run.first + run.count, columns);
        for (int64_t tile = run.first; tile < last; ++tile) {
          f(tile, Run{static_cast<int32_t>(row), 1, run.mask, run.terms});
        }
      }
    }
  };
  // Runs that continue the one before in their column are counted once.
  std::vector<Run> last(static_cast<size_t>(columns));
  const auto continues = [&](int64_t tile, const Run& one) {
    const Run& before = last[tile];
    return before.count > 0 && before.first + 1 == one.first && before.mask == one.mask &&
           before.terms == one.terms;
  };
  for_each_tile([&](int64_t tile, const Run& one) {
    if (!continues(tile, one)) ++end[tile + 1];
    last[tile] = one;
  });
  for (int64_t tile = 0; tile < columns; ++tile) end[tile + 1] += end[tile];
  if (CheckPoint() || end.back() > most_runs) return false;
  by_key_.begin = end;
  by_key_.runs.resize(static_cast<size_t>(end.back()));
  std::ranges::fill(last, Run{});
  for_each_tile([&](int64_t tile, const Run& one) {
    if (continues(tile, one)) {
      ++by_key_.runs[end[tile] - 1].count;
    } else {
      by_key_.runs[end[tile]++] = one;
    }
    last[tile] = one;
  });
  return !CheckPoint();
}

}  // namespace attnd::cuda
