// Sparsity patterns before they are data: builder, sources, cache.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/device/pattern.h"
#include "kernels/pattern/key.h"

namespace attnd {

class Predicate;  // predicates/predicate.h
class Constants;  // constants.h
// Combined by And, Or, Not: predicates/predicate.h.
using Visible = std::shared_ptr<const Predicate>;
using ConstantsPtr = std::shared_ptr<const Constants>;

struct PatternPlan;  // plan.h
struct TileSpan;     // predicates/predicate.h

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

  // Every pair with lo <= j - i <= hi. kUnbounded (either side) means no limit.
  static constexpr int64_t kUnbounded = INT64_MAX;
  void AddBand(int64_t lo, int64_t hi);

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

// Queries [0, nq) and keys [0, nk) of a row that is shorter than its tensors.
struct Lengths {
  int64_t nq = 0, nk = 0;
};

struct PatternCounts {
  double pairs = 0, tiles = 0;
  // What the pattern keeps, at most; kMany: as StoredLimits allows.
  static constexpr int64_t kMany = INT64_MAX;
  int64_t runs_of_row = kMany, masks = kMany;
  // Of the source and of its predicates, for each query and key: ids, orders, coordinates.
  int64_t slot_bytes = 64;
};
// Bytes and seconds of building and keeping a pattern of Nq x Nk slots with these counts.
struct HostCost {
  int64_t bytes = 0;
  double seconds = 0;
};
HostCost CostOf(int64_t Nq, int64_t Nk, const PatternCounts& counts);

// A pattern before it is built: enough to plan and to find it in the cache. Making one is cheap (no
// work proportional to Nq or Nk unless it follows from data). The counts are those of one row's
// lengths; a pattern without a gather order covers all of Nq x Nk, so that rows of different
// lengths share it.
struct PatternSource {
  int64_t Nq = 0, Nk = 0;    // rows of q and k
  std::string key;           // equal keys mean equal patterns; holds Nq, Nk and every parameter
  double visible_pairs = 0;  // exact if is_counted
  double visible_tiles = 0;  // about: exact or a little more, for predictions
  bool is_counted = true;    // false: about, or a bound; CountsOf tells once the pattern is built
  bool gathers = false;      // it may have a gather order
  bool is_listed = false;    // Pattern::is_listed
  HostCost host;             // bytes: an upper bound, with what the source holds; seconds: about
  std::function<PatternPlan()> plan;  // what it is made of; empty: every pair is visible
  std::function<Pattern()> build;     // of that plan; empty: no pattern is needed
};

// The same from a plan that carries its key, which need not tell Nq and Nk.
struct KeyedPlan {
  std::string text;
  std::function<PatternPlan()> plan;
  const std::string& key() const { return text; }
};
PatternSource SourceOf(int64_t Nq, int64_t Nk, KeyedPlan keyed, const PatternCounts& counts);

// A pattern that follows from Nq, Nk and `parameters` alone: `plan` cannot read anything else, and
// the key is made of all of them (key.h), after `name`, which no other source has. `gathers` is
// left to the caller.
template <class Parameters>
PatternSource SourceOf(int64_t Nq, int64_t Nk, absl::string_view name, Parameters parameters,
                       const PatternCounts& counts,
                       std::type_identity_t<PatternPlan (*)(const Parameters&)> plan) {
  std::string key = KeyOf(name, parameters);
  // Copies of a source share what it holds: ids, lists, orders.
  const auto shared = std::make_shared<const Parameters>(std::move(parameters));
  return SourceOf(Nq, Nk, KeyedPlan{std::move(key), [shared, plan] { return plan(*shared); }},
                  counts);
}
// A pattern in natural order. `visible` null: every pair.
PatternSource SourceOf(int64_t Nq, int64_t Nk, Visible visible, const PatternCounts& counts);
// What `source` shows within segments: ids of query and key rows [Nq], [Nk], visible if equal and
// >= 0. Rows of a second source (from Nk on) are of every segment. The counts are those of
// `source`, as bounds. On a dry stream, where data are missing, a method passes `source` on as it
// is.
PatternSource WithinSegments(const PatternSource& source, std::span<const int32_t> ids_q,
                             std::span<const int32_t> ids_k);
// Pairs and tiles of a built pattern, of a row's lengths; the lengths of a pattern with a gather
// order or lists are those that it was built for.
PatternCounts CountsOf(const Pattern& pattern, const Lengths& lengths);

// {lo <= j - i <= hi} over Nq queries and Nk keys; kUnbounded as in AddBand.
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi);
PatternSource BandSource(int64_t Nq, int64_t Nk, int64_t lo, int64_t hi, const Lengths& lengths);

// Visible pairs of a band, exact, in constant time.
double BandPairs(const Lengths& lengths, int64_t lo, int64_t hi);

// With p = i + offset, floor division and W = block, query i sees the keys
// floor(p/W) W - before <= j < (floor(p/W) + 1) W + after and, if causal, j <= p: windows that move
// by blocks or (W = 1) by keys.
struct Window {
  int64_t block = 1;              // >= 1
  int64_t before = 0, after = 0;  // >= 0; with W = 1 of any sign
  int64_t offset = 0;
  bool causal = false;
};
PatternSource WindowSource(int64_t Nq, int64_t Nk, const Window& window, const Lengths& lengths);

// Query i sees floor(p/W) - look_backward <= floor(j/W) <= floor(p/W) + look_forward.
struct BlockBand {
  int64_t block = 1;                            // >= 1
  int64_t look_backward = 0, look_forward = 0;  // >= 0
  int64_t offset = 0;
  bool causal = false;
};
Window WindowOf(const BlockBand& band);
PatternSource BlockBandSource(int64_t Nq, int64_t Nk, const BlockBand& band,
                              const Lengths& lengths);

// Packed sequences: cu_q, cu_k [S+1], from 0, non-decreasing. Segment s holds the queries [cu_q[s],
// cu_q[s+1]) and the keys likewise. A query sees what `window` shows inside its own segment, in
// positions counted from the segment's start, with len_k(s) - len_q(s) added to the offset. Exact
// counts in O(S).
PatternSource PackedSource(std::span<const int32_t> cu_q, std::span<const int32_t> cu_k,
                           const Window& window);

// What a pattern keeps in memory.
int64_t BytesOf(const Pattern& pattern);

// Patterns by key, least recently used out first, bounded in bytes. Thread safe; building happens
// outside the lock.
class PatternCache {
 public:
  explicit PatternCache(int64_t max_bytes = int64_t{64} << 20);
  ~PatternCache();
  std::shared_ptr<const Pattern> Get(const PatternSource& source);

 private:
  struct Impl;
  const int64_t max_bytes_;
  Mutex mu_;
  std::unique_ptr<Impl> impl_;  // guarded by mu_
};

}  // namespace attnd
