// The relative term in the backward of attend: scores q_rel . r_delta. Their gradients:
// attend_grad_distances-inl.h.
#if defined(ATTND_CPU_ATTEND_GRAD_RELATIVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_GRAD_RELATIVE_INL_H_
#undef ATTND_CPU_ATTEND_GRAD_RELATIVE_INL_H_
#else
#define ATTND_CPU_ATTEND_GRAD_RELATIVE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_grad_tile.h"
#include "kernels/cpu/attend/attend_operands-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A pair of tiles in natural order has 127 diagonals of equal distance. Row i of a matrix
// [query][key] holds diagonal c at column c - 63 + i: read or written with rows one element further
// apart, the matrix is one [query][diagonal], so that products with rows of r need no shifted copy.
// The diagonals come in two strips, 64 each. The right one is the left one of the next tile of
// keys, so it waits for that tile: its scores lie to the right of those of the pair at hand, the
// score gradients of the tile before to the left.
class GradRelative {
 public:
  GradRelative(const GradTask& task, int64_t b, const GradScratch& scratch)
      : task_(task), r_(task.problem->forward.terms.r), seq_(task.Seq(b)), b_(b), m_(scratch) {
    if (!given()) return;
    for (size_t i = 0; i < m_.strips.size(); ++i) {
      strips_[i].space = m_.strips[i].r;
      strips_[i].rt = m_.strips[i].rt;
    }
    // Columns that no pair writes but diagonals of the last keys reach.
    for (int64_t i = 0; i < kTile; ++i) {
      std::fill_n(m_.dscores.Row(i) + kTile, GradScratch::kBeyond, 0.0f);
    }
  }

  bool given() const { return r_.given(); }
  // A new tile of queries, whose dq_rel is 0.
  void Start(const GradQueries& queries);
  // Writes the scores of the term to scratch.weights, where pairs are visible (`seen` by query,
  // `strips`: ranges that hold all of them). `follows`: the next pair has the same queries and the
  // keys that come next (see Follows).
  void Load(const GradQueries& queries, const GradKeys& keys, const uint64_t* seen,
            const SeenByStrips& strips, bool follows);
  // Whether a pair with `next` continues one with `keys`.
  static bool Follows(const GradQueries& queries, const GradKeys& keys, const GradKeys& next) {
    return HasDiagonals(queries, keys) && next.slots.in_order && keys.slots.count == kTile &&
           next.slots.count > 0 && next.slots.rows[0] == keys.slots.rows[0] + kTile;
  }
  // Adds what dT in scratch.dscores, 0 at invisible pairs, gives to scratch.dq_rel and to `dr`, as
  // far as they are wanted, now or with the pair that follows.
  void AddGradients(const GradQueries& queries, const GradKeys& keys, const uint64_t* seen,
                    bool wants_dq_rel, const PartialRows& dr);

 private:
  // kTile rows of r, from distance `top` down, for one query head.
  struct Strip {
    Packed space, r, rt;  // [64][D] [64][D] [D][64]; r: where the rows lie, or in space
    int64_t top = 0, h = -1;
    Finiteness finiteness;
  };

  static bool HasDiagonals(const GradQueries& queries, const GradKeys& keys) {
    return queries.slots.in_order && keys.slots.in_order;
  }
  int64_t Last() const { return r_.shape[2] - 1; }
  int64_t Distance(const GradQueries& queries, int64_t i, int64_t key) const {
    return std::clamp<int64_t>(queries.slots.rows[i] + seq_.offset - key, 0, Last());
  }
  Strip& Find(int64_t top, int64_t h);
  void Continue(int64_t queries);
  void FindDiagonals(int64_t queries, const SeenByStrips& strips);
  void LoadStrip(int64_t queries, int64_t first, bool whole);
  void LoadPairs(const GradQueries& queries, const GradKeys& keys, const uint64_t* seen);
  void AddStrip(const GradQueries& queries, int64_t first, bool wants_dq_rel,
                const PartialRows& dr);
  void AddToQueries(int64_t queries, int64_t first, const Strip& strip);
  void AddToDistances(int64_t queries, int64_t first, const PartialRows& dr);
  void AddSeen(const GradQueries& queries, int64_t first, Strip& strip, bool wants_dq_rel,
               const PartialRows& dr);
  void AddPairs(const GradQueries& queries, const GradKeys& keys, bool wants_dq_rel,
                const PartialRows& dr);
  void AddRow(float factor, const float* from, float* to) const;

