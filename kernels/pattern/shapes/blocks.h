// Patterns of blocks: a caller's layout, BigBird, blockwise permutations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/pattern/constants.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Adds ln(times) to the scores of blocks that a row lists more than once.
ConstantsPtr Multiplicities(BlockRowsPtr blocks);

// The listed blocks of blocks.bq queries x blocks.bk keys. `multiset`: a block that is listed n
// times counts n times, else once.
PatternSource BlockSource(const PatternSeq& seq, BlockRows blocks, bool multiset);

// Zaheer et al. 2020, appendix D, on blocks of positions p - globals and j - globals. `random`
// [inner rows, r] lists block indices for the rows that are not global; -1: none.
struct BigBird {
  int64_t block = 64;
  int64_t half_window = 1;      // u
  int64_t left = 1, right = 1;  // global blocks
  int64_t globals = 0;          // ETC form: positions [0, globals) see all and are seen by all
  std::vector<int32_t> random;
  int64_t r = 0;
  bool multiset = false;

  // Blocks behind the globals of N positions, and how many of these have random blocks.
  int64_t Blocks(int64_t N) const;
  int64_t InnerRows(int64_t N) const;
};
PatternSource BigBirdSource(const PatternSeq& seq, BigBird bigbird);

// Qiu et al. 2019, section 3: blk(x) = floor(x nb / Nk), visible iff perm[blk(p)] = blk(j).
PatternSource BlockwiseSource(const PatternSeq& seq, std::span<const int32_t> perm);
// Whether BlockwiseSource gathers the queries in the order of their key blocks.
bool BlockwiseGathers(const PatternSeq& seq, int64_t nb);

}  // namespace attnd
