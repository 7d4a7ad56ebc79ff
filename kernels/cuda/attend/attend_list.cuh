// Attention over listed pairs, forward: a warp for each query row, which follows its own list.
// Bound: the bytes of the listed rows of k and v, from L2 where a head's fit there.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/attend/list_dot.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

constexpr int kListThreads = 256;
constexpr int kListRows = kListThreads / 32;  // of a block
constexpr int kListColumns = 256;             // values that a warp sums at a time
// Keys of a row that a launch takes, so that it ends in a few milliseconds, and what one takes: an
// ESTIMATE.
constexpr int64_t kListKeys = 1 << 14;
constexpr double kListKeySeconds = 2e-7;

// A problem, and what rows with more keys than that carry from launch to launch; null: there are
// none. Of row i of B * H * Nq: its sums of values, then maximum and sum for each kListColumns.
struct ListData {
  AttendData p;
  float* carries;

  static constexpr int64_t ChunksOf(int64_t Dv) {
    return Dv <= kListColumns ? 1 : (Dv + kListColumns - 1) / kListColumns;
  }
  static constexpr int64_t FloatsOf(int64_t Dv) { return Dv + 2 * ChunksOf(Dv); }
};

SIMT_FN float WarpMax(float x) {
  for (int flip = 16; flip > 0; flip /= 2) x = fmaxf(x, __shfl_xor_sync(simt::kAllLanes, x, flip));
  return x;
}

__global__ void __launch_bounds__(kListThreads, 2)
    AttendListed(const __grid_constant__ Problems<ListData> problems, const int64_t round) {
  const auto found = FindPlace(problems);
  const AttendData& p = found.problem.p;
  const int64_t blocks_a_head = (p.Nq + kListRows - 1) / kListRows;
  const int64_t head_index = found.block / blocks_a_head;
  const AttendHead head = AttendHead::Of(p, head_index / p.H, head_index % p.H);
  const int64_t row = found.block % blocks_a_head * kListRows + threadIdx.x / 32;
  if (row >= p.Nq) return;
  const int lane = threadIdx.x % 32;
  const HeadRows q = HeadRows::Of(p.q, head.b, head.h), k = HeadRows::Of(p.k, head.b, head.kv);
  const HeadRows v = HeadRows::Of(p.v, head.b, head.kv);
  const bool fours = ReadsFour(q, p.D) && ReadsFour(k, p.D);
  const bool is_valid = row < head.nq;
  int64_t begin = 0, end = 0;
  if (is_valid && head.pattern != nullptr && row < head.pattern->Nq) {
    begin = head.pattern->keys_begin[row];
    end = head.pattern->keys_begin[row + 1];
  }
  const int64_t skipped = round * kListKeys;
  if (round > 0 && end - begin <= skipped) return;
  const bool is_last = end - begin - skipped <= kListKeys;
  begin += skipped;
  end = min(end, begin + kListKeys);
  float* const carry =
      found.problem.carries == nullptr
          ? nullptr
          : found.problem.carries + (head_index * p.Nq + row) * ListData::FloatsOf(p.Dv);
  const float sink = is_valid ? SinkOf(p, head.b, head.h) : -INFINITY;
  PairTerms pair = {};
  pair.query_row = row;
  pair.position = Position::Of(row, head.offset);
  pair.slope = Slope::Of(p, head.b, head.h);
  const int64_t out_at = p.out.Head(head.b, head.h) + row * p.out.row;
  for (int first = 0; first == 0 || first < p.Dv; first += kListColumns) {
    float out[kListColumns / 32] = {};
    float max = sink, sum = sink > -INFINITY && lane == 0 ? 1.0f : 0.0f;
    float* const state = carry == nullptr ? nullptr : carry + p.Dv + first / kListColumns * 2;
    if (round > 0) {
      max = state[0];
      sum = lane == 0 ? state[1] : 0.0f;
      for (int m = 0; m < kListColumns / 32; ++m) {
        const int c = first + m * 32 + lane;
        if (c < p.Dv) out[m] = carry[c];
      }
    }
    for (int64_t at = begin; at < end; at += 32) {
      const int64_t key = at + lane < end ? int64_t{head.pattern->keys[at + lane]} : int64_t{-1};
      float product = 0;
      for (int step = 0; step < 8; ++step) {
        const int64_t own = __shfl_sync(simt::kAllLanes, key, step * 4 + lane / 8);
        const float dot = ListDot<4>(q, row, k, own < head.nk ? own : -1, p.D, fours);
        const float mine = __shfl_sync(simt::kAllLanes, dot, lane % 4 * 8);
        if (lane / 4 == step) product = mine;
      }
      bool sees = key >= 0 && key < head.nk;
      float s = -INFINITY, through_cap;
      if (sees) {
        pair.key_row = key;
        s = ScoreOf(p, head.b, head.h, product, pair, &sees, &through_cap);
      }
      const float old = max;
      max = fmaxf(old, WarpMax(s));
      const float base = max == -INFINITY ? 0.0f : max;
      const float decay = WeightBelow(old, base);
      const float weight = sees ? WeightBelow(s, base) : 0.0f;
      sum = sum * decay + weight;
      for (int m = 0; m < kListColumns / 32; ++m) out[m] *= decay;
      for (unsigned seen = __ballot_sync(simt::kAllLanes, sees); seen != 0; seen &= seen - 1) {
        const int from = __ffs(static_cast<int>(seen)) - 1;
        const float w = __shfl_sync(simt::kAllLanes, weight, from);
        const int64_t v_at = v.At(__shfl_sync(simt::kAllLanes, key, from)) + first;
        for (int m = 0; m < kListColumns / 32; ++m) {
          const int c = m * 32 + lane;
          if (first + c < p.Dv) out[m] = fmaf(w, LoadFloat(v.data, v.dtype, v_at + c), out[m]);
        }
      }
    }
    const float total = simt::WarpSum(sum);
    if (!is_last) {
      __syncwarp();  // lanes have read the state
      if (lane == 0) state[0] = max, state[1] = total;
      for (int m = 0; m < kListColumns / 32; ++m) {
        const int c = first + m * 32 + lane;
        if (c < p.Dv) carry[c] = out[m];
      }
      continue;
    }
    for (int m = 0; m < kListColumns / 32; ++m) {
      const int c = first + m * 32 + lane;
      if (c < p.Dv)
        StoreFloat(p.out.data, p.out.dtype, out_at + c, total == 0 ? 0 : out[m] / total);
    }
    if (lane == 0 && first == 0) StoreLse(p, head.b, head.h, row, RowLse::Of(max, total));
  }
}

}  // namespace attnd::cuda