  // Of a range of diagonals those of the strip that begins with `first`, counted from there.
  static SlotRange Within(SlotRange range, int64_t first) {
    return {std::clamp<int64_t>(range.begin - first, 0, kTile),
            std::clamp<int64_t>(range.end - first, 0, kTile)};
  }
  // Whether the tile at hand is the only one that a strip meets.
  bool IsEnd(int64_t first) const { return first > 0 || !continues_; }
  // What is left of `range` there: of the diagonals of queries `slots`, or of the queries of
  // diagonals `slots` of the strip.
  static SlotRange InTile(SlotRange range, SlotRange slots, int64_t first) {
    range.begin = std::max(range.begin, first > 0 ? 0 : kTile - slots.end);
    range.end = std::min(range.end, first > 0 ? kTile - 1 - slots.begin : kTile);
    return range.size() > 0 ? range : SlotRange();
  }
  // Element (query, diagonal) of a matrix [query][key].
  static float* At(const Packed& x, int64_t query, int64_t diagonal) {
    return x.Row(query) + diagonal - (kTile - 1) + query;
  }

  const GradTask& task_;
  const View& r_;
  const AttendSeq& seq_;
  const int64_t b_;
  const GradScratch& m_;
  Strip strips_[GradScratch::kMaxStrips];
  int64_t h_ = 0, apart_ = 0;  // distance of the first query and key of the pair at hand
  bool has_diagonals_ = false, continues_ = false, follows_ = false;
  Finiteness of_queries_;
  // Ranges of diagonals with visible pairs, of each strip of queries.
  SlotRange diagonals_[kGradStrips];
  uint64_t seen_before_[kTile], seen_[kTile];  // of the tile before, of the one at hand
};

inline void GradRelative::Start(const GradQueries& queries) {
  if (!given()) return;
  Zero(m_.dq_rel, queries.slots.count);
  of_queries_.Forget();
}

inline GradRelative::Strip& GradRelative::Find(int64_t top, int64_t h) {
  const auto count = static_cast<int64_t>(m_.strips.size());
  const int64_t number = FloorDiv(top, kTile);
  Strip& strip = strips_[number - FloorDiv(number, count) * count];
  if (strip.top == top && strip.h == h) return strip;
  strip.top = top;
  strip.h = h;
  strip.finiteness.Forget();
  const HeadRows r = HeadRows::Of(r_, b_, h);
  // Rows that lie close together and repeat nothing serve as they lie.
  constexpr int64_t kCloseBytes = 512;
  const bool lie_close = r.dtype == DType::kF32 && r.stride <= kCloseBytes;
  if (lie_close && top <= Last() && top - kTile + 1 >= 0 && task_.D % kLanes == 0) {
    strip.r = {reinterpret_cast<float*>(r.Row(top)),
               -r.stride / static_cast<int64_t>(sizeof(float)), task_.D};
  } else {
    strip.r = strip.space;
    for (int64_t c = 0; c < kTile; ++c) {
      PackRow(r, std::clamp<int64_t>(top - c, 0, Last()), 1.0f, strip.r, c);
    }
  }
  Transpose(strip.r.data, strip.r.stride, kTile, task_.D, strip.rt.data, strip.rt.stride);
  return strip;
}

