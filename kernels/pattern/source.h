// Patterns before they are built: enough to plan, and to find them in the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/pattern/base/key.h"
#include "kernels/pattern/base/window.h"
#include "kernels/pattern/cost.h"
#include "kernels/pattern/spec.h"

namespace attnd {

// A pattern before it is built. Making one is cheap: it takes time proportional to Nq or Nk only
// where data decide. The counts are for the lengths of one sequence; a pattern without a gather
// order covers all of Nq x Nk, so that sequences of different lengths share it.
struct PatternSource {
  int64_t Nq = 0, Nk = 0;    // rows of q and k
  std::string key;           // equal keys mean equal patterns; holds Nq, Nk and every parameter
  double visible_pairs = 0;  // exact if knows_pairs
  double visible_tiles = 0;  // about, rather more than fewer, for predictions and for the memory
                             // of a device that stores tiles
  bool knows_pairs = true;   // false: values that a plan does not read decide, or draws
  bool is_counted = true;    // false: tiles are estimates; CountsOf counts the built pattern
  bool gathers = false;      // it may have a gather order
  bool is_listed = false;    // Pattern::is_listed
  int64_t longest_list = 0;  // then: the most keys that a query lists
  int64_t term_bytes = 0;    // PatternCounts::term_bytes
  int64_t patterns = 1;      // in a plan: it stands for so many, each with its own key
  double most_tiles = 0;     // in a plan: that may be visible, if more than visible_tiles
  double mask_seconds = 0;   // about, in every pass over the pattern: masks that are not stored
  HostCost host;             // bytes: an upper bound, with what the source holds; seconds: about
  std::function<PatternSpec()> spec;  // empty: every pair is visible
  std::function<Pattern()> build;     // empty: no pattern is needed
};

// The disjoint parts of a pattern, which Ops::Attend merges.
//
// A pattern with a local and a global half (Half) takes the first of these forms that it can:
// - the halves read different tensors (k_global): one call of attend for each, merged;
// - both halves fit one order of rows: one source whose spec joins them by Or. One pass over the
//   keys, nothing to merge (etc, bigbird, longformer in natural order);
// - the keys or rows of the global half are few: they stand once more behind the others, joined by
//   Beside and Over, where they fill tiles of their own (fixed, longformer gathered);
// - else a part for each, in an order of its own (strided, axial).
using PatternParts = std::vector<PatternSource>;

// A spec with its key, which need not hold Nq and Nk.
struct KeyedSpec {
  std::string text;
  std::function<PatternSpec()> spec;
  const std::string& key() const { return text; }
};
PatternSource SourceOf(int64_t Nq, int64_t Nk, KeyedSpec keyed, const PatternCounts& counts);

// A pattern that depends on Nq, Nk and `parameters` alone: `spec` cannot read anything else, and
// the key holds all of them (base/key.h) after `name`, which must be unique to the source. The
// caller sets `gathers`.
template <class Parameters>
PatternSource SourceOf(int64_t Nq, int64_t Nk, absl::string_view name, Parameters parameters,
                       const PatternCounts& counts,
                       std::type_identity_t<PatternSpec (*)(const Parameters&)> spec) {
  std::string key = KeyOf(name, parameters);
  // Copies of a source share what it holds: ids, lists, orders.
  const auto shared = std::make_shared<const Parameters>(std::move(parameters));
  return SourceOf(Nq, Nk, KeyedSpec{std::move(key), [shared, spec] { return spec(*shared); }},
                  counts);
}
// A pattern in natural order. `visible` null: every pair.
PatternSource SourceOf(int64_t Nq, int64_t Nk, Visible visible, const PatternCounts& counts);
// The pairs of `source` whose segment ids are equal and >= 0; ids of query and key rows [Nq], [Nk].
// Rows of a second source (from Nk on) belong to every segment. The counts stay those of `source`,
// which bound the result. On a dry stream there are no ids: methods use `source` as it is.
PatternSource WithinSegments(const PatternSource& source, std::span<const int32_t> ids_q,
                             std::span<const int32_t> ids_k);

}  // namespace attnd
