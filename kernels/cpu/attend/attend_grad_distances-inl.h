// The gradients of q_rel and r in the backward of attend.
#if defined(ATTND_CPU_ATTEND_GRAD_DISTANCES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_GRAD_DISTANCES_INL_H_
#undef ATTND_CPU_ATTEND_GRAD_DISTANCES_INL_H_
#else
#define ATTND_CPU_ATTEND_GRAD_DISTANCES_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_grad_relative-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline void GradRelative::AddGradients(const GradQueries& queries, const GradKeys& keys,
                                       const uint64_t* seen, bool wants_dq_rel,
                                       const PartialRows& dr) {
  if (!wants_dq_rel && !dr.wanted()) return;
  std::copy_n(seen, queries.slots.count, seen_);
  if (!has_diagonals_) return AddPairs(queries, keys, wants_dq_rel, dr);
  const int64_t count = keys.slots.count;
  for (int64_t i = 0; count < kTile && i < queries.slots.count; ++i) {
    std::fill(m_.dscores.Row(i) + count, m_.dscores.Row(i) + kTile, 0.0f);
  }
  AddStrip(queries, 0, wants_dq_rel, dr);
  if (!follows_) AddStrip(queries, kTile, wants_dq_rel, dr);
}

inline void GradRelative::AddStrip(const GradQueries& queries, int64_t first, bool wants_dq_rel,
                                   const PartialRows& dr) {
  const int64_t rows = queries.slots.count;
  bool any = false;
  for (int64_t s = 0; s * kGradStrip < rows; ++s) {
    any = any || Within(diagonals_[s], first).size() > 0;
  }
  if (!any) return;
  Strip& strip = Find(apart_ + kTile - 1 - first, h_);
  // A weight of 0 does not hide them from pairs that are invisible or have other distances.
  if (of_queries_.HasNonFinite(m_.q_rel, Packed(), rows) ||
      strip.finiteness.HasNonFinite(strip.r, Packed(), kTile)) {
    return AddSeen(queries, first, strip, wants_dq_rel, dr);
  }
  if (wants_dq_rel) AddToQueries(rows, first, strip);
  if (dr.wanted()) AddToDistances(rows, first, dr);
}

inline void GradRelative::AddToQueries(int64_t queries, int64_t first, const Strip& strip) {
  SeenByStrips needed;
  for (int64_t s = 0; s * kGradStrip < queries; ++s) {
    needed.of[s] = Within(diagonals_[s], first);
  }
  const auto multiply = [&](SlotRange rows, SlotRange diagonals) HWY_ATTR {
    if (diagonals.size() == 0) return;
    Gemm<Start::kAdd>(
        rows.size(), Vectors(m_.dq_rel), diagonals.size(),
        {At(m_.dscores, rows.begin, first + diagonals.begin), m_.dscores.stride + 1, 1},
        AsRows(From(strip.r, diagonals.begin, 0)), Mutable(From(m_.dq_rel, rows.begin, 0)));
  };
  needed.ForEach(queries, [&](SlotRange rows, SlotRange diagonals) HWY_ATTR {
    if (!IsEnd(first)) return multiply(rows, diagonals);
    for (int64_t i = rows.begin; i < rows.end; i += kRows) {
      const SlotRange own = {i, std::min(i + kRows, rows.end)};
      multiply(own, InTile(diagonals, own, first));
    }
  });
}

