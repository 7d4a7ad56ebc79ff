// The mask of one tile of a Reformer round.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/shapes/reformer.h"

namespace attnd {

// Consecutive chunks of one round, numbered in that round.
struct ChunkRange {
  int64_t round = 0, first = 0, last = 0;
};

// Calls f(segment, range) for each stretch of the chunks that chunk `c` of `round` sees; segment 0
// lies in the round itself, -1 before it, 1 behind it and so on.
template <class F>
void ForEachRange(const ReformerRounds& r, int64_t round, int64_t c, const F& f) {
  const int64_t C = r.ChunksOfRound();
  for (int64_t first = c + r.lo; first <= c + r.hi;) {
    const int64_t segment = FloorDiv(first, C), begin = segment * C;
    const int64_t last = std::min(c + r.hi, begin + C - 1);
    f(segment, ChunkRange{r.flat ? Remainder(round + segment, r.rounds) : round, first - begin,
                          last - begin});
    first = last + 1;
  }
}

// Clears the pairs of a tile of slots that round `round` does not show. Slots of keys: the chunks
// that the round sees, from the first one that its chunk 0 sees on.
void KeepReformerTile(const ReformerHead& head, int64_t round, int64_t q_tile, int64_t key_tile,
                      TileMask* mask);

}  // namespace attnd
