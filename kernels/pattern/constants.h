// What a pattern adds to scores: multiplicities and labels, tile by tile.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// Immutable, thread safe; called for visible tiles only. The key of the source that holds them must
// distinguish them.
class Constants : public ComputedTerms {
 public:
  // As Predicate::Shape: tiles with equal numbers have equal terms.
  virtual TileShape Shape(int64_t q_tile, int64_t key_tile) const = 0;
};

using ConstantsPtr = std::shared_ptr<const Constants>;

}  // namespace attnd
