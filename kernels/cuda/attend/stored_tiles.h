// The tiles of a pattern with nothing left to compute.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device/pattern.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

// Refers to the pattern, which must outlive it. Incomplete where the stream was stopped.
class StoredTiles {
 public:
  StoredTiles(const Pattern& pattern, Stream& stream);
  StoredTiles(const StoredTiles&) = delete;
  StoredTiles& operator=(const StoredTiles&) = delete;

  const TileRows& by_query() const { return has_own_ ? by_query_ : pattern_.by_query; }
  const TileRows& by_key() const { return has_own_ ? by_key_ : pattern_.by_key; }
  const std::vector<TileMask>& masks() const { return has_own_ ? masks_ : pattern_.masks; }
  const std::vector<TileTerms>& terms() const { return has_own_ ? terms_ : pattern_.terms; }
  // Visible pairs of tiles whose masks are computed.
  int64_t computed_pairs() const { return computed_pairs_; }

 private:
  const Pattern& pattern_;
  bool has_own_ = false;
  TileRows by_query_, by_key_;
  std::vector<TileMask> masks_;
  std::vector<TileTerms> terms_;
  int64_t computed_pairs_ = 0;
};

// The same of queries and keys of slots below nq and nk, computed again.
int64_t CountComputedPairs(const Pattern& pattern, int64_t nq, int64_t nk);

}  // namespace attnd::cuda
