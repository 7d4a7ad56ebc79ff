// What the kernels of attend work on: tensors as rows, and the visible tiles of one tile row.
#pragma once

#include <algorithm>
#include <cmath>
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

// What a finite bias or sink is cut to, so that times log2(e) it stays finite. Of these two the
// score in base 2, once rounded, is no less than lse is in base 2, and lse is the number itself:
// backward finds the weight 1 of a key that outweighs all others.
constexpr float kLeastTerm = -2.29e38f, kMostTerm = 2.3e38f;
inline float CutTerm(float x) { return std::isinf(x) ? x : std::clamp(x, kLeastTerm, kMostTerm); }

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Slots [begin, end) of a tile.
struct SlotRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const SlotRange&) const = default;
};

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
  // As `count` times Next, or less at the end.
  void Skip(int64_t count) {
    for (; count > 0 && !done(); NextRun()) {
      if (tile_.index + count < end_) {
        tile_.index += count;
        return;
      }
      count -= end_ - tile_.index;
    }
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

}  // namespace attnd
