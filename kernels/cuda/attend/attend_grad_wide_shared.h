// The shared memory of a block of attend's gradient by wide tiles, and the walk over its steps,
// which is of the first thread: it publishes steps ahead of the others.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_grad_shared.h"
#include "kernels/cuda/attend/attend_grad_wide_tile.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda::attend_grad {

// A tile of the other side.
template <class T>
struct WideStep {
  const T *first, *second;  // its first row of k and v, or of q and dout
  const GradRow* rows;      // of its first query; of the pass by keys
  const uint64_t* mask;     // by queries; null: all is seen
  const float* constants;   // [query][key]; null: none
  const float* key_bias;    // of the first key of the tile of keys; null: none
  int count;                // rows that exist, at most 64; 0: the walk has ended
};

// What is the same in all threads and steps of a block: registers hold sums.
struct WideBlock {
  const GradData* problem;
  int64_t b, h, kv, tile;  // of the own tile; the first query head
  int64_t round;
  int64_t first_row, second_row;  // elements from row to row of other tiles
  int D, Dv, own_count;           // own rows that exist
  bool adds;                      // to what earlier rounds have stored
  float scale;                    // of AttendData
  float weight_factor, score_factor;

  SIMT_FN void Set(const GradData& p, GradPass pass, int64_t of_b, int64_t of_h, int64_t heads,
                   int64_t of_tile, int64_t of_round) {
    const bool is_keys = pass == GradPass::kKeys;
    problem = &p;
    b = of_b, h = of_h, kv = of_h / p.a.group, tile = of_tile, round = of_round;
    adds = RoundsOf(pass, p) > 1;
    first_row = is_keys ? p.a.q.row : p.a.k.row, second_row = is_keys ? p.dout.row : p.a.v.row;
    D = p.a.D, Dv = p.a.Dv, scale = p.a.scale;
    const int64_t left = (is_keys ? p.a.seqs[b].nk : p.a.seqs[b].nq) - tile * kSide;
    own_count = left < 0 ? 0 : left < kSide ? static_cast<int>(left) : kSide;
    weight_factor = score_factor = 1;
    if (p.head_sizes == nullptr) return;
    weight_factor = kWeightFactor;
    float size = 0;
    for (int64_t n = 0; n < heads; ++n) size = fmaxf(size, p.head_sizes[b * p.a.H + h + n]);
    score_factor = ScoreFactor(size);
  }
};

// Steps in shared memory: the last one, of which a thread may still read, this one and two ahead.
constexpr int kWideSteps = 4;

template <class T, GradPass kPass>
class WideWalk {
 public:
  static constexpr bool kKeys = kPass == GradPass::kKeys;

  // Over `range` of the tiles that own tile `own_tile` of query heads [h, end) sees or is seen by.
  SIMT_FN void Start(const GradData& p, int64_t b, int64_t h, int64_t end, int64_t own_tile,
                     const PairRange& range) {
    b_ = b, end_ = end, own_tile_ = own_tile, left_ = range;
    Open(p, h);
  }
  // The next step.
  SIMT_FN void Publish(const GradData& p, WideStep<T>* step) {
    while (walk_.done() && h_ + 1 < end_ && left_.take > 0) Open(p, h_ + 1);
    step->count = 0;
    if (walk_.done()) return;
    const int64_t row = walk_.index() * kSide, left = rows_ - row;
    step->first = first_ + row * first_row_;
    step->second = second_ + row * second_row_;
    step->rows = of_rows_ + row;
    step->count = left < kSide ? static_cast<int>(left) : kSide;
    step->mask = walk_.mask() < 0 ? nullptr : pattern_->masks + int64_t{walk_.mask()} * kSide;
    step->constants = walk_.terms() < 0 ? nullptr : pattern_->terms[walk_.terms()].bias;
    step->key_bias = nullptr;
    if (pattern_ != nullptr && pattern_->key_bias != nullptr) {
      step->key_bias = pattern_->key_bias + (kKeys ? own_tile_ * kSide : row);
    }
    walk_.Next();
  }

 private:
  SIMT_FN void Open(const GradData& p, int64_t h) {
    h_ = h;
    const AttendHead head = AttendHead::Of(p.a, b_, h);
    pattern_ = head.pattern;
    rows_ = kKeys ? head.nq : head.nk;
    const Plane &first = kKeys ? p.a.q : p.a.k, &second = kKeys ? p.dout : p.a.v;
    const int64_t of = kKeys ? h : head.kv;
    first_ = static_cast<const T*>(first.data) + first.Head(b_, of);
    second_ = static_cast<const T*>(second.data) + second.Head(b_, of);
    first_row_ = first.row, second_row_ = second.row;
    of_rows_ = p.RowsOf(b_, h);
    const TileRunRows* side = SideOf(kPass, head);
    const int64_t tiles = (rows_ + kSide - 1) / kSide;
    const PairRange part = left_.Pass(PairsOf(side, own_tile_, tiles));
    walk_ = TileWalk(side, own_tile_, tiles, part.skip, part.take);
  }

  TileWalk walk_;
  PairRange left_;  // what further heads have of the range
  int64_t b_, h_, end_, own_tile_;
  int64_t rows_;  // of the other side that exist
  const PatternData* pattern_;
  const T *first_, *second_;
  int64_t first_row_, second_row_;
  const GradRow* of_rows_;
};

template <class T, GradPass kPass, int kD>
class WideShared {
 public:
  using Tile = WideTile<T, kD>;

  SIMT_FN explicit WideShared(simt::SharedTiles& shared)
      : rows(shared.Take<GradRow>(2 * kSide)),
        steps(shared.Take<WideStep<T>>(kWideSteps)),
        block(shared.Take<WideBlock>(1)),
        walk(shared.Take<WideWalk<T, kPass>>(1)),
        own_(shared.Take<T>(2 * Tile::kElements)),
        others_(shared.Take<T>(4 * Tile::kElements)) {}
  static constexpr size_t Bytes() {
    return simt::SharedBytes<GradRow>(2 * kSide) + simt::SharedBytes<WideStep<T>>(kWideSteps) +
           simt::SharedBytes<WideBlock>(1) + simt::SharedBytes<WideWalk<T, kPass>>(1) +
           simt::SharedBytes<T>(2 * Tile::kElements) + simt::SharedBytes<T>(4 * Tile::kElements);
  }
  // Of k and v, or of q and dout.
  SIMT_FN T* Own(int n) const { return own_ + n * Tile::kElements; }
  SIMT_FN T* Other(int stage, int n) const { return others_ + (stage * 2 + n) * Tile::kElements; }
  // 64 x kScoreStride numbers in the place of the others.
  SIMT_FN float* Scores() const { return reinterpret_cast<float*>(others_); }

  GradRow* const rows;  // [stage][64]: of the other tile's queries
  WideStep<T>* const steps;
  WideBlock* const block;
  WideWalk<T, kPass>* const walk;

 private:
  T *const own_, *const others_;
};

}  // namespace attnd::cuda::attend_grad
