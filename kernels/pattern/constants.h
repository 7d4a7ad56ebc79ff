// What a pattern adds to scores: multiplicities and labels, tile by tile.
#pragma once

#include "kernels/pattern/predicates/predicate.h"

namespace attnd {

// Immutable, thread safe; asked about visible tiles only. The source that holds them tells them
// apart by its key.
class Constants : public ComputedTerms {
 public:
  // As Predicate::Shape: tiles with equal numbers have equal terms.
  virtual TileShape Shape(int64_t q_tile, int64_t key_tile) const = 0;
};

// Bytes that a pattern of Nq x Nk slots keeps of terms, at most; `bytes`: of an element of a tile.
int64_t TermBytes(int64_t Nq, int64_t Nk, int64_t bytes);

// ln(times) of the blocks of a row that are listed more than once, on top of Blocks(blocks).
ConstantsPtr Multiplicities(BlockRowsPtr blocks);

}  // namespace attnd
