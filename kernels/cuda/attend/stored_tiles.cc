#include "kernels/cuda/attend/stored_tiles.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace attnd::cuda {
namespace {

// Things that are equal byte for byte, each once.
class Known {
 public:
  // The index of `bytes`; `next` where they are new.
  int32_t IndexOf(std::string_view bytes, int32_t next) {
    const auto range = places_.equal_range(std::hash<std::string_view>()(bytes));
    for (auto at = range.first; at != range.second; ++at) {
      if (at->second.first == bytes) return at->second.second;
    }
    places_.emplace(std::hash<std::string_view>()(bytes), std::pair(std::string(bytes), next));
    return next;
  }

 private:
  std::unordered_multimap<size_t, std::pair<std::string, int32_t>> places_;
};

template <class T>
std::string_view Bytes(const T* values, size_t count) {
  return {reinterpret_cast<const char*>(values), count * sizeof(T)};
}

void Append(std::vector<Run>* runs, size_t begin, int32_t tile, int32_t mask, int32_t terms) {
  if (runs->size() > begin) {
    Run& last = runs->back();
    if (last.first + last.count == tile && last.mask == mask && last.terms == terms) {
      ++last.count;
      return;
    }
  }
  runs->push_back({tile, 1, mask, terms});
}

bool AnyComputed(const TileRows& rows) {
  return std::any_of(rows.runs.begin(), rows.runs.end(),
                     [](const Run& run) { return run.is_computed(); });
}

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

StoredTiles::StoredTiles(const Pattern& pattern, Stream& stream)
    : pattern_(pattern), has_own_(AnyComputed(pattern.by_query)) {
  if (!has_own_) return;
  masks_ = pattern.masks;
  terms_ = pattern.terms;
  Known masks, known_terms;
  const auto keep_terms = [&](TileTerms* terms) {
    if (terms->bias.empty() && terms->labels.empty()) return Run::kNoTerms;
    std::string bytes(Bytes(terms->bias.data(), terms->bias.size()));
    bytes += Bytes(terms->labels.data(), terms->labels.size());
    const auto next = static_cast<int32_t>(terms_.size());
    const int32_t index = known_terms.IndexOf(bytes, next);
    if (index == next) terms_.push_back(*terms);
    return index;
  };
  const auto keep_mask = [&](const TileMask& mask) {
    const auto next = static_cast<int32_t>(masks_.size());
    const int32_t index = masks.IndexOf(Bytes(mask.data(), mask.size()), next);
    if (index == next) masks_.push_back(mask);
    return index;
  };
  std::vector<std::vector<Run>> by_key(static_cast<size_t>(pattern.by_key.rows()));
  TileMask mask;
  TileTerms terms;
  by_query_.begin.push_back(0);
  for (int64_t row = 0; row < pattern.by_query.rows(); ++row) {
    const size_t begin = by_query_.runs.size();
    for (int64_t r = pattern.by_query.begin[row]; r < pattern.by_query.begin[row + 1]; ++r) {
      if (stream.stopped()) return;
      const Run& run = pattern.by_query.runs[r];
      for (int32_t tile = run.first; tile < run.first + run.count; ++tile) {
        int32_t mask_index = run.mask, terms_index = run.terms;
        if (run.mask == Run::kComputed) {
          const TileSight sight = ComputeMask(pattern, row, tile, &mask);
          if (sight == TileSight::kNothing) continue;
          computed_pairs_ += CountPairs(pattern, mask, row, tile, pattern.Nq, pattern.Nk);
          mask_index = sight == TileSight::kEverything ? Run::kFull : keep_mask(mask);
        }
        if (run.terms == Run::kComputed) {
          ComputeTerms(pattern, row, tile, &terms);
          terms_index = keep_terms(&terms);
        }
        Append(&by_query_.runs, begin, tile, mask_index, terms_index);
        if (tile < static_cast<int32_t>(by_key.size())) {
          Append(&by_key[tile], 0, static_cast<int32_t>(row), mask_index, terms_index);
        }
      }
    }
    by_query_.begin.push_back(static_cast<int64_t>(by_query_.runs.size()));
  }
  by_key_.begin.push_back(0);
  for (const std::vector<Run>& runs : by_key) {
    by_key_.runs.insert(by_key_.runs.end(), runs.begin(), runs.end());
    by_key_.begin.push_back(static_cast<int64_t>(by_key_.runs.size()));
  }
}

int64_t CountComputedPairs(const Pattern& pattern, int64_t nq, int64_t nk) {
  int64_t pairs = 0;
  TileMask mask;
  for (int64_t row = 0; row < pattern.by_query.rows() && row * kTile < nq; ++row) {
    for (int64_t r = pattern.by_query.begin[row]; r < pattern.by_query.begin[row + 1]; ++r) {
      const Run& run = pattern.by_query.runs[r];
      if (run.mask != Run::kComputed) continue;
      for (int64_t tile = run.first; tile < run.first + run.count && tile * kTile < nk; ++tile) {
        if (ComputeMask(pattern, row, tile, &mask) == TileSight::kNothing) continue;
        pairs += CountPairs(pattern, mask, row, tile, nq, nk);
      }
    }
  }
  return pairs;
}

}  // namespace attnd::cuda
