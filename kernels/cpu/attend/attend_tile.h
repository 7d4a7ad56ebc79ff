// What the kernels of attend work on: tensors as rows, and the visible tiles of one tile row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "kernels/core/dtype.h"
#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/core/view.h"
#include "kernels/device/device.h"
#include "kernels/device/pattern.h"

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

// The weight of a score in a row with these lse and lse_low.
inline double WeightOf(float score, float lse, float lse_low) {
  return std::exp((double{score} - double{lse}) - double{lse_low});
}

// Slots [begin, end) of a tile.
struct SlotRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const SlotRange&) const = default;
};

// A visible tile of a row: its index on the other side, its mask (null: every pair is visible),
// what is added to its scores (null: nothing).
struct VisibleTile {
  static constexpr int64_t kNone = INT64_MAX;
  int64_t index = kNone;
  const TileMask* mask = nullptr;
  const TileTerms* terms = nullptr;
  bool is_computed = false;  // its mask is; one that shows nothing is passed over
};

// What a pattern does not keep of a tile.
struct ComputedTile {
  TileMask mask;
  TileTerms terms;
};

// What VisibleTiles looks at of a row: tiles [begin, end) of the other side, and of the pattern's
// tiles there, in their order, [skip, skip + count).
struct TileChoice {
  int64_t begin = 0, end = 0;
  int64_t skip = 0, count = INT64_MAX;
};

// Walks the visible tiles of one row, ascending. `side` is &Pattern::by_query or &Pattern::by_key;
// without a pattern every tile is visible.
class VisibleTiles {
 public:
  VisibleTiles(const Pattern* pattern, TileRows Pattern::*side, int64_t row,
               const TileChoice& choice)
      : pattern_(pattern),
        is_by_query_(side == &Pattern::by_query),
        row_(row),
        begin_(choice.begin),
        tiles_(choice.end),
        left_(choice.count) {
    if (pattern == nullptr) {
      end_ = tiles_;
      if (begin_ < tiles_) index_ = begin_;
    } else if (const TileRows& rows = pattern->*side; row < rows.rows()) {
      run_ = rows.runs.data() + rows.begin[row];
      last_run_ = rows.runs.data() + rows.begin[row + 1];
      NextRun();
    }
    Skip(choice.skip);
    if (is_computed_) FindComputed();
  }

  // kNone after the last one.
  int64_t index() const { return index_; }
  bool done() const { return index_ == VisibleTile::kNone; }
  // Valid until Next.
  VisibleTile tile() const { return TileWith(own_); }
  // The same, valid as long as `own` is: what was computed moves there.
  VisibleTile TakeTile(ComputedTile* own) {
    if (is_computed_) {
      own->mask = own_.mask;
      std::swap(own->terms, own_.terms);
    }
    return TileWith(*own);
  }
  // REQUIRES: not done.
  void Next() {
    Step();
    if (is_computed_) FindComputed();
  }

 private:
  VisibleTile TileWith(const ComputedTile& own) const {
    if (!is_computed_) return {index_, mask_, terms_};
    const bool has_mask = computed_->mask == Run::kComputed;
    const bool has_terms = computed_->terms == Run::kComputed;
    return {index_, has_mask ? (hides_ ? &own.mask : nullptr) : mask_,
            has_terms ? &own.terms : terms_, has_mask};
  }
  void Step() {
    if (--left_ == 0) {
      End();
    } else if (++index_ == end_) {
      NextRun();
    }
  }
  // As `count` times Step, or less at the end.
  void Skip(int64_t count) {
    for (; count > 0 && !done(); NextRun()) {
      if (index_ + count < end_) {
        index_ += count;
        return;
      }
      count -= end_ - index_;
    }
  }
  // From the tile at hand on, the first one that shows something.
  void FindComputed() {
    while (is_computed_ && !Compute()) CheckPoint() ? End() : Step();
  }
  bool Compute() {
    const int64_t q_tile = is_by_query_ ? row_ : index_, key_tile = is_by_query_ ? index_ : row_;
    if (computed_->mask == Run::kComputed) {
      const TileSight sight = ComputeMask(*pattern_, q_tile, key_tile, &own_.mask);
      if (sight == TileSight::kNothing) return false;
      hides_ = sight == TileSight::kSome;
    }
    if (computed_->terms == Run::kComputed) {
      ComputeTerms(*pattern_, q_tile, key_tile, &own_.terms);
    }
    return true;
  }
  void End() {
    index_ = VisibleTile::kNone;
    is_computed_ = false;
  }
  void NextRun() {
    while (run_ != last_run_ && run_->first + run_->count <= begin_) ++run_;
    if (run_ == last_run_ || run_->first >= tiles_) return End();
    index_ = std::max<int64_t>(run_->first, begin_);
    end_ = std::min<int64_t>(run_->first + run_->count, tiles_);
    mask_ = run_->mask < 0 ? nullptr : &pattern_->masks[run_->mask];
    terms_ = run_->terms < 0 ? nullptr : &pattern_->terms[run_->terms];
    is_computed_ = run_->is_computed();
    computed_ = run_;
    ++run_;
  }

  const Pattern* pattern_;
  const bool is_by_query_;
  int64_t row_, begin_, tiles_;
  int64_t left_;  // tiles of the choice, the one at hand included
  const Run* run_ = nullptr;
  const Run* last_run_ = nullptr;
  int64_t index_ = VisibleTile::kNone, end_ = 0;  // end_: of the run at hand
  const TileMask* mask_ = nullptr;                // stored ones
  const TileTerms* terms_ = nullptr;
  bool is_computed_ = false, hides_ = false;
  const Run* computed_ = nullptr;  // the run at hand
  ComputedTile own_;
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