inline void GradRelative::Load(const GradQueries& queries, const GradKeys& keys,
                               const uint64_t* seen, const SeenByStrips& strips, bool follows) {
  const int64_t rows = queries.slots.count;
  h_ = queries.h;
  continues_ = std::exchange(follows_, follows);
  has_diagonals_ = HasDiagonals(queries, keys);
  if (continues_) Continue(rows);
  if (!has_diagonals_) return LoadPairs(queries, keys, seen);
  apart_ = queries.slots.rows[0] + seq_.offset - keys.slots.rows[0];
  FindDiagonals(rows, strips);
  if (!continues_) LoadStrip(rows, 0, /*whole=*/false);
  LoadStrip(rows, kTile, /*whole=*/follows);
}

// The keys of the pair before are now those to the left.
inline void GradRelative::Continue(int64_t queries) {
  const DF d;
  for (int64_t i = 0; i < queries; ++i) {
    // Columns from i + 1 on are on diagonals of the left strip, those up to i of the right one.
    float *dscores = m_.dscores.Row(i), *weights = m_.weights.Row(i);
    for (int64_t x = (i + 1) / kLanes * kLanes; x < kTile; x += kLanes) {
      hn::StoreU(hn::LoadU(d, dscores + x), d, dscores + x - kTile);
    }
    for (int64_t x = 0; x <= i; x += kLanes) {
      hn::StoreU(hn::LoadU(d, weights + kTile + x), d, weights + x);
    }
  }
  std::copy_n(seen_, queries, seen_before_);
}

inline void GradRelative::FindDiagonals(int64_t queries, const SeenByStrips& strips) {
  for (int64_t s = 0; s * kGradStrip < queries; ++s) {
    SlotRange& diagonals = diagonals_[s];
    diagonals = continues_ ? Within(diagonals, kTile) : SlotRange();
    const SlotRange keys = strips.of[s];
    if (keys.size() == 0) continue;
    const int64_t first = s * kGradStrip, end = std::min(first + kGradStrip, queries);
    const SlotRange own = {keys.begin + kTile - end, keys.end + kTile - 1 - first};
    const bool has_left = diagonals.size() > 0;
    diagonals = {has_left ? std::min(diagonals.begin, own.begin) : own.begin,
                 std::max(diagonals.end, own.end)};
  }
  if (continues_) return;
  std::fill_n(seen_before_, queries, uint64_t{0});
  const DF d;
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t x = -GradScratch::kBeyond; x < 0; x += kLanes) {
      hn::StoreU(hn::Zero(d), d, m_.dscores.Row(i) + x);
    }
  }
}

// Scores of the diagonals of a strip that are needed, or of all.
inline void GradRelative::LoadStrip(int64_t queries, int64_t first, bool whole) {
  SeenByStrips needed;
  bool any = false;
  for (int64_t s = 0; s * kGradStrip < queries; ++s) {
    needed.of[s] = whole ? SlotRange{0, kTile} : WholeVectors(Within(diagonals_[s], first), kTile);
    any = any || needed.of[s].size() > 0;
  }
  if (!any) return;
  const Strip& strip = Find(apart_ + kTile - 1 - first, h_);
  needed.ForEach(queries, [&](SlotRange rows, SlotRange diagonals) HWY_ATTR {
    Gemm<Start::kZero>(
        rows.size(), diagonals.size(), task_.D, ByRow(From(m_.q_rel, rows.begin, 0)),
        AsRows(From(strip.rt, 0, diagonals.begin)),
        {At(m_.weights, rows.begin, first + diagonals.begin), m_.weights.stride + 1});
  });
}

inline void GradRelative::LoadPairs(const GradQueries& queries, const GradKeys& keys,
                                    const uint64_t* seen) {
  const HeadRows r = HeadRows::Of(r_, b_, h_);
  Zero(m_.weights, queries.slots.count);
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    for (uint64_t rest = seen[i]; rest != 0; rest &= rest - 1) {
      const int64_t x = std::countr_zero(rest);
      const char* row = r.Row(Distance(queries, i, keys.slots.rows[x]));
      m_.weights.Row(i)[x] =
          DotInOrder(reinterpret_cast<const float*>(row), m_.q_rel.Row(i), task_.D);
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
