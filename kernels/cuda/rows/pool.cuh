// Reductions of ranges of rows. A range is cut into pieces of 64 rows, each reduced by a group of
// threads side by side along the columns; up to eight pieces meet in shared memory, and longer
// ranges in further launches over what those gave: the order of a sum depends on the length of its
// range alone. Bound by memory: x is read once, rows of ranges that overlap from cache.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows/quads.h"
#include "kernels/device/pool.h"

namespace attnd::cuda {

constexpr int kPoolThreads = 256;
constexpr int kPoolPiece = 64, kPoolPieces = 8;
constexpr int kPoolRows = kPoolPiece * kPoolPieces;  // of a range in one launch

// Regular ranges: number m begins at begin + m step and has `length` rows, of which it has those
// before `limit`.
struct PoolSteps {
  int64_t begin = 0, step = 0, length = 0, limit = 0;
};

// What kMax knows of some rows, beside the largest in `x` or `out`.
struct PoolPlaces {
  float* best;     // the largest that is a number, [outer][rows][D]; null: none yet, or no longer
  int32_t* place;  // its row
};

struct PoolOver {
  PoolOp op;
  View x, out;      // [.., rows, D]
  View arg;         // of kSumWhere, and of kMax that writes `out`: may be not given
  PoolPlaces from;  // of x, that an earlier launch wrote
  PoolPlaces to;    // of out, for a later launch
  PoolSteps steps;
  // Of at most kPoolRows rows each; null: `steps`.
  const RowRange* ranges;
  // kMean: what the sum of a range is divided by, kSumWhere: what arg must be. Null: the rows of
  // the range, the number of the range.
  const int64_t* numbers;
  int64_t count;  // rows of out
  int64_t range_blocks, column_blocks;
  bool by_quads, stores_quads;
  uint8_t group_log2, pieces_log2;
};

constexpr size_t PoolShared(bool is_max) {
  return (is_max ? 3 : 1) * simt::SharedBytes<float>(kPoolThreads * kQuad);
}

template <int kWide>
struct PoolState {
  float value[kWide];  // sum, or the largest: NaN if there is one
  float best[kWide];
  int32_t place[kWide];
};

// A thread's columns of a matrix.
struct PoolColumns {
  int64_t x, arg, planes;  // elements before row 0
  int64_t D;
};

SIMT_FN RowRange PoolRangeOf(const PoolOver& p, int64_t number) {
  if (p.ranges != nullptr) return p.ranges[number];
  const int64_t begin = p.steps.begin + number * p.steps.step;
  return {min(begin, p.steps.limit), min(begin + p.steps.length, p.steps.limit)};
}

template <int kWide>
SIMT_FN void PoolSum(const PoolOver& p, const PoolColumns& at, int64_t begin, int64_t end,
                     float (&sum)[kWide]) {
  constexpr int kAtOnce = 8;  // rows under way
  const int64_t stride = p.x.stride[p.x.shape.rank - 2];
  WithFloatType(p.x.dtype, [&](auto* type) {
    const auto* row = static_cast<decltype(type)>(p.x.data) + at.x + begin * stride;
    int left = static_cast<int>(end - begin);
    for (; left > 0; left -= kAtOnce, row += kAtOnce * stride) {
      float x[kAtOnce][kWide];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
        for (int c = 0; c < kWide; ++c) x[k][c] = 0;
        if (k >= left) continue;
        if constexpr (kWide == kQuad) {
          LoadFour(row + k * stride, x[k]);
        } else {
          x[k][0] = ToFloat(row[k * stride]);
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
        for (int c = 0; c < kWide; ++c) sum[c] += x[k][c];
      }
    }
  });
}

template <int kWide>
SIMT_FN void PoolSumWhere(const PoolOver& p, const PoolColumns& at, int64_t begin, int64_t end,
                          int64_t wanted, float (&sum)[kWide]) {
  const int rank = p.x.shape.rank;
  const auto* arg = static_cast<const int32_t*>(p.arg.data) + at.arg;
  for (int64_t n = begin; n < end; ++n) {
    float x[kWide];
    LoadWide<kWide>(p.x.data, p.x.dtype, at.x + n * p.x.stride[rank - 2], x);
#pragma unroll
    for (int c = 0; c < kWide; ++c) {
      const int32_t place = arg[n * p.arg.stride[rank - 2] + c * p.arg.stride[rank - 1]];
      sum[c] += place == wanted ? x[c] : 0;
    }
  }
}

template <int kWide>
SIMT_FN void PoolMax(const PoolOver& p, const PoolColumns& at, int64_t begin, int64_t end,
                     PoolState<kWide>& state) {
  const int64_t stride = p.x.stride[p.x.shape.rank - 2];
  const bool has_places = p.from.best != nullptr;
#pragma unroll
  for (int c = 0; c < kWide; ++c) {
    state.place[c] = static_cast<int32_t>(begin);
    if (has_places) state.place[c] = p.from.place[at.planes + begin * at.D + c];
  }
  for (int64_t n = begin; n < end; ++n) {
    float x[kWide];
    LoadWide<kWide>(p.x.data, p.x.dtype, at.x + n * stride, x);
#pragma unroll
    for (int c = 0; c < kWide; ++c) {
      const int64_t plane = at.planes + n * at.D + c;
      const float best = has_places ? p.from.best[plane] : x[c];
      if (x[c] > state.value[c] || x[c] != x[c]) state.value[c] = x[c];
      if (best > state.best[c]) {
        state.best[c] = best;
        state.place[c] = has_places ? p.from.place[plane] : static_cast<int32_t>(n);
      }
    }
  }
}

// Joins the pieces of every range, pairwise; the first thread of each gets the result.
template <bool kIsMax, int kWide>
SIMT_FN void PoolJoinPieces(const PoolOver& p, int piece, PoolState<kWide>& state) {
  simt::SharedTiles shared;
  float* values = shared.Take<float>(kPoolThreads * kQuad);
  float* bests = kIsMax ? shared.Take<float>(kPoolThreads * kQuad) : nullptr;
  int32_t* places = kIsMax ? shared.Take<int32_t>(kPoolThreads * kQuad) : nullptr;
  const int thread = static_cast<int>(threadIdx.x), lanes = 1 << p.group_log2;
  for (int step = 1; step < 1 << p.pieces_log2; step *= 2) {
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kWide; ++c) {
      values[c * kPoolThreads + thread] = state.value[c];
      if constexpr (kIsMax) {
        bests[c * kPoolThreads + thread] = state.best[c];
        places[c * kPoolThreads + thread] = state.place[c];
      }
    }
    __syncthreads();
    if (piece % (2 * step) != 0) continue;
#pragma unroll
    for (int c = 0; c < kWide; ++c) {
      const int from = c * kPoolThreads + thread + step * lanes;
      const float value = values[from];
      if constexpr (!kIsMax) {
        state.value[c] += value;
      } else {
        if (value > state.value[c] || value != value) state.value[c] = value;
        if (bests[from] > state.best[c]) {
          state.best[c] = bests[from];
          state.place[c] = places[from];
        }
      }
    }
  }
}

