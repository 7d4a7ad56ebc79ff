// Builds patterns from predicates, or tile by tile.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/pattern/constants.h"
#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// The most that a pattern stores for each row of tiles. The rest is computed where it is needed, so
// that no data of a request can make a pattern larger.
struct StoredLimits {
  int64_t runs = 64;
  int64_t masks = 8;      // that differ from all stored before
  int64_t looks = 512;    // tiles that are examined one by one
  int64_t terms = 256;    // of the whole pattern
  int64_t shapes = 1024;  // of the whole pattern: masks that are stored by TileShape
};

// Collects the visible tiles of a pattern row by row, then builds both directions.
// Cost: O(visible runs + examined tiles), within StoredLimits for each row of tiles.
class PatternBuilder {
 public:
  PatternBuilder(int64_t Nq, int64_t Nk, const StoredLimits& limits = {});
  ~PatternBuilder();

  // REQUIRES: 0 <= q_tile < ceil(Nq/64), key tiles in range, each tile added at most once. Tiles
  // may come in any order. Masks are clipped to Nq and Nk: one that shows all remaining
  // pairs becomes kFull, one that shows none is dropped. `terms`: a result of AddTerms.
  void AddFull(int64_t q_tile, int64_t first_key_tile, int64_t count,
               int32_t terms = Run::kNoTerms);
  void AddMasked(int64_t q_tile, int64_t key_tile, const TileMask& mask,
                 int32_t terms = Run::kNoTerms);
  // The index of these terms in Pattern::terms; kNoTerms if they add nothing.
  int32_t AddTerms(TileTerms terms);

  // The pairs of a predicate; `constants` may be null. REQUIRES: nothing else is added before or
  // after.
  void Add(Visible visible, ConstantsPtr constants = nullptr);

  Pattern Build() &&;

 private:
  struct Entry {
    int64_t q_tile;
    Run run;
  };
  template <class Value>
  struct Interned;
  struct RowWalk;
  void Add(int64_t q_tile, int64_t first_key_tile, int64_t count, int32_t mask, int32_t terms);
  void AddSpan(const TileSpan& span, RowWalk* walk);
  int32_t MaskOf(int64_t key_tile, RowWalk* walk);
  int32_t TermsOf(int64_t q_tile, int64_t key_tile);
  void Transpose(Pattern* pattern) const;
  // Clips a mask. Returns its index in Pattern::masks, Run::kFull or kHidden.
  int32_t Intern(int64_t q_tile, int64_t key_tile, TileMask mask);
  int64_t QueriesOf(int64_t q_tile) const;
  int64_t KeysOf(int64_t key_tile) const;

  int64_t Nq_, Nk_;
  const StoredLimits limits_;
  Visible visible_;         // of Add
  ConstantsPtr constants_;  // likewise
  std::vector<Entry> entries_;
  std::unique_ptr<Interned<TileMask>> masks_;
  std::unique_ptr<Interned<TileTerms>> terms_;
};

}  // namespace attnd