inline void GradRelative::AddToDistances(int64_t queries, int64_t first, const PartialRows& dr) {
  SeenByStrips needed;  // queries of strips of diagonals
  for (int64_t c = 0; c < kGradStrips; ++c) {
    const SlotRange own = {c * kGradStrip, std::min((c + 1) * kGradStrip, kTile)};
    SlotRange rows;
    for (int64_t s = 0; s * kGradStrip < queries; ++s) {
      const SlotRange range = Within(diagonals_[s], first);
      if (range.size() == 0 || range.begin >= own.end || range.end <= own.begin) continue;
      if (rows.size() == 0) rows.begin = s * kGradStrip;
      rows.end = std::min((s + 1) * kGradStrip, queries);
    }
    needed.of[c] = rows;
  }
  // Rows that lie in order are added to where they lie.
  const int64_t most = apart_ + kTile - 1 - first;  // distance of the first diagonal
  const bool in_order = most <= Last() && most - kTile + 1 >= 0;
  MutableRows to = Mutable(m_.dr);
  if (in_order) {
    const uint8_t* touched = dr.touched + most - kTile + 1;
    if (std::memchr(touched, 0, kTile) != nullptr) {
      for (int64_t c = 0; c < kTile; ++c) dr.Open(most - c);
    }
    to = {dr.Open(most), -dr.stride};
  } else {
    Zero(m_.dr, kTile);
  }
  const auto multiply = [&](SlotRange diagonals, SlotRange rows) HWY_ATTR {
    if (rows.size() == 0) return;
    Gemm<Start::kAdd>(
        diagonals.size(), Vectors(m_.q_rel), rows.size(),
        {At(m_.dscores, rows.begin, first + diagonals.begin), 1, m_.dscores.stride + 1},
        AsRows(From(m_.q_rel, rows.begin, 0)), {to.data + diagonals.begin * to.stride, to.stride});
  };
  needed.ForEach(kTile, [&](SlotRange diagonals, SlotRange rows) HWY_ATTR {
    if (!IsEnd(first)) return multiply(diagonals, rows);
    for (int64_t c = diagonals.begin; c < diagonals.end; c += kRows) {
      const SlotRange own = {c, std::min(c + kRows, diagonals.end)};
      multiply(own, InTile(rows, own, first));
    }
  });
  for (int64_t c = 0; !in_order && c < kTile; ++c) {
    AddRow(1.0f, m_.dr.Row(c), dr.Open(std::clamp<int64_t>(most - c, 0, Last())));
  }
}

// The same for visible pairs only, of this tile of keys and the one before.
inline void GradRelative::AddSeen(const GradQueries& queries, int64_t first, Strip& strip,
                                  bool wants_dq_rel, const PartialRows& dr) {
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    for (int64_t c = 0; c < kTile; ++c) {
      const int64_t x = first + c - (kTile - 1) + i;
      if (x < -kTile || x >= kTile) continue;
      if (((x < 0 ? seen_before_[i] : seen_[i]) >> (x & (kTile - 1)) & 1) == 0) continue;
      const float dscore = m_.dscores.Row(i)[x];
      if (wants_dq_rel) AddRow(dscore, strip.r.Row(c), m_.dq_rel.Row(i));
      if (!dr.wanted()) continue;
      AddRow(dscore, m_.q_rel.Row(i), dr.Open(std::clamp<int64_t>(strip.top - c, 0, Last())));
    }
  }
}

// The same where slots are not in natural order.
inline void GradRelative::AddPairs(const GradQueries& queries, const GradKeys& keys,
                                   bool wants_dq_rel, const PartialRows& dr) {
  const HeadRows r = HeadRows::Of(r_, b_, h_);
  for (int64_t i = 0; i < queries.slots.count; ++i) {
    for (uint64_t rest = seen_[i]; rest != 0; rest &= rest - 1) {
      const int64_t x = std::countr_zero(rest);
      const int64_t distance = Distance(queries, i, keys.slots.rows[x]);
      const float dscore = m_.dscores.Row(i)[x];
      if (dr.wanted()) AddRow(dscore, m_.q_rel.Row(i), dr.Open(distance));
      if (!wants_dq_rel) continue;
      PackRow(r, distance, 1.0f, m_.dr, 0);
      AddRow(dscore, m_.dr.Row(0), m_.dq_rel.Row(i));
    }
  }
}

inline void GradRelative::AddRow(float factor, const float* from, float* to) const {
  const DF d;
  for (int64_t x = 0; x < Vectors(m_.q_rel); x += kLanes) {
    hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, from + x), hn::LoadU(d, to + x)), d,
               to + x);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