template <bool kIsMax, int kWide>
SIMT_FN void PoolStore(const PoolOver& p, int64_t outer, int64_t row, int64_t column,
                       const PoolState<kWide>& state) {
  const int rank = p.out.shape.rank;
  const LeadIndex lead = LeadIndexOf(p.out.shape, rank - 2, outer);
  const int64_t to = LeadOffset(p.out, rank - 2, lead) + row * p.out.stride[rank - 2];
  if (p.stores_quads) {
    StoreWide<kWide>(p.out.data, DType::kF32, to + column, state.value);
  } else {
#pragma unroll
    for (int c = 0; c < kWide; ++c) {
      static_cast<float*>(p.out.data)[to + (column + c) * p.out.stride[rank - 1]] = state.value[c];
    }
  }
  if constexpr (!kIsMax) return;
  const int64_t plane = (outer * p.count + row) * p.out.shape.dims[rank - 1] + column;
#pragma unroll
  for (int c = 0; c < kWide; ++c) {
    if (p.to.best != nullptr) {
      p.to.best[plane + c] = state.best[c];
      p.to.place[plane + c] = state.place[c];
    } else if (HasView(p.arg)) {
      const int64_t at = LeadOffset(p.arg, rank - 2, lead) + row * p.arg.stride[rank - 2];
      static_cast<int32_t*>(p.arg.data)[at + (column + c) * p.arg.stride[rank - 1]] =
          state.place[c];
    }
  }
}

