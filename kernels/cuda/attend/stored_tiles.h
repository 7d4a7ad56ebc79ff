// The tiles of a pattern with nothing left to compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/device/pattern.h"

namespace attnd::cuda {

// Takes masks and terms one after the other; returns their index.
class TileStore {
 public:
  static constexpr int32_t kFailed = INT32_MIN;
  virtual ~TileStore() = default;
  virtual int32_t AddMask(const TileMask& mask) = 0;
  virtual int32_t AddTerms(const TileTerms& terms) = 0;
};

// Whether some tiles are computed: masks or terms.
inline bool IsComputed(const Pattern& pattern) {
  return pattern.computed_masks != nullptr || pattern.computed_terms != nullptr;
}

// Of a pattern in natural order only the tiles of queries below nq and keys below nk; of one that
// gathers, all. The pattern must outlive it.
class StoredTiles {
 public:
  StoredTiles(const Pattern& pattern, int64_t nq, int64_t nk);
  StoredTiles(const StoredTiles&) = delete;
  StoredTiles& operator=(const StoredTiles&) = delete;

  // Tiles whose masks, whose terms may have to be computed.
  int64_t computed_masks() const { return computed_masks_; }
  int64_t computed_terms() const { return computed_terms_; }
  // Fills in by_query: what is computed goes to `store`, tiles that show nothing are left out. Some
  // microseconds a tile of computed_masks or computed_terms. False: the run was stopped, or the
  // store has failed. Not where nothing is computed.
  bool Compute(TileStore* store);
  // After it: fills in by_key. False: the run was stopped, or there would be more than `most_runs`.
  bool Transpose(int64_t most_runs);

  const TileRows& by_query() const { return has_own_ ? by_query_ : pattern_.by_query; }
  const TileRows& by_key() const { return has_own_ ? by_key_ : pattern_.by_key; }
  // Visible pairs of tiles whose masks are computed.
  int64_t computed_pairs() const { return computed_pairs_; }

 private:
  bool ComputeRow(int64_t row, TileStore* store);
  // `begin`: the first run of the row in by_query_.
  bool ComputeSpan(int64_t row, size_t begin, const Run& run, const TileSpan& span,
                   TileStore* store);
  // What row `row` sees of a run that is computed, in spans_: what lies between is neither looked
  // at nor counted.
  void FindSpans(int64_t row, const Run& run);

  const Pattern& pattern_;
  int64_t nq_, nk_;  // slots
  bool has_own_ = false;
  TileRows by_query_, by_key_;
  std::vector<TileSpan> spans_;
  int64_t looked_at_ = 0;  // tiles
  int64_t computed_masks_ = 0, computed_terms_ = 0, computed_pairs_ = 0;
};

}  // namespace attnd::cuda
