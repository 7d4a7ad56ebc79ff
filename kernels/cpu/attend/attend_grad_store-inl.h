// What the shares of keys store: gradients where they lie, partial sums, and the sums over shares.
#if defined(ATTND_CPU_ATTEND_GRAD_STORE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ATTEND_GRAD_STORE_INL_H_
#undef ATTND_CPU_ATTEND_GRAD_STORE_INL_H_
#else
#define ATTND_CPU_ATTEND_GRAD_STORE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/attend/attend_backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// dS of the pair that was weighed last, of `queries` and `keys` of the sequence; 0 beyond them.
inline void ShareOfKeys::StoreBias(int64_t h, int64_t q_tile, int64_t k_tile, int64_t queries,
                                   int64_t keys) {
  const HeadRows to = HeadRows::Of(task_.problem->dterms.bias, s_.b, h);
  const int64_t first = k_tile * kTile, columns = std::min(kTile, task_.Nk - first);
  const int64_t size = SizeOf(to.dtype);
  for (int64_t i = 0; i < queries; ++i) {
    char* row = to.Row(q_tile * kTile + i) + first * size;
    Narrow(to.dtype, m_.dscores.Row(i), keys, row);
    std::memset(row + keys * size, 0, static_cast<size_t>((columns - keys) * size));
  }
  ClearBias(h, q_tile * kTile + queries, std::min((q_tile + 1) * kTile, task_.Nq), k_tile);
}

// Rows [begin, end) of a key tile's columns, where no pair is visible.
inline void ShareOfKeys::ClearBias(int64_t h, int64_t begin, int64_t end, int64_t k_tile) {
  const HeadRows to = HeadRows::Of(task_.problem->dterms.bias, s_.b, h);
  const int64_t first = k_tile * kTile, columns = std::min(kTile, task_.Nk - first);
  const int64_t size = SizeOf(to.dtype);
  for (int64_t i = begin; i < end; ++i) {
    if (i % kTile == 0 && CheckPoint()) return;
    std::memset(to.Row(i) + first * size, 0, static_cast<size_t>(columns * size));
  }
}

// dq or dq_rel of a query tile to its rows.
inline void ShareOfKeys::AddRows(const TileSlots& slots, const Packed& rows,
                                 const PartialRows& sums) {
  const DF d;
  for (int64_t i = 0; i < slots.count; ++i) {
    if (slots.rows[i] < 0) continue;
    const float* from = rows.Row(i);
    float* to = sums.sums + slots.rows[i] * sums.stride;
    uint8_t& touched = sums.touched[slots.rows[i]];
    for (int64_t x = 0; x < Vectors(rows); x += kLanes) {
      const VF more = hn::LoadU(d, from + x);
      hn::StoreU(touched == 0 ? more : hn::Add(hn::LoadU(d, to + x), more), d, to + x);
    }
    touched = 1;
  }
}

// To their rows, or to the sums of rows where several slots may be one row.
inline void ShareOfKeys::StoreKeys(const GradKeys& keys, int64_t tile) {
  if (!task_.gathers) {
    const int64_t first = tile * kTile;
    for (int64_t i = 0; i < std::min(kTile, task_.Nk - first); ++i) StoreKey(keys, i, first + i);
    return;
  }
  const auto add = [](const PartialRows& sums, const Packed& tile_sums, int64_t row, int64_t i) {
    float* to = sums.Open(row);
    for (int64_t x = 0; x < tile_sums.width; ++x) to[x] += tile_sums.Row(i)[x];
  };
  for (int64_t i = 0; i < keys.slots.count; ++i) {
    const int64_t row = keys.slots.rows[i];
    if (row < 0) continue;
    if (task_.stores_keys[s_.b]) {
      StoreKey(keys, i, row);
      continue;
    }
    if (dk_.wanted()) add(dk_, keys.m.dk, row, i);
    if (dv_.wanted()) add(dv_, keys.m.dv, row, i);
  }
}

