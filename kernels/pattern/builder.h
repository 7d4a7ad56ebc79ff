// Collects tiles and what predicates show into a pattern.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/pattern/constants.h"
#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// What a pattern keeps of each row of tiles; what is beyond is computed where it is needed, so that
// no data a caller sends can make a pattern larger than this.
struct StoredLimits {
  int64_t runs = 64;
  int64_t masks = 8;      // that no tile before had
  int64_t looks = 512;    // tiles that are looked at one by one
  int64_t terms = 256;    // of the whole pattern
  int64_t shapes = 1024;  // of the whole pattern: masks that are found by TileShape
};

// Collects the visible tiles of a pattern row by row, then builds both directions.
// Cost: O(visible runs + tiles that are looked at), within StoredLimits for each row of tiles.
class PatternBuilder {
 public:
  PatternBuilder(int64_t Nq, int64_t Nk, const StoredLimits& limits = {});
  ~PatternBuilder();

  // REQUIRES: 0 <= q_tile < ceil(Nq/64), key tiles in range, each tile added at most once. Tiles
  // may come in any order. A mask is clipped to Nq and Nk; one that shows every pair that is left
  // becomes kFull, one that shows none vanishes. `terms`: a result of AddTerms.
  void AddFull(int64_t q_tile, int64_t first_key_tile, int64_t count,
               int32_t terms = Run::kNoTerms);
  void AddMasked(int64_t q_tile, int64_t key_tile, const TileMask& mask,
                 int32_t terms = Run::kNoTerms);
  // The place of equal terms among the pattern's; kNoTerms for terms that add nothing.
  int32_t AddTerms(TileTerms terms);

  // What a predicate shows; `constants` may be null. REQUIRES: nothing else is added before or
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
  // The place of a mask, clipped here, Run::kFull, or kHidden.
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