template <bool kIsMax, int kWide>
SIMT_FN void PoolBlock(const PoolOver& p, int64_t block) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & ((1 << p.group_log2) - 1);
  const int piece = thread >> p.group_log2 & ((1 << p.pieces_log2) - 1);
  const int both = p.group_log2 + p.pieces_log2;
  const int64_t rest = block / p.column_blocks, column_block = block - rest * p.column_blocks;
  const int64_t outer = rest / p.range_blocks;
  const int64_t row = (rest - outer * p.range_blocks) * (kPoolThreads >> both) + (thread >> both);
  const int rank = p.x.shape.rank;
  const int64_t D = p.x.shape.dims[rank - 1];
  const int64_t column = (column_block * (1 << p.group_log2) + lane) * kWide;
  const bool works = row < p.count && column < D;

  RowRange range;
  if (works) range = PoolRangeOf(p, row);
  const int64_t begin = min(range.begin + piece * kPoolPiece, range.end);
  const int64_t end = min(begin + kPoolPiece, range.end);
  const LeadIndex lead = LeadIndexOf(p.x.shape, rank - 2, outer);
  PoolColumns at = {.x = LeadOffset(p.x, rank - 2, lead) + column * p.x.stride[rank - 1],
                    .arg = 0,
                    .planes = outer * p.x.shape.dims[rank - 2] * D + column,
                    .D = D};
  PoolState<kWide> state;
#pragma unroll
  for (int c = 0; c < kWide; ++c) {
    state.value[c] = kIsMax && range.begin < range.end ? -INFINITY : 0;
    state.best[c] = -INFINITY;
    state.place[c] = -1;
  }
  if (begin < end) {
    if constexpr (kIsMax) {
      PoolMax(p, at, begin, end, state);
    } else if (p.op == PoolOp::kSumWhere) {
      at.arg = LeadOffset(p.arg, rank - 2, lead) + column * p.arg.stride[rank - 1];
      const int64_t wanted = p.numbers == nullptr ? row : p.numbers[row];
      PoolSumWhere(p, at, begin, end, wanted, state.value);
    } else {
      PoolSum(p, at, begin, end, state.value);
    }
  }
  PoolJoinPieces<kIsMax>(p, piece, state);
  if (!works || piece != 0) return;
  if (p.op == PoolOp::kMean && range.begin < range.end) {
    const int64_t rows = p.numbers == nullptr ? range.end - range.begin : p.numbers[row];
#pragma unroll
    for (int c = 0; c < kWide; ++c) state.value[c] /= static_cast<float>(rows);
  }
  PoolStore<kIsMax>(p, outer, row, column, state);
}

// Three blocks a processor at least: for four the compiler would spill registers.
template <bool kIsMax>
__global__ void __launch_bounds__(kPoolThreads, 3)
    PoolKernel(const __grid_constant__ Problems<PoolOver> problems) {
  const Place<PoolOver> place = FindPlace(problems);
  if (place.problem.by_quads) {
    PoolBlock<kIsMax, kQuad>(place.problem, place.block);
  } else {
    PoolBlock<kIsMax, 1>(place.problem, place.block);
  }
}

}  // namespace attnd::cuda