// Q carries scale.
inline void ShareOfKeys::StoreKey(const GradKeys& keys, int64_t i, int64_t row) {
  const AttendGradProblem& grad = *task_.problem;
  const bool second = row >= task_.Nk;
  const View &dk = second ? grad.dterms.k2 : grad.dk, &dv = second ? grad.dterms.v2 : grad.dv;
  const int64_t at = second ? row - task_.Nk : row;
  if (Wants(dk, /*dry=*/false)) {
    const HeadRows to = HeadRows::Of(dk, s_.b, s_.kv_head);
    Narrow(to.dtype, keys.m.dk.Row(i), task_.D, to.Row(at));
  }
  if (Wants(dv, /*dry=*/false)) {
    const HeadRows to = HeadRows::Of(dv, s_.b, s_.kv_head);
    Narrow(to.dtype, keys.m.dv.Row(i), task_.Dv, to.Row(at));
  }
}

// Rows of dk and dv that stand in no slot, where rows are stored as they come.
inline void ShareOfKeys::ClearMissingKeys() {
  if (!task_.gathers || !task_.stores_keys[s_.b] || s_.share != 0) return;
  for (const GradSum::Kind kind : {GradSum::kDk, GradSum::kDv}) {
    const PartialRows marks = task_.Of(kind, s_.b, s_.kv_head, s_.share);
    if (!marks.wanted()) continue;
    marks.Clear();
    const Pattern* pattern = seq_.Of(s_.kv_head * task_.group);
    if (pattern != nullptr && !pattern->key_rows.empty()) {
      for (int32_t row : pattern->key_rows) {
        if (row >= 0) marks.touched[row] = 1;
      }
    } else {
      std::memset(marks.touched, 1, static_cast<size_t>(seq_.nk));
    }
    const GradSum& sum = task_.sums[kind];
    for (int64_t row = 0; row < marks.rows; ++row) {
      const bool second = row >= task_.Nk;
      const View& view = second ? sum.tail : sum.out;
      if (marks.touched[row] != 0 || !view.given()) continue;
      const HeadRows to = HeadRows::Of(view, s_.b, s_.kv_head);
      std::memset(to.Row(second ? row - task_.Nk : row), 0,
                  static_cast<size_t>(sum.width * SizeOf(view.dtype)));
    }
  }
}

// `count` rows of a gradient from `first` on to plane (b, h) of `out`: the partial sums of all that
// the plane stands for, in their order. `space`: stride() floats.
inline void SumPlane(const GradTask& task, const PlaneSum& plane, float* space) {
  const DF d;
  const auto& [kind, out, first, count, b, h] = plane;
  const GradSum& sum = task.sums[kind];
  const int64_t rows = out.shape[2], stride = sum.stride();
  // A dimension of 1 is the sum over the whole dimension.
  const int64_t b_end = out.shape[0] == 1 ? task.B : b + 1;
  const int64_t h_end = out.shape[1] == 1 ? sum.heads : h + 1;
  const int64_t repeats = rows == 1 ? count : 1;
  const HeadRows to = HeadRows::Of(out, b, h);
  for (int64_t row = 0; row < rows; ++row) {
    if (row % kTile == 0 && CheckPoint()) return;
    std::fill_n(space, stride, 0.0f);
    for (int64_t bb = b; bb < b_end; ++bb) {
      for (int64_t hh = h; hh < h_end; ++hh) {
        for (int64_t share = 0; share < task.shares; ++share) {
          const PartialRows part = task.Of(kind, bb, hh, share);
          for (int64_t r = first + row; r < first + row + repeats; ++r) {
            if (part.touched[r] == 0) continue;
            for (int64_t x = 0; x < sum.width; x += kLanes) {
              const VF more = hn::LoadU(d, part.sums + r * stride + x);
              hn::StoreU(hn::Add(hn::LoadU(d, space + x), more), d, space + x);
            }
          }
        }
      }
    }
    Narrow(out.dtype, space, sum.width, to.Row(row), static_cast<float>(sum.factor));
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
