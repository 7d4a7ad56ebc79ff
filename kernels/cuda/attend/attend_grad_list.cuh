// The gradient of attend over listed pairs: a warp for a query row (dq and sums of the row), for a
// key row (dk, dv; the query heads of a kv head one after the other), or for a row of dbias. Rows
// of long lists take several launches.
//
// Bound: bytes, D + Dv elements of k and v, or of q and dout, a pair, mostly from L2.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/list_dot.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda::attend_grad {

constexpr int kListThreads = 128;
constexpr int kListWarps = kListThreads / 32;
constexpr int kListColumns = 8;  // of a lane at a time
// Blocks of a processor at least: the compiler spills rather than give a thread more registers than
// it thinks good.
constexpr int kListBlocks = 5;

struct ListPair {
  bool sees;
  float weight, dscore, kept;  // P, dS, dT
  float distance;
};

// Lane 0 to 31 of a warp that weighs a pair together.
class ListWarp {
 public:
  SIMT_FN explicit ListWarp(const GradData& problem) : p(problem), lane_(threadIdx.x % 32) {}

  SIMT_FN float Dot(const HeadRows& x, int64_t i, const HeadRows& y, int64_t j, int width) const {
    float sum = 0;
    const int64_t from_x = x.At(i), from_y = y.At(j);
    for (int d = lane_; d < width; d += 32) {
      sum =
          fmaf(LoadFloat(x.data, x.dtype, from_x + d), LoadFloat(y.data, y.dtype, from_y + d), sum);
    }
    return simt::WarpSum(sum);
  }
  SIMT_FN ListPair Weigh(const AttendHead& head, const GradRow& row, const Slope& slope, int64_t i,
                         int64_t j, bool needs_scores) const {
    ListPair pair = {true, 0, 0, 0, 0};
    const Position position = Position::Of(i, head.offset);
    const HeadRows q = HeadRows::Of(p.a.q, head.b, head.h);
    const HeadRows k = HeadRows::Of(p.a.k, head.b, head.kv);
    const bool fours = ReadsFour(q, p.a.D) && ReadsFour(k, p.a.D);
    const float product = ListDot<1>(q, i, k, j, p.a.D, fours);
    float through_cap;
    const float s = ScoreOf(p.a, head.b, head.h, product, {i, j, position, slope, 0, nullptr, 0},
                            &pair.sees, &through_cap);
    if (!pair.sees) return pair;
    float dp = 0;
    if (needs_scores && p.dout.data != nullptr) {
      dp = Dot(HeadRows::Of(p.dout, head.b, head.h), i, HeadRows::Of(p.a.v, head.b, head.kv), j,
               p.a.Dv);
    }
    pair.weight = row.WeightOf(s);
    pair.dscore = pair.weight * (dp - row.shift);
    pair.kept = pair.dscore * through_cap;
    if (slope.given) pair.distance = position.DistanceTo(j);
    return pair;
  }
  // sums += weight x, of columns lane + 32 n from `first` on.
  SIMT_FN void Add(float (&sums)[kListColumns], float weight, const HeadRows& x, int64_t i,
                   int first, int width) const {
    const int64_t from = x.At(i);
#pragma unroll
    for (int n = 0; n < kListColumns; ++n) {
      const int d = first + lane_ + 32 * n;
      if (d < width) sums[n] = fmaf(weight, LoadFloat(x.data, x.dtype, from + d), sums[n]);
    }
  }
  SIMT_FN void Load(float (&sums)[kListColumns], const Plane& from, int64_t b, int64_t h,
                    int64_t row, int first, int width) const {
#pragma unroll
    for (int n = 0; n < kListColumns; ++n) {
      const int d = first + lane_ + 32 * n;
      if (d < width) {
        sums[n] = LoadFloat(from.data, from.dtype, from.Head(b, h) + row * from.row + d);
      }
    }
  }
  SIMT_FN void Store(const float (&sums)[kListColumns], float factor, const Plane& to, int64_t b,
                     int64_t h, int64_t row, int first, int width) const {
#pragma unroll
    for (int n = 0; n < kListColumns; ++n) {
      const int d = first + lane_ + 32 * n;
      if (d < width) {
        StoreFloat(to.data, to.dtype, to.Head(b, h) + row * to.row + d, sums[n] * factor);
      }
    }
  }

