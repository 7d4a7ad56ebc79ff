// Sums of rows by their index. The indices are sorted (key_sort.h), so that the rows of each value
// lie side by side, ascending; then a group of threads sums each row of out, in that order, each
// thread one or four columns of it. Bound by memory: x is read and out written once, beside 8 bytes
// a row of x. Rows of out that take most of x are bound by the latency of their sum: some 60 ns a
// row of x.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows/quads.h"
#include "kernels/device/gather.h"

namespace attnd::cuda {

constexpr int kScatterThreads = 256;

// Lists of numbers by value: each sorted, value above place (32 bits each), -1 last.
struct SortedLists {
  const uint64_t* keys;
  View at;  // leading dimensions; strides in elements of keys
  int64_t size;
};

struct ScatterRowsOver {
  ScatterRowsProblem views;
  SortedLists rows, columns;
  Shape summed;  // leading dimensions of sources that are summed, else 1
  int64_t sources;
  int64_t row_blocks;
  int rows_of_block;
  bool by_quads;
  uint8_t group_log2;  // threads of a row
};

constexpr size_t kScatterShared = simt::SharedBytes<int>(kScatterThreads + 1);

// Where the first key of at least `value` is.
SIMT_FN int FirstOf(const uint64_t* keys, int64_t size, int64_t value) {
  const uint64_t key = static_cast<uint64_t>(value) << 32;
  int low = 0, high = static_cast<int>(size);
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Adds the rows that keys[begin, end) name, in order. `x`: the thread's columns of row 0.
template <int kWide>
SIMT_FN void SumRows(const View& x, int64_t at, int64_t pitch, const uint64_t* keys, int begin,
                     int end, float (&sum)[kWide]) {
  constexpr int kAtOnce = 8;  // rows whose numbers, and then elements, are under way together
  uint32_t next[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    next[k] = begin + k < end ? static_cast<uint32_t>(keys[begin + k]) : 0;
  }
  for (int i = begin; i < end; i += kAtOnce) {
    float values[kAtOnce][kWide];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (i + k < end) LoadWide<kWide>(x.data, x.dtype, at + next[k] * pitch, values[k]);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int after = i + kAtOnce + k;
      next[k] = after < end ? static_cast<uint32_t>(keys[after]) : 0;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (i + k >= end) continue;
#pragma unroll
      for (int c = 0; c < kWide; ++c) sum[c] += values[k][c];
    }
  }
}

// Adds elements of rows keys[begin, end), of each those that columns[first, last) name.
SIMT_FN void SumPairs(const View& x, int64_t at, const uint64_t* keys, int begin, int end,
                      const uint64_t* columns, int first, int last, float* sum) {
  const int rank = x.shape.rank;
  for (int i = begin; i < end; ++i) {
    const int64_t row = at + static_cast<uint32_t>(keys[i]) * x.stride[rank - 2];
    for (int w = first; w < last; ++w) {
      const auto column = static_cast<uint32_t>(columns[w]);
      *sum += LoadFloat(x.data, x.dtype, row + column * x.stride[rank - 1]);
    }
  }
}

template <int kWide>
SIMT_FN void ScatterBlock(const ScatterRowsOver& p, int64_t block, int* bounds) {
  const View &x = p.views.x, &out = p.views.out;
  const int rank = out.shape.rank - 2, thread = static_cast<int>(threadIdx.x);
  const int64_t N = out.shape.dims[rank], D = out.shape.dims[rank + 1];
  const int64_t column_block = block / p.row_blocks;
  const int64_t matrix_blocks = (N + p.rows_of_block - 1) / p.rows_of_block;
  const int64_t matrix = (block - column_block * p.row_blocks) / matrix_blocks;
  const int64_t first =
      (block - column_block * p.row_blocks - matrix * matrix_blocks) * p.rows_of_block;
  const int row = thread >> p.group_log2;
  const int lane = thread & ((1 << p.group_log2) - 1);
  const int64_t n = first + row;
  const int64_t column = (column_block * (1 << p.group_log2) + lane) * kWide;
  const bool works = row < p.rows_of_block && n < N && column < D;

  const LeadIndex of_out = LeadIndexOf(out.shape, rank, matrix);
  float sum[kWide] = {};
  for (int64_t source = 0; source < p.sources; ++source) {
    LeadIndex lead = LeadIndexOf(p.summed, rank, source);
#pragma unroll
    for (int i = 0; i < kMaxRank; ++i) lead.at[i] += of_out.at[i];
    const uint64_t* keys = p.rows.keys + LeadOffset(p.rows.at, rank, lead);
    __syncthreads();
    for (int i = thread; i <= p.rows_of_block; i += kScatterThreads) {
      bounds[i] = FirstOf(keys, p.rows.size, min(first + i, N));
    }
    __syncthreads();
    if (!works) continue;
    const int64_t at = LeadOffset(x, rank, lead);
    if (HasView(p.views.columns)) {
      const uint64_t* columns = p.columns.keys + LeadOffset(p.columns.at, rank, lead);
      if (bounds[row] == bounds[row + 1]) continue;
      SumPairs(x, at, keys, bounds[row], bounds[row + 1], columns,
               FirstOf(columns, p.columns.size, column),
               FirstOf(columns, p.columns.size, column + 1), sum);
    } else {
      SumRows<kWide>(x, at + column * x.stride[rank + 1], x.stride[rank], keys, bounds[row],
                     bounds[row + 1], sum);
    }
  }
  if (!works) return;
  const View& divisor = p.views.divisor;
  if (HasView(divisor)) {
    const float by = static_cast<const float*>(
        divisor.data)[LeadOffset(divisor, rank, of_out) + n * divisor.stride[rank]];
#pragma unroll
    for (int c = 0; c < kWide; ++c) sum[c] = by == 0 ? 0 : sum[c] / by;
  }
  const int64_t to = LeadOffset(out, rank, of_out) + n * out.stride[rank];
  StoreWide<kWide>(out.data, out.dtype, to + column * out.stride[rank + 1], sum);
}

__global__ void __launch_bounds__(kScatterThreads)
    ScatterRowsKernel(const __grid_constant__ Problems<ScatterRowsOver> problems) {
  const Place<ScatterRowsOver> place = FindPlace(problems);
  simt::SharedTiles shared;
  int* bounds = shared.Take<int>(kScatterThreads + 1);
  if (place.problem.by_quads) {
    ScatterBlock<kQuad>(place.problem, place.block, bounds);
  } else {
    ScatterBlock<1>(place.problem, place.block, bounds);
  }
}

}  // namespace attnd::cuda
