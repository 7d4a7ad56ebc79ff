// Predicates over pairs of slots: what a pattern shows, said in a few values that combine by And,
// Or and Not. A predicate is asked about tiles, never about all pairs, so that a pattern costs its
// visible runs and its edge tiles.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/pattern.h"
#include "kernels/pattern/base/key.h"

namespace attnd {

// Key tiles [first, last) that a query tile sees: all pairs of them, or (edge) maybe some.
struct TileSpan {
  int64_t first = 0, last = 0;
  bool full = false;
};

// Numbers that decide the mask of a tile: of one predicate, tiles with equal numbers have equal
// masks. size 0: unknown.
struct TileShape {
  static constexpr int kMax = 6;
  int size = 0;
  std::array<int64_t, kMax> numbers = {};
  bool operator==(const TileShape&) const = default;
};

// Immutable, thread safe. Knows no Nq and Nk: what it says of slots beyond is clipped.
class Predicate : public ComputedMasks {
 public:
  // Appends what query tile `q_tile` sees of the key tiles [first, last): ascending and disjoint.
  virtual void Spans(int64_t q_tile, int64_t first, int64_t last,
                     std::vector<TileSpan>* spans) const = 0;
  // Clears the pairs that are not visible. Exact for every tile, whatever Spans says.
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override = 0;
  virtual TileShape Shape(int64_t q_tile, int64_t key_tile) const;
  int64_t bytes() const override { return 128; }

  // Equal keys mean equal predicates: KeyOf all that Keep reads. Made when asked for: most
  // predicates live inside a source that has a shorter key.
  virtual std::string key() const = 0;
};

// Combined by And, Or, Not.
using Visible = std::shared_ptr<const Predicate>;
Visible And(Visible a, Visible b);
Visible Or(Visible a, Visible b);
Visible Not(Visible a);
inline Visible AndNot(Visible a, Visible b) { return And(std::move(a), Not(std::move(b))); }

// Key tiles below `tiles` as in `left`; tile tiles + c as tile c of `right`: keys appended after
// others, on a tile border.
Visible Beside(Visible left, int64_t tiles, Visible right);
// Query tiles below `tiles` as in `upper`; tile tiles + t as tile t of `lower`, which is meant for
// few tiles: shapes of masks are not known there.
Visible Over(Visible upper, int64_t tiles, Visible lower);

// Appends [first, last); side by side with an equal verdict, spans become one. REQUIRES: no span
// ends beyond `first`.
inline void Emit(int64_t first, int64_t last, bool full, std::vector<TileSpan>* spans) {
  if (first >= last) return;
  if (!spans->empty() && spans->back().last == first && spans->back().full == full) {
    spans->back().last = last;
  } else {
    spans->push_back({first, last, full});
  }
}

}  // namespace attnd