 private:
  const GradData& p;
  const int lane_;
};

struct Listed {
  const int32_t *begin, *end;
};
SIMT_FN Listed ListOf(const int64_t* begin, const int32_t* columns, int64_t row) {
  if (begin == nullptr) return {nullptr, nullptr};
  return {columns + begin[row], columns + begin[row + 1]};
}
SIMT_FN Listed KeysOf(const AttendHead& head, int64_t i) {
  if (head.pattern == nullptr || i >= head.nq) return {nullptr, nullptr};
  return ListOf(head.pattern->keys_begin, head.pattern->keys, i);
}
SIMT_FN Listed QueriesOf(const AttendHead& head, int64_t j) {
  if (head.pattern == nullptr || j >= head.nk) return {nullptr, nullptr};
  return ListOf(head.pattern->queries_begin, head.pattern->queries, j);
}

__global__ void __launch_bounds__(kListThreads, kListBlocks)
    GradListQueries(const __grid_constant__ Problems<GradData> problems, const int64_t round) {
  const auto [p, block, index] = FindPlace(problems);
  const int64_t blocks = (p.a.Nq + kListWarps - 1) / kListWarps;
  const int64_t i = block % blocks * kListWarps + threadIdx.x / 32;
  const int64_t h = block / blocks % p.a.H, b = block / blocks / p.a.H;
  if (i >= p.a.Nq) return;
  const ListWarp warp(p);
  const AttendHead head = AttendHead::Of(p.a, b, h);
  const GradRow row = p.RowsOf(b, h)[i];
  const Slope slope = Slope::Of(p.a, b, h);
  Listed list = KeysOf(head, i);
  if (row.low_2 == INFINITY) list.end = list.begin;
  const int64_t left = list.end - list.begin - round * kListPairs;
  if (round > 0 && left <= 0) return;
  const bool is_last = left <= kListPairs;
  list.begin += round * kListPairs;
  if (!is_last) list.end = list.begin + kListPairs;
  float* const slope_sum =
      p.slope_sums == nullptr ? nullptr : p.slope_sums + (b * p.a.H + h) * p.a.Nq + i;
  const HeadRows k = HeadRows::Of(p.a.k, b, head.kv);
  const bool wants_dq = p.dq.data != nullptr;
  float distances = round > 0 && slope_sum != nullptr ? -*slope_sum : 0;
  __syncwarp();  // all lanes have read it
  for (int first = 0; first < (wants_dq ? p.a.D : 1); first += 32 * kListColumns) {
    float sums[kListColumns] = {};
    if (round > 0 && wants_dq) warp.Load(sums, p.dq_carry, b, h, i, first, p.a.D);
    for (const int32_t* key = list.begin; key != list.end; ++key) {
      const ListPair pair = warp.Weigh(head, row, slope, i, *key, true);
      if (!pair.sees) continue;
      if (first == 0) distances = fmaf(pair.dscore, pair.distance, distances);
      if (wants_dq) warp.Add(sums, pair.kept, k, *key, first, p.a.D);
    }
    if (!wants_dq) continue;
    if (is_last) {
      warp.Store(sums, p.a.scale, p.dq, b, h, i, first, p.a.D);
    } else {
      warp.Store(sums, 1, p.dq_carry, b, h, i, first, p.a.D);
    }
  }
  if (slope_sum != nullptr && threadIdx.x % 32 == 0) *slope_sum = -distances;
}

