// Sums of rows by their index. The indices are sorted (key_sort.h), so that the rows of each value
// lie side by side, ascending, and a launch finds where those of each value begin; then a group of
// threads sums some rows of out, each in that order, each thread one or four columns of them. Bound
// by memory: x is read and out written once, beside 8 bytes a row of x and 4 a row of out. Rows of
// out that take most of x are bound by the latency of their sum, some 60 ns a row of x: launches
// take parts of such sums, one after the other, and leave them to the next one.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows/quads.h"
#include "kernels/device/gather.h"

namespace attnd::cuda {

constexpr int kScatterThreads = 256;
// Rows of out of a thread: where each is one row of x, all are under way together.
constexpr int kScatterEach = 8;

// Lists of numbers by value: each sorted, value above place (32 bits each), -1 last.
struct SortedLists {
  const uint64_t* keys;  // [lists][size]
  // [lists][N + 1]: keys below 0, .., N.
  int32_t* starts;
  View at;  // leading dimensions; strides count lists
  int64_t size, N;

  __host__ __device__ int64_t lists() const {
    int64_t count = 1;
    for (int i = 0; i + 1 < at.shape.rank; ++i) count *= at.shape.dims[i];
    return count;
  }
};

// Rows of x that a launch adds to an element of out, and sources that it looks through: some
// milliseconds. Of pairs an element gets one of a source.
constexpr int64_t kRowsOfPart = int64_t{1} << 16, kSourcesOfPart = 2048;

struct ScatterRowsOver {
  ScatterRowsProblem views;
  SortedLists rows, columns;
  Shape summed;  // leading dimensions of sources that are summed, else 1
  int64_t sources;
  // One source: kRowsOfPart rows of x each. Else parts of some sources, or of rows of one.
  int64_t parts, sources_of_part, rows_of_part;
  // Sums that the next part goes on with: one source: [matrices,D]; else as out, dense. Null where
  // there is one part.
  float* carries;
  int64_t row_blocks;
  int rows_of_block;
  bool by_quads;
  uint8_t group_log2;  // threads of a row
};

constexpr int kScatterRows = kScatterThreads * kScatterEach;  // of a block, at most
constexpr size_t kScatterShared = simt::SharedBytes<int>(kScatterRows);
constexpr int kNoRow = -1, kSeveralRows = -2;

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

template <int kWide, class T>
SIMT_FN void LoadColumns(const T* from, float (&x)[kWide]) {
  if constexpr (kWide == kQuad) {
    LoadFour(from, x);
  } else {
    x[0] = ToFloat(*from);
  }
}

// Adds the rows that keys[begin, end) name, in order. `x`: the thread's columns of row 0.
template <int kWide, class T>
SIMT_FN void SumRows(const T* x, int64_t pitch, const uint64_t* keys, int begin, int end,
                     float (&sum)[kWide]) {
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
      if (i + k < end) LoadColumns<kWide>(x + next[k] * pitch, values[k]);
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

// Where a thread works: its columns of rows row, row + apart, .. below `rows` of the block's.
// `out`, `divisor` and `carry`: its first element of row 0, of the block's first.
struct ScatterPlace {
  LeadIndex lead;  // of out
  int64_t first, column, out, divisor, carry;
  int row, apart, rows;
  bool works;
};

template <int kWide>
SIMT_FN ScatterPlace ScatterPlaceOf(const ScatterRowsOver& p, int64_t block) {
  const View &out = p.views.out, &divisor = p.views.divisor;
  const int rank = out.shape.rank - 2, thread = static_cast<int>(threadIdx.x);
  const int64_t N = out.shape.dims[rank];
  const int64_t matrix_blocks = (N + p.rows_of_block - 1) / p.rows_of_block;
  const int64_t column_block = block / p.row_blocks, rest = block - column_block * p.row_blocks;
  const int64_t matrix = rest / matrix_blocks;
  const int lane = thread & ((1 << p.group_log2) - 1);
  ScatterPlace at;
  at.lead = LeadIndexOf(out.shape, rank, matrix);
  at.first = (rest - matrix * matrix_blocks) * p.rows_of_block;
  at.column = (column_block * (1 << p.group_log2) + lane) * kWide;
  at.out = LeadOffset(out, rank, at.lead) + at.column * out.stride[rank + 1];
  at.divisor = HasView(divisor) ? LeadOffset(divisor, rank, at.lead) : 0;
  at.carry = (matrix * N + at.first) * out.shape.dims[rank + 1] + at.column;
  at.row = thread >> p.group_log2;
  at.apart = kScatterThreads >> p.group_log2;
  at.rows = static_cast<int>(min(int64_t{p.rows_of_block}, N - at.first));
  at.works = at.column < out.shape.dims[rank + 1];
  return at;
}

// Divides and writes the sum of a row, counted from the block's first.
template <int kWide>
SIMT_FN void WriteSum(const ScatterRowsOver& p, const ScatterPlace& at, int row,
                      float (&sum)[kWide]) {
  const View &out = p.views.out, &divisor = p.views.divisor;
  const int rank = out.shape.rank - 2;
  const int64_t n = at.first + row;
  if (HasView(divisor)) {
    const int64_t from = at.divisor + n * divisor.stride[rank];
    const float by = static_cast<const float*>(divisor.data)[from];
#pragma unroll
    for (int c = 0; c < kWide; ++c) sum[c] = by == 0 ? 0 : sum[c] / by;
  }
  StoreWide<kWide>(out.data, out.dtype, at.out + n * out.stride[rank], sum);
}

// Rows of one source, whole. Those that are one row of x, or none, do not wait for each other.
// `found`: [kScatterRows] of shared memory.
template <int kWide>
SIMT_FN void ScatterOne(const ScatterRowsOver& p, int64_t block, int* found) {
  const View& x = p.views.x;
  const int rank = x.shape.rank - 2;
  const ScatterPlace at = ScatterPlaceOf<kWide>(p, block);
  const int64_t list = LeadOffset(p.rows.at, rank, at.lead);
  const uint64_t* const keys = p.rows.keys + list * p.rows.size;
  const int32_t* const starts = p.rows.starts + list * (p.rows.N + 1) + at.first;
  for (int i = static_cast<int>(threadIdx.x); i < at.rows; i += kScatterThreads) {
    const int begin = starts[i], rows = starts[i + 1] - begin;
    found[i] = rows == 0 ? kNoRow : rows > 1 ? kSeveralRows : static_cast<int>(keys[begin]);
  }
  __syncthreads();
  if (!at.works) return;
  const int64_t from = LeadOffset(x, rank, at.lead) + at.column * x.stride[rank + 1];
  const int64_t pitch = x.stride[rank];
  float values[kScatterEach][kWide] = {};
  WithFloatType(x.dtype, [&](auto* type) {
    const auto* data = static_cast<const std::remove_pointer_t<decltype(type)>*>(x.data) + from;
#pragma unroll
    for (int k = 0; k < kScatterEach; ++k) {
      const int row = at.row + k * at.apart;
      const int one = row < at.rows ? found[row] : kNoRow;
      if (one >= 0) LoadColumns<kWide>(data + one * pitch, values[k]);
    }
  });
#pragma unroll
  for (int k = 0; k < kScatterEach; ++k) {
    const int row = at.row + k * at.apart;
    if (row >= at.rows || found[row] == kSeveralRows) continue;
      // 0 + x, as a sum of several begins: -0 becomes 0.
#pragma unroll
    for (int c = 0; c < kWide; ++c) values[k][c] += 0.0f;
    WriteSum<kWide>(p, at, row, values[k]);
  }
#pragma unroll 1
  for (int row = at.row; row < at.rows; row += at.apart) {
    // ScatterLong's
    if (found[row] != kSeveralRows || starts[row + 1] - starts[row] > kRowsOfPart) continue;
    float sum[kWide] = {};
    WithFloatType(x.dtype, [&](auto* type) {
      const auto* data = static_cast<const std::remove_pointer_t<decltype(type)>*>(x.data) + from;
      SumRows<kWide>(data, pitch, keys, starts[row], starts[row + 1], sum);
    });
    WriteSum<kWide>(p, at, row, sum);
  }
}

// A part of the sorted keys of each list, of rows of out that take more of x than a part has: one
// of them begins before the part, or with it, and another one ends behind it.
template <int kWide>
SIMT_FN void ScatterLong(const ScatterRowsOver& p, int64_t block, int64_t part) {
  const View &x = p.views.x, &out = p.views.out;
  const int rank = x.shape.rank - 2;
  int64_t matrices = 1;
  for (int i = 0; i < rank; ++i) matrices *= out.shape.dims[i];
  const int apart = kScatterThreads >> p.group_log2, thread = static_cast<int>(threadIdx.x);
  const int64_t matrix_blocks = (matrices + apart - 1) / apart;
  const int64_t matrix = block % matrix_blocks * apart + (thread >> p.group_log2);
  const int64_t lane = thread & ((1 << p.group_log2) - 1), D = out.shape.dims[rank + 1];
  ScatterPlace at = {};
  at.column = (block / matrix_blocks * (1 << p.group_log2) + lane) * kWide;
  if (matrix >= matrices || at.column >= D) return;
  at.lead = LeadIndexOf(out.shape, rank, matrix);
  at.out = LeadOffset(out, rank, at.lead) + at.column * out.stride[rank + 1];
  at.divisor = HasView(p.views.divisor) ? LeadOffset(p.views.divisor, rank, at.lead) : 0;
  const int64_t list = LeadOffset(p.rows.at, rank, at.lead);
  const uint64_t* const keys = p.rows.keys + list * p.rows.size;
  const int32_t* const starts = p.rows.starts + list * (p.rows.N + 1);
  const int begin = static_cast<int>(part * kRowsOfPart);
  const int end = static_cast<int>(min(int64_t{starts[p.rows.N]}, begin + kRowsOfPart));
  if (begin >= end) return;
  float* const carry = p.carries + matrix * D + at.column;
  const int64_t from = LeadOffset(x, rank, at.lead) + at.column * x.stride[rank + 1];
  int row = static_cast<int>(keys[begin] >> 32);
  const int last_row = static_cast<int>(keys[end - 1] >> 32);
#pragma unroll 1
  for (int count = row == last_row ? 1 : 2; count > 0; --count, row = last_row) {
    const int first = starts[row], last = starts[row + 1];
    if (last - first <= kRowsOfPart) continue;
    float sum[kWide];
#pragma unroll
    for (int c = 0; c < kWide; ++c) sum[c] = first < begin ? carry[c] : 0;
    WithFloatType(x.dtype, [&](auto* type) {
      const auto* data = static_cast<const std::remove_pointer_t<decltype(type)>*>(x.data) + from;
      SumRows<kWide>(data, x.stride[rank], keys, max(first, begin), min(last, end), sum);
    });
    if (last <= end) {
      WriteSum<kWide>(p, at, row, sum);
    } else {
#pragma unroll
      for (int c = 0; c < kWide; ++c) carry[c] = sum[c];
    }
  }
}

SIMT_FN float* CarryOf(const ScatterRowsOver& p, const ScatterPlace& at, int row) {
  return p.carries + at.carry + row * p.views.out.shape.dims[p.views.out.shape.rank - 1];
}
// A part of rows of several sources, or of pairs.
template <int kWide>
SIMT_FN void ScatterMany(const ScatterRowsOver& p, int64_t block, int64_t part) {
  if (part >= p.parts) return;
  const View& x = p.views.x;
  const int rank = x.shape.rank - 2;
  const ScatterPlace at = ScatterPlaceOf<kWide>(p, block);
  if (!at.works) return;
  const int64_t parts_of_source =
      max(int64_t{1}, (p.rows.size + p.rows_of_part - 1) / p.rows_of_part);
  const int64_t first_source = part / parts_of_source * p.sources_of_part;
  const int64_t last_source = min(p.sources, first_source + p.sources_of_part);
  const int first_key = static_cast<int>(part % parts_of_source * p.rows_of_part);
  const int last_key = static_cast<int>(min(p.rows.size, first_key + p.rows_of_part));
#pragma unroll 1
  for (int row = at.row; row < at.rows; row += at.apart) {
    float sum[kWide] = {};
    if (part > 0) LoadColumns<kWide>(CarryOf(p, at, row), sum);
    for (int64_t source = first_source; source < last_source; ++source) {
      LeadIndex lead = LeadIndexOf(p.summed, rank, source);
#pragma unroll
      for (int i = 0; i < kMaxRank; ++i) lead.at[i] += at.lead.at[i];
      const int64_t list = LeadOffset(p.rows.at, rank, lead), from = LeadOffset(x, rank, lead);
      const uint64_t* const keys = p.rows.keys + list * p.rows.size;
      const int32_t* const starts = p.rows.starts + list * (p.rows.N + 1) + at.first + row;
      const int begin = max(starts[0], first_key), end = min(starts[1], last_key);
      if (begin >= end) continue;
      if (HasView(p.views.columns)) {
        const int64_t columns_at = LeadOffset(p.columns.at, rank, lead) * p.columns.size;
        const uint64_t* const columns = p.columns.keys + columns_at;
        SumPairs(x, from, keys, begin, end, columns, FirstOf(columns, p.columns.size, at.column),
                 FirstOf(columns, p.columns.size, at.column + 1), sum);
      } else {
        WithFloatType(x.dtype, [&](auto* type) {
          const auto* data = static_cast<const std::remove_pointer_t<decltype(type)>*>(x.data);
          SumRows<kWide>(data + from + at.column * x.stride[rank + 1], x.stride[rank], keys, begin,
                         end, sum);
        });
      }
    }
    if (part + 1 == p.parts) {
      WriteSum<kWide>(p, at, row, sum);
    } else {
      float* const carry = CarryOf(p, at, row);
#pragma unroll
      for (int c = 0; c < kWide; ++c) carry[c] = sum[c];
    }
  }
}

__global__ void __launch_bounds__(kScatterThreads)
    ScatterStartsKernel(const __grid_constant__ Problems<SortedLists> problems) {
  const Place<SortedLists> place = FindPlace(problems);
  const SortedLists& p = place.problem;
  const int64_t number = place.block * kScatterThreads + threadIdx.x;
  const int64_t list = number / (p.N + 1);
  if (list >= p.lists()) return;
  p.starts[number] = FirstOf(p.keys + list * p.size, p.size, number - list * (p.N + 1));
}

// kIsOne: of one source, without columns.
template <bool kIsOne>
__global__ void __launch_bounds__(kScatterThreads, 2)
    ScatterRowsKernel(const __grid_constant__ Problems<ScatterRowsOver> problems, int64_t part) {
  const Place<ScatterRowsOver> place = FindPlace(problems);
  if constexpr (kIsOne) {
    simt::SharedTiles shared;
    int* const found = shared.Take<int>(kScatterRows);
    place.problem.by_quads ? ScatterOne<kQuad>(place.problem, place.block, found)
                           : ScatterOne<1>(place.problem, place.block, found);
  } else {
    place.problem.by_quads ? ScatterMany<kQuad>(place.problem, place.block, part)
                           : ScatterMany<1>(place.problem, place.block, part);
  }
}

__global__ void __launch_bounds__(kScatterThreads, 2)
    ScatterLongKernel(const __grid_constant__ Problems<ScatterRowsOver> problems, int64_t part) {
  const Place<ScatterRowsOver> place = FindPlace(problems);
  place.problem.by_quads ? ScatterLong<kQuad>(place.problem, place.block, part)
                         : ScatterLong<1>(place.problem, place.block, part);
}

}  // namespace attnd::cuda
