// What the kernels of attend work on: tensors as rows, and the visible tiles of one tile row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/core/dtype.h"
#include "kernels/core/view.h"
#include "kernels/ops/pattern.h"

namespace attnd {

// One head of a [B,H,N,D] tensor (or [B,H,N]): rows of contiguous elements. data null: no tensor.
struct HeadRows {
  char* data = nullptr;
  int64_t stride = 0;  // bytes from row to row
  DType dtype = DType::kF32;

  static HeadRows Of(const View& view, int64_t b, int64_t h) {
    const int64_t size = SizeOf(view.dtype);
    if (view.data == nullptr) return {nullptr, 0, view.dtype};
    return {view.As<char>() + (b * view.stride[0] + h * view.stride[1]) * size,
            view.stride[2] * size, view.dtype};
  }
  char* Row(int64_t n) const { return data + n * stride; }
  float& Scalar(int64_t n) const { return *reinterpret_cast<float*>(Row(n)); }
  HeadRows From(int64_t n) const { return {data + n * stride, stride, dtype}; }
};

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A visible tile of a row: its index on the other side, and who sees whom (null: everybody).
struct VisibleTile {
  int64_t index = 0;
  const TileMask* mask = nullptr;
};

// Calls fn(VisibleTile) for the visible tiles of row `row` below `tiles`, ascending. `rows` is
// pattern->by_query or pattern->by_key; without a pattern every tile is visible.
template <class F>
void ForEachVisible(const Pattern* pattern, const TileRows* rows, int64_t row, int64_t tiles,
                    const F& fn) {
  if (pattern == nullptr) {
    for (int64_t t = 0; t < tiles; ++t) fn(VisibleTile{t, nullptr});
    return;
  }
  if (row >= rows->rows()) return;
  for (int64_t r = rows->begin[row]; r < rows->begin[row + 1]; ++r) {
    const Run& run = rows->runs[r];
    const TileMask* mask = run.mask == Run::kFull ? nullptr : &pattern->masks[run.mask];
    const int64_t end = std::min<int64_t>(run.first + run.count, tiles);
    for (int64_t t = run.first; t < end; ++t) fn(VisibleTile{t, mask});
  }
}

// How many tiles ForEachVisible would visit.
inline int64_t CountVisible(const Pattern* pattern, const TileRows* rows, int64_t row,
                            int64_t tiles) {
  if (pattern == nullptr) return tiles;
  if (row >= rows->rows()) return 0;
  int64_t count = 0;
  for (int64_t r = rows->begin[row]; r < rows->begin[row + 1]; ++r) count += rows->runs[r].count;
  return count;
}

// A tile of queries of one head, forward.
struct AttendTile {
  int64_t D = 0, Dv = 0;
  HeadRows q, out, lse;  // from the tile's first query on
  HeadRows k, v;
  int64_t queries = 0;  // that may see something, 0..64; the rest of `rows` gets 0 and -inf
  int64_t rows = 0;
  int64_t keys = 0;
  const Pattern* pattern = nullptr;
  int64_t row = 0;        // of pattern->by_query
  float scale_log2e = 1;  // scores are kept in base 2
};

// Key tiles whose scores are normalised together: enough to spread the cost of rescaling the sums,
// few enough that scores, keys and values stay in L2.
constexpr int kBlockTiles = 4;

// Scratch floats of the forward kernel for one thread, the same for every instruction set.
constexpr int64_t AttendScratchFloats(int64_t D, int64_t Dv) {
  return kTile * (D + Dv + 2 * std::max(D, Dv) + kBlockTiles * kTile + 3) + 16 * 8;
}

// --- backward ------------------------------------------------------------------------------------
// Key tiles of a kv head are dealt to shares in turn, some at a time: fixed by Nk alone, balanced
// for causal patterns, and a narrow band touches the dq of mostly one share.
struct KeyShares {
  int64_t tiles, shares, chunk;
  explicit KeyShares(int64_t Nk)
      : tiles(CeilDiv(Nk, kTile)),
        shares(std::clamp<int64_t>(tiles / 4, 1, 4)),
        chunk(std::max<int64_t>(tiles / 32, 1)) {}
  int64_t ShareOf(int64_t tile) const { return tile / chunk % shares; }
};

// Floats from row to row of a packed operand of `width` columns: whole vectors of any instruction
// set, and no power of two.
constexpr int64_t PackedStride(int64_t width) { return CeilDiv(width, 16) * 16 + 16; }

// Floats from row to row of a partial dq.
constexpr int64_t GradStride(int64_t D) { return CeilDiv(D, 16) * 16; }

// The dq of one share: [group][Nq][GradStride(D)], and which of its query tiles hold anything:
// [group][ceil(Nq / 64)]. sums null: dq is not wanted.
struct PartialGrad {
  float* sums = nullptr;
  uint8_t* touched = nullptr;
};

// One share of the keys of one kv head.
struct AttendShare {
  const AttendGradProblem* problem = nullptr;
  double scale = 1;
  int64_t b = 0, kv_head = 0, share = 0;
  PartialGrad dq;
};

// Scratch floats of the backward kernel for one thread, without the per-query part.
constexpr int64_t AttendGradScratchFloats(int64_t D, int64_t Dv) {
  return kTile * (3 * PackedStride(D) + 2 * PackedStride(Dv) + 2 * kTile) +
         (D + Dv) * PackedStride(kTile) + kTile * PackedStride(std::max(D, Dv)) + 16 * 12;
}

}  // namespace attnd
