// Rows by their index. Bound by memory: every row is read and written once. A block first looks up
// where its rows come from and go to, then groups of threads move them, four rows at a time each,
// so that 64 bytes a thread are under way.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows/quads.h"
#include "kernels/device/gather.h"

namespace attnd::cuda {

constexpr int kGatherThreads = 256;
constexpr int kGatherRowsEach = 4;    // rows that a thread moves at a time
constexpr int kGatherUnitsEach = 16;  // parts of them, at most
constexpr int kGatherMostRows = kGatherThreads * kGatherRowsEach;

// How elements move.
enum class GatherBy : uint8_t {
  kBytes,     // as they are, in units of unit_bytes; rows are dense
  kQuads,     // converted or divided, four at a time
  kElements,  // one at a time
};

struct GatherRowsOver {
  GatherRowsProblem views;
  int64_t rows;        // of out, over all of its matrices
  int64_t units;       // of a row
  int64_t row_blocks;  // that cover the rows
  GatherBy by;
  uint8_t unit_bytes;
  uint8_t group_log2;  // threads that move a row
};

// A block's rows: where each begins in x, or -1, and in out (elements), its list of columns, and
// what divides it. The last two only where there are such.
struct GatherTable {
  int64_t *from, *to, *columns;
  float* by;
};

inline size_t GatherShared(bool has_columns, bool divides) {
  return (has_columns ? 3 : 2) * simt::SharedBytes<int64_t>(kGatherMostRows) +
         (divides ? simt::SharedBytes<float>(kGatherMostRows) : 0);
}

SIMT_FN void FillTable(const GatherRowsOver& p, int64_t first, int rows, const GatherTable& table) {
  const GatherRowsProblem& v = p.views;
  const int rank = v.out.shape.rank - 2;
  const int64_t M = v.out.shape.dims[rank];
  for (int r = static_cast<int>(threadIdx.x); r < rows; r += kGatherThreads) {
    const int64_t matrix = (first + r) / M, m = first + r - matrix * M;
    const LeadIndex lead = LeadIndexOf(v.out.shape, rank, matrix);
    const int64_t at = LeadOffset(v.index, rank, lead) + m * v.index.stride[rank];
    const int64_t n = static_cast<const int32_t*>(v.index.data)[at];
    float by = 1;
    if (HasView(v.divisor) && n >= 0) {
      const int64_t of = LeadOffset(v.divisor, rank, lead) + n * v.divisor.stride[rank];
      by = static_cast<const float*>(v.divisor.data)[of];
    }
    const bool is_zero = n < 0 || by == 0;
    table.from[r] = is_zero ? -1 : LeadOffset(v.x, rank, lead) + n * v.x.stride[rank];
    table.to[r] = LeadOffset(v.out, rank, lead) + m * v.out.stride[rank];
    if (HasView(v.columns)) table.columns[r] = LeadOffset(v.columns, rank, lead);
    if (HasView(v.divisor)) table.by[r] = by;
  }
}

// Visits the units of the block's rows that are this thread's: load(row, unit, k), then store of as
// many, for k < kGatherRowsEach.
template <class Load, class Store>
SIMT_FN void ForUnits(const GatherRowsOver& p, int rows, int64_t column_block, const Load& load,
                      const Store& store) {
  const int group = static_cast<int>(threadIdx.x) >> p.group_log2;
  const int step = 1 << p.group_log2, groups = kGatherThreads >> p.group_log2;
  const int lane = static_cast<int>(threadIdx.x) & (step - 1);
  const int64_t begin = column_block * step * kGatherUnitsEach;
  const int64_t end = min(p.units, begin + int64_t{step} * kGatherUnitsEach);
  for (int64_t unit = begin + lane; unit < end; unit += step) {
#pragma unroll
    for (int k = 0; k < kGatherRowsEach; ++k) {
      if (group + k * groups < rows) load(group + k * groups, unit, k);
    }
#pragma unroll
    for (int k = 0; k < kGatherRowsEach; ++k) {
      if (group + k * groups < rows) store(group + k * groups, unit, k);
    }
  }
}

template <class Unit>
SIMT_FN void MoveBytes(const GatherRowsOver& p, int rows, int64_t column_block,
                       const GatherTable& table) {
  const int64_t size = SizeOf(p.views.out.dtype);
  const auto* x = static_cast<const char*>(p.views.x.data);
  auto* out = static_cast<char*>(p.views.out.data);
  Unit units[kGatherRowsEach];
  ForUnits(
      p, rows, column_block,
      [&](int row, int64_t unit, int k) {
        const int64_t from = table.from[row];
        units[k] = from < 0 ? Unit{} : reinterpret_cast<const Unit*>(x + from * size)[unit];
      },
      [&](int row, int64_t unit, int k) {
        reinterpret_cast<Unit*>(out + table.to[row] * size)[unit] = units[k];
      });
}

SIMT_FN void MoveQuads(const GatherRowsOver& p, int rows, int64_t column_block,
                       const GatherTable& table) {
  const View &x = p.views.x, &out = p.views.out;
  const bool divides = HasView(p.views.divisor);
  float quads[kGatherRowsEach][kQuad];
  ForUnits(
      p, rows, column_block,
      [&](int row, int64_t unit, int k) {
        const int64_t from = table.from[row];
        if (from >= 0) {
          LoadQuad(x.data, x.dtype, from + unit * kQuad, quads[k]);
          if (!divides) return;
          for (float& value : quads[k]) value /= table.by[row];
        } else {
          for (float& value : quads[k]) value = 0;
        }
      },
      [&](int row, int64_t unit, int k) {
        StoreQuad(out.data, out.dtype, table.to[row] + unit * kQuad, quads[k]);
      });
}

SIMT_FN void MoveElements(const GatherRowsOver& p, int rows, int64_t column_block,
                          const GatherTable& table) {
  const View &x = p.views.x, &out = p.views.out, &columns = p.views.columns;
  const int last = out.shape.rank - 1;
  const bool divides = HasView(p.views.divisor), is_int = x.dtype == DType::kI32;
  // The bits of an int32.
  const DType dtype = is_int ? DType::kF32 : x.dtype;
  float values[kGatherRowsEach];
  ForUnits(
      p, rows, column_block,
      [&](int row, int64_t unit, int k) {
        const int64_t from = table.from[row];
        int64_t column = unit;
        if (HasView(columns)) {
          const int64_t at = table.columns[row] + unit * columns.stride[last - 1];
          column = static_cast<const int32_t*>(columns.data)[at];
        }
        values[k] = 0;
        if (from < 0 || column < 0) return;
        values[k] = LoadFloat(x.data, dtype, from + column * x.stride[last]);
        if (divides) values[k] /= table.by[row];
      },
      [&](int row, int64_t unit, int k) {
        StoreFloat(out.data, is_int ? DType::kF32 : out.dtype,
                   table.to[row] + unit * out.stride[last], values[k]);
      });
}

// Three blocks a processor at least: for more of them the compiler spills.
__global__ void __launch_bounds__(kGatherThreads, 3)
    GatherRowsKernel(const __grid_constant__ Problems<GatherRowsOver> problems) {
  const Place<GatherRowsOver> place = FindPlace(problems);
  const GatherRowsOver& p = place.problem;
  simt::SharedTiles shared;
  GatherTable table;
  table.from = shared.Take<int64_t>(kGatherMostRows);
  table.to = shared.Take<int64_t>(kGatherMostRows);
  if (HasView(p.views.columns)) table.columns = shared.Take<int64_t>(kGatherMostRows);
  if (HasView(p.views.divisor)) table.by = shared.Take<float>(kGatherMostRows);

  const int most = kGatherMostRows >> p.group_log2;
  const int64_t column_block = place.block / p.row_blocks;
  const int64_t first = (place.block - column_block * p.row_blocks) * most;
  const int rows = static_cast<int>(min(int64_t{most}, p.rows - first));
  FillTable(p, first, rows, table);
  __syncthreads();
  if (p.by == GatherBy::kQuads) {
    MoveQuads(p, rows, column_block, table);
  } else if (p.by == GatherBy::kElements) {
    MoveElements(p, rows, column_block, table);
  } else if (p.unit_bytes == 16) {
    MoveBytes<uint4>(p, rows, column_block, table);
  } else if (p.unit_bytes == 8) {
    MoveBytes<uint2>(p, rows, column_block, table);
  } else if (p.unit_bytes == 4) {
    MoveBytes<uint32_t>(p, rows, column_block, table);
  } else {
    MoveBytes<uint16_t>(p, rows, column_block, table);
  }
}

}  // namespace attnd::cuda
