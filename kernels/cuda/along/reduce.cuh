// Kernels of reduce: one pass over memory, which bounds them. Sums of four elements are float32,
// what they are added to is float64. Chunks of a long axis are blocks of their own, whose parts a
// second launch puts together.
#pragma once

#include "kernels/cuda/along/column_tile.cuh"
#include "kernels/cuda/along/parts.cuh"
#include "kernels/cuda/along/row_tile.cuh"
#include "kernels/cuda/launch.h"

namespace attnd::cuda {

// Views of Lines.
constexpr int kReduceX = 0, kReduceOut = 1;
// Rows of a chunk of lines side by side: as many as keep a thread busy, or a multiple of them.
constexpr int kReduceRows = 1024, kReduceStep = 16;

constexpr size_t kReduceShared = simt::SharedBytes<Part>(Lines::kThreads) +
                                 simt::SharedBytes<double>(Lines::kRows) +
                                 simt::SharedBytes<float>(Lines::kRows);

namespace reduce_internal {

// Element x at index i as a candidate of arg max: NaN counts as -inf.
SIMT_FN Part Candidate(ReduceOp op, float x, int64_t i, int64_t n) {
  if (op == ReduceOp::kArgMaxSigned && x < 0) return {-x, static_cast<double>(n + i)};
  return {x != x ? -INFINITY : x, static_cast<double>(i)};
}

SIMT_FN Part OfRow(ReduceOp op, const Lines& lines, const RowUnit& unit, Part* parts,
                   double* doubles, float* floats) {
  Held<kHeldFours> x;
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kMean;
  LoadRow(lines, kReduceX, unit, is_sum ? 0 : -INFINITY, x);
  if (is_sum) {
    double sum = 0;
#pragma unroll
    for (int g = 0; g < kHeldFours; ++g) {
      if (unit.Has(g)) sum += (x[g][0] + x[g][1]) + (x[g][2] + x[g][3]);
    }
    return {ReduceTeam(sum, unit.team, doubles, [](double a, double b) { return a + b; }), 0};
  }
  if (op == ReduceOp::kMax || op == ReduceOp::kLogSumExp) {
    float most = -INFINITY;
    ForEachHeld<kHeldFours>(unit, [&](int g, int j, int) { most = Larger(most, x[g][j]); });
    most = ReduceTeam(most, unit.team, floats, [](float a, float b) { return Larger(a, b); });
    if (op == ReduceOp::kMax) return {most, 0};
    const float shift = most == -INFINITY ? 0 : most;
    double sum = 0;
#pragma unroll
    for (int g = 0; g < kHeldFours; ++g) {
      if (!unit.Has(g)) break;
      sum += (expf(x[g][0] - shift) + expf(x[g][1] - shift)) +
             (expf(x[g][2] - shift) + expf(x[g][3] - shift));
    }
    sum = ReduceTeam(sum, unit.team, doubles, [](double a, double b) { return a + b; });
    return {most, sum};
  }
  const int64_t begin = unit.chunk * lines.chunk;
  Part best = NothingOf(op);
  ForEachHeld<kHeldFours>(unit, [&](int g, int j, int i) {
    if (i < unit.count) best = Merge(op, best, Candidate(op, x[g][j], begin + i, lines.n));
  });
  return ReduceTeam(best, unit.team, parts,
                    [op](const Part& a, const Part& b) { return Merge(op, a, b); });
}

SIMT_FN Part OfColumn(ReduceOp op, const Lines& lines, const ColumnUnit& unit, Part* scratch) {
  const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kMean;
  const int64_t begin = unit.chunk * lines.chunk;
  Part all = NothingOf(op);
  for (int first = unit.row; first < unit.count; first += Lines::kRows * kReduceStep) {
    float x[kReduceStep];
    LoadColumn(lines, kReduceX, unit, first, Lines::kRows, unit.count, is_sum ? 0 : -INFINITY, x);
    if (is_sum) {
#pragma unroll
      for (int k = 0; k < kReduceStep; k += 4) all.a += (x[k] + x[k + 1]) + (x[k + 2] + x[k + 3]);
    } else if (op == ReduceOp::kMax || op == ReduceOp::kLogSumExp) {
      float most = static_cast<float>(all.a);
#pragma unroll
      for (int k = 0; k < kReduceStep; ++k) most = Larger(most, x[k]);
      if (op == ReduceOp::kMax) {
        all.a = most;
        continue;
      }
      const float shift = most == -INFINITY ? 0 : most;
      float sum = 0;
#pragma unroll
      for (int k = 0; k < kReduceStep; ++k) sum += expf(x[k] - shift);
      all = Merge(op, all, Part{most, sum});
    } else {
#pragma unroll
      for (int k = 0; k < kReduceStep; ++k) {
        const int i = first + k * Lines::kRows;
        if (i < unit.count) all = Merge(op, all, Candidate(op, x[k], begin + i, lines.n));
      }
    }
  }
  return ReduceRows(all, scratch, [op](const Part& a, const Part& b) { return Merge(op, a, b); });
}

// Writes the result of a line.
SIMT_FN void Finish(ReduceOp op, const Lines& lines, int64_t at, const Part& all) {
  if (op == ReduceOp::kArgMax || op == ReduceOp::kArgMaxSigned) {
    static_cast<int32_t*>(lines.data[kReduceOut])[at] =
        lines.n == 0 ? -1 : static_cast<int32_t>(all.b);
    return;
  }
  double result = all.a;
  if (op == ReduceOp::kMean && lines.n > 0) result /= static_cast<double>(lines.n);
  if (op == ReduceOp::kLogSumExp && IsFinite(all.a)) result += log(all.b);
  static_cast<float*>(lines.data[kReduceOut])[at] = static_cast<float>(result);
}

}  // namespace reduce_internal

// Three blocks a processor at least: for more of them the compiler spills.
__global__ void __launch_bounds__(Lines::kThreads, 3)
    Reduce(const __grid_constant__ Problems<Lines> problems, ReduceOp op, Part* all_parts) {
  using namespace reduce_internal;
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  simt::SharedTiles shared;
  Part* const parts = shared.Take<Part>(Lines::kThreads);
  double* const doubles = shared.Take<double>(Lines::kRows);
  float* const floats = shared.Take<float>(Lines::kRows);
  Part part;
  uint32_t line;
  int64_t chunk, at;
  bool writes;
  if (lines.is_dense) {
    const RowUnit unit = RowUnitOf(lines, place.block);
    part = OfRow(op, lines, unit, parts, doubles, floats);
    line = unit.line, chunk = unit.chunk, at = unit.offset[kReduceOut];
    writes = unit.exists && unit.rank == 0;
  } else {
    const ColumnUnit unit = ColumnUnitOf(lines, place.block);
    part = OfColumn(op, lines, unit, parts);
    line = unit.line, chunk = unit.chunk, at = unit.offset[kReduceOut];
    writes = unit.exists && unit.row == 0;
  }
  if (!writes) return;
  if (lines.chunks == 1) {
    Finish(op, lines, at, part);
  } else {
    all_parts[lines.first_part + line * lines.chunks + chunk] = part;
  }
}

__global__ void __launch_bounds__(Lines::kThreads)
    FinishReduce(const __grid_constant__ Problems<Lines> problems, ReduceOp op,
                 const Part* all_parts) {
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  const auto line = static_cast<uint32_t>(place.block * Lines::kRows + threadIdx.x / simt::kWarp);
  if (line >= lines.count) return;
  const Part* parts = all_parts + lines.first_part + line * lines.chunks;
  const Part all = MergedPart(op, parts, lines.chunks);
  if (threadIdx.x % simt::kWarp != 0) return;
  int64_t offset[Lines::kViews];
  lines.Offsets(line, offset);
  reduce_internal::Finish(op, lines, offset[kReduceOut], all);
}

}  // namespace attnd::cuda