__global__ void __launch_bounds__(kListThreads, kListBlocks)
    GradListKeys(const __grid_constant__ Problems<GradData> problems, const int64_t round) {
  const auto [p, block, index] = FindPlace(problems);
  const int64_t blocks = (p.a.Nk + kListWarps - 1) / kListWarps;
  const int64_t j = block % blocks * kListWarps + threadIdx.x / 32;
  const int64_t kv_heads = p.a.H / p.a.group;
  const int64_t kv = block / blocks % kv_heads, b = block / blocks / kv_heads;
  if (j >= p.a.Nk) return;
  const ListWarp warp(p);
  const bool wants_dk = p.dk.data != nullptr, wants_dv = p.dv.data != nullptr;
  const int width = max(wants_dk ? p.a.D : 0, wants_dv ? p.a.Dv : 0);
  // Pairs of all query heads, one after the other.
  int64_t left = -round * kListPairs;
  for (int64_t h = kv * p.a.group; h < (kv + 1) * p.a.group; ++h) {
    const Listed list = QueriesOf(AttendHead::Of(p.a, b, h), j);
    left += list.end - list.begin;
  }
  if (round > 0 && left <= 0) return;
  const bool is_last = left <= kListPairs;
  for (int first = 0; first < width; first += 32 * kListColumns) {
    float of_k[kListColumns] = {}, of_v[kListColumns] = {};
    if (round > 0 && wants_dk) warp.Load(of_k, p.dk_carry, b, kv, j, first, p.a.D);
    if (round > 0 && wants_dv) warp.Load(of_v, p.dv_carry, b, kv, j, first, p.a.Dv);
    int64_t before = -round * kListPairs;  // pairs of the heads before that are not skipped
    for (int64_t h = kv * p.a.group; h < (kv + 1) * p.a.group; ++h) {
      const AttendHead head = AttendHead::Of(p.a, b, h);
      Listed list = QueriesOf(head, j);
      const int64_t pairs = list.end - list.begin;
      list.end = list.begin + min(pairs, max(kListPairs - before, int64_t{0}));
      list.begin += min(list.end - list.begin, max(-before, int64_t{0}));
      before += pairs;
      const Slope slope = Slope::Of(p.a, b, h);
      const GradRow* rows = p.RowsOf(b, h);
      const HeadRows q = HeadRows::Of(p.a.q, b, h), dout = HeadRows::Of(p.dout, b, h);
      for (const int32_t* query = list.begin; query != list.end; ++query) {
        const GradRow row = rows[*query];
        if (row.low_2 == INFINITY) continue;
        const ListPair pair = warp.Weigh(head, row, slope, *query, j, wants_dk);
        if (!pair.sees) continue;
        if (wants_dk) warp.Add(of_k, pair.kept, q, *query, first, p.a.D);
        if (wants_dv && dout.data != nullptr) {
          warp.Add(of_v, pair.weight, dout, *query, first, p.a.Dv);
        }
      }
    }
    if (wants_dk && is_last) warp.Store(of_k, p.a.scale, p.dk, b, kv, j, first, p.a.D);
    if (wants_dv && is_last) warp.Store(of_v, 1, p.dv, b, kv, j, first, p.a.Dv);
    if (wants_dk && !is_last) warp.Store(of_k, 1, p.dk_carry, b, kv, j, first, p.a.D);
    if (wants_dv && !is_last) warp.Store(of_v, 1, p.dv_carry, b, kv, j, first, p.a.Dv);
  }
}

// A block for a share of a row of dbias, which holds zeros before: warps cannot share one.
__global__ void __launch_bounds__(32, kListBlocks* kListWarps)
    GradListBias(const __grid_constant__ Problems<GradData> problems, const int64_t round) {
  const auto [p, block, index] = FindPlace(problems);
  const int64_t rows = p.bias_q ? 1 : p.a.Nq, to_row = block % rows;
  const BiasPlace place = p.BiasPlaceOf(block / rows, round);
  float* const to = static_cast<float*>(p.bias_sums.data) + place.at + to_row * p.bias_sums.row;
  const ListWarp warp(p);
  float total = 0;
  for (int64_t n = place.first; n < place.end; ++n) {
    const BiasItem item = p.BiasItemOf(place, n);
    const AttendHead head = AttendHead::Of(p.a, item.b, item.h);
    const Slope slope = Slope::Of(p.a, item.b, item.h);
    const int64_t first = p.bias_q ? item.q_part * kListBiasRows : to_row;
    const int64_t end = p.bias_q ? min(head.nq, first + kListBiasRows) : to_row + 1;
    for (int64_t i = first; i < end; ++i) {
      const GradRow row = p.RowsOf(item.b, item.h)[i];
      if (row.low_2 == INFINITY) continue;
      const Listed list = KeysOf(head, i);
      for (const int32_t* key = list.begin; key != list.end; ++key) {
        const ListPair pair = warp.Weigh(head, row, slope, i, *key, true);
        if (!pair.sees) continue;
        total += pair.dscore;
        if (!p.bias_k && threadIdx.x == 0) to[*key * p.bias_sums.column] += pair.dscore;
      }
    }
  }
  if (p.bias_k && threadIdx.x == 0) *to += total;
}

}  // namespace attnd::cuda::attend_grad
