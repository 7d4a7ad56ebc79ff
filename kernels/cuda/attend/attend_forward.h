// What the forward kernels of attend get, and how blocks share out their work.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

// How the key tiles of a query tile of one sequence are split over blocks: by the sequence and its
// pattern alone, so that it has the same bits in any list.
struct SeqSplit {
  int parts;            // 1: not at all
  int64_t first_state;  // of its parts, [H][tiles][parts]
  int64_t tiles;        // query tiles of a head
};

// Visible tiles of a row below which parts are not worth their merging.
constexpr int64_t kLeastPart = 8;
// Visible tiles of each part, but the last, of a row with so many.
SIMT_FN int64_t PartTiles(int64_t visible, int parts) {
  const int64_t share = (visible + parts - 1) / parts;
  return share < kLeastPart ? kLeastPart : share;
}

// A problem. Its blocks: for some heads together, so many that their keys and values stay in L2,
// the longest tiles of all of them first.
struct ForwardData {
  AttendData p;
  const SeqSplit* splits;  // [B]
  float* states;
  int state_rows;   // of a state: maximum, sum, and Dv values of each row
  int64_t ranks;    // of blocks of a head, each for a tile of queries, or of rows that stand in no
                    // slot, or for two tiles of queries
  int parts;        // the most of a sequence
  int value_parts;  // of Dv: each block computes the columns of one
  bool is_exact;    // KeepsWeights
  int64_t heads_together;
  int4* needed;  // [B,H], not all 0: the head is computed; null: all are

  SIMT_FN bool Needs(int64_t b, int64_t h) const {
    if (needed == nullptr) return true;
    const int4 parts = needed[b * p.H + h];
    return (parts.x | parts.y | parts.z | parts.w) != 0;
  }
  SIMT_FN int64_t StateFloats() const { return int64_t{state_rows} * (p.Dv + 2); }
  SIMT_FN float* State(int64_t n) const { return states + n * StateFloats(); }
};

struct ForwardPlace {
  int64_t b, h, rank;
  int part, value_part;

  SIMT_FN static ForwardPlace Of(const ForwardData& data, int64_t block) {
    const int64_t heads = data.p.B * data.p.H;
    const int64_t a_head = data.ranks * data.parts * data.value_parts;
    const int64_t first = block / (data.heads_together * a_head) * data.heads_together;
    const int64_t together =
        heads - first < data.heads_together ? heads - first : data.heads_together;
    const int64_t within = block - first * a_head, head = first + within % together;
    int64_t rest = within / together;
    ForwardPlace place;
    place.b = head / data.p.H;
    place.h = head % data.p.H;
    place.value_part = static_cast<int>(rest % data.value_parts);
    rest /= data.value_parts;
    place.part = static_cast<int>(rest % data.parts);
    place.rank = rest / data.parts;
    return place;
  }
};

// A query tile, and the tiles of keys that a part of it sees.
struct ForwardTile {
  int64_t index;  // of the tile; -1: there is none
  int64_t skip, count;
  bool is_whole;

  // Of rank `rank` among the tiles of the head, those with the most keys first.
  SIMT_FN static ForwardTile Of(const ForwardData& data, const AttendHead& head,
                                const ForwardPlace& place, int64_t rank, bool in_pairs) {
    const int64_t slots = head.query_rows != nullptr ? head.queries : data.p.Nq;
    if (rank * kTile >= slots) return {-1, 0, 0, true};
    const PatternData* pattern = head.pattern;
    int64_t index = rank;
    if (pattern != nullptr && index < pattern->by_query.rows) {
      // Of a pattern with more rows than there are queries, the order names tiles that do not
      // exist. Later ones mostly see more. A pair follow one another: they see the same keys.
      const int64_t tiles = (slots + kTile - 1) / kTile;
      const bool has_order = !in_pairs && pattern->by_query.rows <= tiles;
      index = has_order ? pattern->by_query.order[index] : tiles - 1 - index;
    }
    int64_t visible = 0;
    if (index * kTile < head.queries) {
      const int64_t tiles = (head.keys + kTile - 1) / kTile;
      visible = pattern == nullptr               ? tiles
                : index < pattern->by_query.rows ? pattern->by_query.CountOf(index)
                                                 : 0;
    }
    const SeqSplit& split = data.splits[place.b];
    const int64_t share = PartTiles(visible, split.parts);
    if (split.parts == 1 || visible <= share) {
      return {place.part == 0 ? index : -1, 0, visible, true};
    }
    if (place.part >= split.parts) return {-1, 0, 0, true};
    return {index, place.part * share, share, false};
  }
  // Of a part.
  SIMT_FN float* State(const ForwardData& data, const ForwardPlace& place) const {
    const SeqSplit& split = data.splits[place.b];
    return data.State(split.first_state + (place.h * split.tiles + index) * split.parts +
                      place.part);
  }
};

// Kernels of AttendForward, by the type of its tiles and the width of their rows.
using ForwardKernel = void (*)(Problems<ForwardData>);
struct ForwardForm {
  ForwardKernel kernel;
  size_t shared_bytes;
};
// `width`: of queries, keys and values, 64 or 128; 0: any, of which values take 128 a part.
ForwardForm ForwardOfF32(int width, bool has_terms, bool has_relative);
ForwardForm ForwardOfF16(int width, bool has_terms);
ForwardForm ForwardOfBF16(int width, bool has_terms);
// ForwardPlain. In pairs, two tiles of queries a block, which reads each tile of keys once for both
// of them. Results are the same bits as ForwardOf's.
ForwardForm PlainOfF32(int width);
ForwardForm PlainOfF16(int width, bool in_pairs);
ForwardForm PlainOfBF16(int width, bool in_pairs);

}  // namespace attnd::cuda
