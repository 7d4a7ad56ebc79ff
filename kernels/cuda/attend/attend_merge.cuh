// The rows of query tiles whose key tiles were split over blocks: states of the parts, in their
// order, become out and lse. A warp a row. Bound: the bytes of the states, which L2 holds.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attend/attend_forward.h"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/attend_tiles.h"

namespace attnd::cuda {

__global__ void __launch_bounds__(kAttendThreads)
    MergeForward(const __grid_constant__ Problems<ForwardData> problems) {
  const auto found = FindPlace(problems);
  const ForwardData& data = found.problem;
  const AttendData& p = data.p;
  ForwardPlace place = {};
  place.rank = found.block % data.ranks;
  place.h = found.block / data.ranks % p.H;
  place.b = found.block / data.ranks / p.H;
  if (!data.Needs(place.b, place.h)) return;
  const AttendHead head = AttendHead::Of(p, place.b, place.h);
  const ForwardTile tile = ForwardTile::Of(data, head, place, place.rank, /*in_pairs=*/false);
  if (tile.index < 0 || tile.is_whole) return;
  const int64_t visible = head.pattern == nullptr ? (head.keys + kTile - 1) / kTile
                                                  : head.pattern->by_query.CountOf(tile.index);
  const auto parts = static_cast<int>((visible + tile.count - 1) / tile.count);
  const float* states = tile.State(data, place);
  const int64_t slots = head.query_rows != nullptr ? head.queries : p.Nq;
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < kTile; i += kAttendThreads / 32) {
    const int64_t slot = tile.index * kTile + i;
    if (slot >= slots) return;
    const int64_t row = head.query_rows == nullptr ? slot : head.query_rows[slot];
    if (row < 0) continue;
    const bool is_valid = row < head.nq, is_softmax = p.is_softmax();
    const float sink = is_softmax && is_valid ? SinkOf(p, place.b, place.h) : -INFINITY;
    const auto max_of = [&](int part) { return states[part * data.StateFloats() + i]; };
    const auto sum_of = [&](int part) {
      return states[part * data.StateFloats() + data.state_rows + i];
    };
    float max = is_softmax ? sink : 0.0f;
    for (int part = 0; part < parts && is_valid; ++part) max = fmaxf(max, max_of(part));
    const float base = max == -INFINITY ? 0.0f : max;
    float sum = sink > -INFINITY ? WeightBelow(sink, base) : 0.0f;
    for (int part = 0; part < parts && is_valid; ++part) {
      sum += sum_of(part) * (is_softmax ? WeightBelow(max_of(part), base) : 1.0f);
    }
    const bool sees = is_valid && sum != 0;
    const float factor = sees ? FactorOf(p, head, sum, row) : 0.0f;
    const int64_t at = p.out.Head(place.b, place.h) + row * p.out.row;
    for (int c = lane; c < p.Dv; c += 32) {
      float value = 0;
      for (int part = 0; part < parts && sees; ++part) {
        const float* values =
            states + part * data.StateFloats() + 2 * data.state_rows + int64_t{i} * p.Dv;
        const float share = is_softmax ? WeightBelow(max_of(part), base) : 1.0f;
        // A part that saw nothing has zeros.
        value = fmaf(values[c], share, value);
      }
      StoreFloat(p.out.data, p.out.dtype, at + c, sees ? value * factor : 0.0f);
    }
    if (is_softmax && lane == 0) StoreLse(p, place.b, place.h, row, RowLse::Of(max, sum));
  }
}

}  // namespace attnd::cuda
