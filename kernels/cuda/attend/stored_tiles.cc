#include "kernels/cuda/attend/stored_tiles.h"

#include <algorithm>
#include <bit>

#include "kernels/core/run_control.h"

namespace attnd::cuda {
namespace {

// Tiles between two check points.
constexpr int64_t kCheckedTiles = 32;

void Append(std::vector<Run>* runs, size_t begin, const Run& tile) {
  if (runs->size() > begin) {
    Run& last = runs->back();
    if (last.first + last.count == tile.first && last.mask == tile.mask &&
        last.terms == tile.terms) {
      ++last.count;
      return;
    }
  }
  runs->push_back(tile);
}

bool Gathers(const Pattern& pattern) {
  return !pattern.query_rows.empty() || !pattern.key_rows.empty();
}

int64_t Tiles(int64_t slots) { return (slots + kTile - 1) / kTile; }

// Pairs of the mask of a query tile with rows, below nq, and of a key tile with rows, below nk.
int64_t CountPairs(const Pattern& pattern, const TileMask& mask, int64_t q_tile, int64_t key_tile,
                   int64_t nq, int64_t nk) {
  uint64_t queries = LowBits(std::clamp<int64_t>(nq - q_tile * kTile, 0, kTile));
  for (int64_t q = 0; !pattern.query_rows.empty() && q < kTile; ++q) {
    const int64_t slot = q_tile * kTile + q;
    if (slot < nq && pattern.query_rows[slot] < 0) queries &= ~(uint64_t{1} << q);
  }
  int64_t pairs = 0;
  for (int64_t k = 0; k < std::min(kTile, nk - key_tile * kTile); ++k) {
    if (!pattern.key_rows.empty() && pattern.key_rows[key_tile * kTile + k] < 0) continue;
    pairs += std::popcount(mask[k] & queries);
  }
  return pairs;
}

}  // namespace

StoredTiles::StoredTiles(const Pattern& pattern, int64_t nq, int64_t nk)
    : pattern_(pattern),
      nq_(Gathers(pattern) ? pattern.Nq : std::min(nq, pattern.Nq)),
      nk_(Gathers(pattern) ? pattern.Nk : std::min(nk, pattern.Nk)),
      has_own_(IsComputed(pattern)) {
  if (!has_own_) return;
  const int64_t rows = std::min(pattern.by_query.rows(), Tiles(nq_)), columns = Tiles(nk_);
  const std::vector<int64_t>& begin = pattern.by_query.begin;
  for (int64_t r = 0; rows > 0 && r < begin[rows]; ++r) {
    const Run& run = pattern.by_query.runs[r];
    const int64_t count = std::clamp<int64_t>(columns - run.first, 0, run.count);
    if (run.mask == Run::kComputed) computed_masks_ += count;
    if (run.terms == Run::kComputed) computed_terms_ += count;
  }
}

bool StoredTiles::Compute(TileStore* store) {
  const int64_t rows = std::min(pattern_.by_query.rows(), Tiles(nq_));
  by_query_.begin.reserve(static_cast<size_t>(rows) + 1);
  by_query_.begin.push_back(0);
  for (int64_t row = 0; row < rows; ++row) {
    if (!ComputeRow(row, store)) return false;
    by_query_.begin.push_back(static_cast<int64_t>(by_query_.runs.size()));
  }
  return true;
}

bool StoredTiles::ComputeRow(int64_t row, TileStore* store) {
  const size_t begin = by_query_.runs.size();
  const int64_t columns = Tiles(nk_);
  TileMask mask;
  TileTerms terms;
  int64_t computed = 0;
  for (int64_t r = pattern_.by_query.begin[row]; r < pattern_.by_query.begin[row + 1]; ++r) {
    Run run = pattern_.by_query.runs[r];
    if (run.first >= columns) break;
    run.count = static_cast<int32_t>(std::min<int64_t>(run.count, columns - run.first));
    if (!run.is_computed()) {
      by_query_.runs.push_back(run);
      continue;
    }
    for (int32_t tile = run.first; tile < run.first + run.count; ++tile) {
      if (computed++ % kCheckedTiles == 0 && CheckPoint()) return false;
      Run one = {tile, 1, run.mask, run.terms};
      if (run.mask == Run::kComputed) {
        const TileSight sight = ComputeMask(pattern_, row, tile, &mask);
        if (sight == TileSight::kNothing) continue;
        computed_pairs_ += CountPairs(pattern_, mask, row, tile, nq_, nk_);
        one.mask = sight == TileSight::kEverything ? Run::kFull : store->AddMask(mask);
      }
      if (run.terms == Run::kComputed) {
        ComputeTerms(pattern_, row, tile, &terms);
        const bool adds = !terms.bias.empty() || !terms.labels.empty();
        one.terms = adds ? store->AddTerms(terms) : Run::kNoTerms;
      }
      if (one.mask == TileStore::kFailed || one.terms == TileStore::kFailed) return false;
      Append(&by_query_.runs, begin, one);
    }
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
