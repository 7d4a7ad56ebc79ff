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

// A visible tile of a row: its index on the other side, who sees whom (null: everybody), what is
// added to its scores (null: nothing).
struct VisibleTile {
  static constexpr int64_t kNone = INT64_MAX;
  int64_t index = kNone;
  const TileMask* mask = nullptr;
  const TileTerms* terms = nullptr;
};

// Walks the visible tiles of one row below `tiles`, ascending. `side` is &Pattern::by_query or
// &Pattern::by_key; without a pattern every tile is visible.
class VisibleTiles {
 public:
  VisibleTiles(const Pattern* pattern, TileRows Pattern::*side, int64_t row, int64_t tiles)
      : pattern_(pattern), tiles_(tiles) {
    if (pattern == nullptr) {
      end_ = tiles;
      if (tiles > 0) tile_ = {0, nullptr, nullptr};
      return;
    }
    const TileRows& rows = pattern->*side;
    if (row >= rows.rows()) return;
    run_ = rows.runs.data() + rows.begin[row];
    last_run_ = rows.runs.data() + rows.begin[row + 1];
    NextRun();
  }

  // index kNone after the last one.
  const VisibleTile& tile() const { return tile_; }
  bool done() const { return tile_.index == VisibleTile::kNone; }
  // REQUIRES: not done.
  void Next() {
    if (++tile_.index == end_) NextRun();
  }

 private:
  void NextRun() {
    tile_ = {};
    if (run_ == last_run_ || run_->first >= tiles_) return;
    end_ = std::min<int64_t>(run_->first + run_->count, tiles_);
    tile_ = {run_->first, run_->mask == Run::kFull ? nullptr : &pattern_->masks[run_->mask],
             run_->terms == Run::kNoTerms ? nullptr : &pattern_->terms[run_->terms]};
    ++run_;
  }

  const Pattern* pattern_;
  int64_t tiles_;
  const Run* run_ = nullptr;
  const Run* last_run_ = nullptr;
  VisibleTile tile_;
  int64_t end_ = 0;  // of the run that tile_ is in
};

// How many tiles VisibleTiles walks over, or a few more where `tiles` cuts a run.
inline int64_t CountVisible(const Pattern* pattern, TileRows Pattern::*side, int64_t row,
                            int64_t tiles) {
  if (pattern == nullptr) return tiles;
  const TileRows& rows = pattern->*side;
  if (row >= rows.rows()) return 0;
  int64_t count = 0;
  for (int64_t r = rows.begin[row]; r < rows.begin[row + 1]; ++r) count += rows.runs[r].count;
  return count;
}

// --- forward -------------------------------------------------------------------------------------
// Some consecutive tiles of queries of one head.
struct AttendItem {
  int64_t D = 0, Dv = 0;
  HeadRows q, out, lse;  // from the item's first query on
  HeadRows k, v;
  int64_t queries = 0;  // that may see something; the rest of `rows` gets 0 and -inf
  int64_t rows = 0;     // at most 64 kMaxItemTiles
  int64_t keys = 0;
  const Pattern* pattern = nullptr;
  int64_t row = 0;        // of pattern->by_query: the first tile's
  float scale_log2e = 1;  // scores are kept in base 2
};

// Key tiles whose scores are normalised together: enough to spread the cost of rescaling the sums,
// few enough that the scores of a panel stay in L1 and the tiles in L2.
constexpr int kBlockTiles = 4;

// Query tiles that take turns on the same key tiles: from memory or L3 a key tile arrives at a few
// bytes a cycle, which one tile of queries would notice. Their state shares L2 with the keys.
constexpr int kMaxItemTiles = 4;
constexpr int64_t ItemTiles(int64_t D, int64_t Dv) {
  return std::clamp<int64_t>(1024 / std::max<int64_t>(D + Dv, 1), 1, kMaxItemTiles);
}

// Scratch floats of the forward kernel for one thread, the same for every instruction set.
constexpr int64_t AttendScratchFloats(int64_t D, int64_t Dv) {
  const int64_t per_query_tile = kTile * (D + Dv + 3) + 16 * 5;
  const int64_t scores = kTile * std::max({kBlockTiles * kTile, D, Dv});
  const int64_t key_tiles = kBlockTiles * kTile * (D + Dv + 5) + 16 * (Dv + 4);
  return ItemTiles(D, Dv) * per_query_tile + scores + key_tiles;
}

}  // namespace attnd
