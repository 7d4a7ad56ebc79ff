// One work item of the forward of attend, and the scratch that it needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/attend/attend_tile.h"

namespace attnd {

// A head of a tensor of any strides, in bytes.
struct HeadPlane {
  const char* data = nullptr;  // null: no tensor
  int64_t row = 0, column = 0;
  DType dtype = DType::kF32;

  static HeadPlane Of(const View& view, int64_t b, int64_t h) {
    const HeadRows rows = HeadRows::Of(view, b, h);
    return {rows.data, rows.stride, view.stride[3] * SizeOf(view.dtype), view.dtype};
  }
  const char* At(int64_t n, int64_t d) const { return data + n * row + d * column; }
};

// What enters the scores of one head besides q and k; see AttendTerms.
struct HeadTerms {
  AttendParams params;
  HeadPlane bias, table;
  HeadRows q_rel, r;
  int64_t distances = 0;         // L, rows of r
  HeadRows row_weight;           // float32
  const float* slope = nullptr;  // of ALiBi; null: none
  // -inf: none.
  float sink = -std::numeric_limits<float>::infinity();
  int64_t offset = 0;  // position of query row 0

  bool is_softmax() const { return params.weighting == Weighting::kSoftmax; }
};

// Some consecutive tiles of query slots of one head, or rows that stand in no slot.
struct AttendItem {
  int64_t D = 0, Dv = 0;
  HeadRows q, out, lse, lse_low;  // from row 0; no lse where weighting is not softmax
  HeadRows k, v, k2, v2;
  int64_t k_rows = 0;  // from there on a key row is one of k2, v2

  int64_t first = 0;                    // slot
  const int32_t* query_rows = nullptr;  // of the item's slots; null: slot s is row s
  int64_t rows = 0;                     // slots of this item, at most 64 kMaxItemTiles
  int64_t queries = 0;                  // of them, those that may see something
  int64_t valid_rows = 0;               // nq: rows from there on see nothing, no sink either
  const int32_t* key_rows = nullptr;    // null: slot s is row s
  int64_t keys = 0;                     // slots
  const Pattern* pattern = nullptr;
  int64_t tile = 0;  // of pattern->by_query: the first one's
  // Of the visible key tiles [skip, skip + count), the rest belongs to other parts.
  int64_t skip = 0, count = INT64_MAX;
  // Where visible pairs of tiles whose masks are computed are added up, each for `heads_alike`
  // heads; null: they are not wanted.
  PairCount* computed_pairs = nullptr;
  int64_t heads_alike = 1;

  // Whether the scores change between product and exponential.
  bool has_terms = false;
  float query_scale = 1;
  HeadTerms terms;

  // The row of slot first + i; -1: none.
  int64_t QueryRow(int64_t i) const { return query_rows != nullptr ? query_rows[i] : first + i; }
  int64_t KeyRow(int64_t slot) const { return key_rows != nullptr ? key_rows[slot] : slot; }
  // Whether every query sees every key, few and of one source, and nothing else enters the scores.
  bool SeesAllOfFew() const;
  const char* Key(int64_t row) const { return row < k_rows ? k.Row(row) : k2.Row(row - k_rows); }
  const char* Value(int64_t row) const { return row < k_rows ? v.Row(row) : v2.Row(row - k_rows); }
};

// Key tiles whose scores are normalised together: enough to spread the cost of rescaling the sums,
// few enough that the scores of a panel stay in L1 and the tiles in L2.
constexpr int kBlockTiles = 4;

// Query tiles that take turns on the same key tiles: from memory or L3 a key tile arrives at a few
// bytes a cycle, which would slow down one tile of queries. Their state shares L2 with the keys.
constexpr int kMaxItemTiles = 8;
constexpr int64_t ItemTiles(int64_t D, int64_t Dv) {
  return std::clamp<int64_t>(2048 / std::max<int64_t>(D + Dv, 1), 1, kMaxItemTiles);
}

// Keys that FewKeys takes: as many as the online softmax normalises together. It depends on the
// keys alone, so that a row has the same bits whatever the other queries are.
constexpr int64_t kFewKeys = kBlockTiles * kTile;
inline bool AttendItem::SeesAllOfFew() const {
  return keys > 0 && keys <= std::min(kFewKeys, k_rows) && pattern == nullptr &&
         query_rows == nullptr && !has_terms &&
         terms.sink == -std::numeric_limits<float>::infinity();
}
// Floats from row to row of its operands: whole vectors of any instruction set, and no power of
// two.
constexpr int64_t FewKeysStride(int64_t width) { return RoundUp(width, 16) + 16; }
constexpr int64_t FewKeysFloats(int64_t D, int64_t Dv) {
  return (kTile + D) * FewKeysStride(kFewKeys) + kTile * FewKeysStride(D) +
         (kTile + kFewKeys) * FewKeysStride(Dv);
}

// Distances whose products with a query tile are kept: those between two tiles in natural order, or
// more.
constexpr int64_t kRelativeRows = 2 * kTile;

// Scratch floats of the forward kernel for one thread, the same for every instruction set.
struct AttendScratch {
  int64_t D = 0, Dv = 0;
  bool has_bias = false, has_relative = false;

  int64_t Floats() const {
    const int64_t per_query_tile =
        kTile * (D + Dv + 5) + (has_relative ? kTile * (D + kRelativeRows) : 0) + 16 * 8;
    const int64_t scores = kTile * std::max({kBlockTiles * kTile, D, Dv});
    const int64_t key_tiles =
        kBlockTiles * kTile * (D + Dv + 5) + kTile * Dv + 16 * (Dv + 4) + 2 * Dv + 48;
    const int64_t bias = has_bias ? 2 * kTile * kTile + 32 : 0;
    return std::max(ItemTiles(D, Dv) * per_query_tile + scores + key_tiles + bias,
                    FewKeysFloats(D, Dv));
  }
};

// The state of a part of a row of key tiles, to be merged: sum of weighted values, maximum, sum.
constexpr int64_t AttendStateFloats(int64_t Dv) { return kTile * (Dv + 2); }

}  // namespace attnd
