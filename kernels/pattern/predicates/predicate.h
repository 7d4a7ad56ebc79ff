// Predicates over pairs of slots: they define which pairs a pattern shows, and combine by And, Or
// and Not. They answer for tiles, never for single pairs, so that building a pattern costs its
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

// Numbers that determine the mask of a tile: tiles with equal numbers have equal masks under the
// same predicate. size 0: unknown.
struct TileShape {
  static constexpr int kMax = 6;
  int size = 0;
  std::array<int64_t, kMax> numbers = {};
  bool operator==(const TileShape&) const = default;
};

// Immutable, thread safe. It does not know Nq and Nk: the builder clips what lies beyond.
class Predicate : public ComputedMasks {
 public:
  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override = 0;
  // Clears the pairs that are not visible. Exact for every tile, whatever Spans says.
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override = 0;
  virtual TileShape Shape(int64_t q_tile, int64_t key_tile) const;
  int64_t bytes() const override { return 128; }

  // Equal keys mean equal predicates: KeyOf everything that Keep reads. Computed by each call: most
  // predicates live inside a source with a shorter key, which never calls it.
  virtual std::string key() const = 0;
};

// Combined by And, Or, Not.
using Visible = std::shared_ptr<const Predicate>;
Visible And(Visible a, Visible b);
Visible Or(Visible a, Visible b);
Visible Not(Visible a);
inline Visible AndNot(Visible a, Visible b) { return And(std::move(a), Not(std::move(b))); }

// Key tiles below `tiles` are those of `left`, and tile `tiles` + c is tile c of `right`: for keys
// that are appended at a tile border.
Visible Beside(Visible left, int64_t tiles, Visible right);
// Query tiles below `tiles` are those of `upper`, and tile `tiles` + t is tile t of `lower`, where
// shapes are unknown: for few tiles.
Visible Over(Visible upper, int64_t tiles, Visible lower);

// Appends [first, last), joining it with the last span if that ends at `first` and is as full.
// REQUIRES: no span ends beyond `first`.
inline void Emit(int64_t first, int64_t last, bool full, std::vector<TileSpan>* spans) {
  if (first >= last) return;
  if (!spans->empty() && spans->back().last == first && spans->back().full == full) {
    spans->back().last = last;
  } else {
    spans->push_back({first, last, full});
  }
}

}  // namespace attnd
