// Kernels of softmax. A line of up to 8192 dense elements, or of 256 others, stays in registers
// between its maximum, its sum and its result: one pass over memory, which bounds it, and an
// exponential an element. Chunks of a longer one are read twice: their parts meet between launches.
#pragma once

#include "kernels/cuda/along/column_tile.cuh"
#include "kernels/cuda/along/parts.cuh"
#include "kernels/cuda/along/row_tile.cuh"
#include "kernels/cuda/launch.h"

namespace attnd::cuda {

// Views of Lines.
constexpr int kSoftmaxX = 0, kSoftmaxOut = 1;

constexpr size_t kSoftmaxShared =
    simt::SharedBytes<double>(Lines::kThreads) + simt::SharedBytes<float>(Lines::kThreads);

namespace softmax_internal {

// A result is e^(x - shift) scale; log: x - shift - scale.
struct Scales {
  float shift, scale;
};
SIMT_FN Scales ScalesOf(bool log, float most, double sum) {
  // Nothing but -inf: every result is e^-inf, or -inf.
  if (most == -INFINITY) return {0, 0};
  // `::`: the parameter has its name.
  return {most, log ? static_cast<float>(::log(sum)) : 1 / static_cast<float>(sum)};
}

SIMT_FN double Add(double a, double b) { return a + b; }

// The maximum and the sum of a unit. x becomes e^(x - maximum), unless `log`.
struct Shared {
  double* doubles;
  float* floats;
};
template <int kFours>
SIMT_FN Part PartOfRow(bool log, const RowUnit& unit, const Shared& shared, float (&x)[kFours][4]) {
  float most = -INFINITY;
  ForEachHeld<kFours>(unit, [&](int g, int j, int) { most = Larger(most, x[g][j]); });
  most = ReduceTeam(most, unit.team, shared.floats, [](float a, float b) { return Larger(a, b); });
  const float shift = most == -INFINITY ? 0 : most;
  double sum = 0;
#pragma unroll
  for (int g = 0; g < kFours; ++g) {
    if (!unit.Has(g)) break;
    float e[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      e[j] = expf(x[g][j] - shift);
      if (!log) x[g][j] = e[j];
    }
    sum += (e[0] + e[1]) + (e[2] + e[3]);
  }
  return {most, ReduceTeam(sum, unit.team, shared.doubles, Add)};
}
SIMT_FN Part PartOfColumn(bool log, const Shared& shared, float (&x)[Lines::kHeld]) {
  float most = -INFINITY;
#pragma unroll
  for (int k = 0; k < Lines::kHeld; ++k) most = Larger(most, x[k]);
  most = ReduceRows(most, shared.floats, [](float a, float b) { return Larger(a, b); });
  const float shift = most == -INFINITY ? 0 : most;
  double sum = 0;
#pragma unroll
  for (int k = 0; k < Lines::kHeld; k += 4) {
    float e[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      e[j] = expf(x[k + j] - shift);
      if (!log) x[k + j] = e[j];
    }
    sum += (e[0] + e[1]) + (e[2] + e[3]);
  }
  return {most, ReduceRows(sum, shared.doubles, Add)};
}

}  // namespace softmax_internal

// The results of whole lines, and the parts of chunks.
template <LineKind kKind>
__global__ void __launch_bounds__(Lines::kThreads)
    Softmax(const __grid_constant__ Problems<Lines> problems, bool log, Part* all_parts) {
  using namespace softmax_internal;
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  simt::SharedTiles tiles;
  Shared shared;
  shared.doubles = tiles.Take<double>(Lines::kThreads);
  shared.floats = tiles.Take<float>(Lines::kThreads);
  const bool is_whole = lines.chunks == 1;
  if constexpr (kKind != LineKind::kColumns) {
    const RowUnit unit = RowUnitOf(lines, place.block);
    Held<HeldFours(kKind)> x;
    LoadRow(lines, kSoftmaxX, unit, -INFINITY, x);
    const Part part = PartOfRow(log, unit, shared, x);
    if (is_whole) {
      const Scales scales = ScalesOf(log, static_cast<float>(part.a), part.b);
      ForEachHeld<HeldFours(kKind)>(unit, [&](int g, int j, int) {
        x[g][j] = log ? x[g][j] - scales.shift - scales.scale : x[g][j] * scales.scale;
      });
      StoreRow(lines, kSoftmaxOut, unit, x);
    } else if (unit.exists && unit.rank == 0) {
      all_parts[lines.first_part + unit.line * lines.chunks + unit.chunk] = part;
    }
    return;
  }
  const ColumnUnit unit = ColumnUnitOf(lines, place.block);
  float x[Lines::kHeld];
  LoadColumn(lines, kSoftmaxX, unit, unit.row, Lines::kRows, unit.count, -INFINITY, x);
  const Part part = PartOfColumn(log, shared, x);
  if (is_whole) {
    const Scales scales = ScalesOf(log, static_cast<float>(part.a), part.b);
#pragma unroll
    for (int k = 0; k < Lines::kHeld; ++k) {
      x[k] = log ? x[k] - scales.shift - scales.scale : x[k] * scales.scale;
    }
    StoreColumn(lines, kSoftmaxOut, unit, unit.row, Lines::kRows, unit.count, x);
  } else if (unit.exists && unit.row == 0) {
    all_parts[lines.first_part + unit.line * lines.chunks + unit.chunk] = part;
  }
}

// The part of every line, in the place of that of its first chunk.
__global__ void __launch_bounds__(Lines::kThreads)
    MergeSoftmax(const __grid_constant__ Problems<Lines> problems, Part* all_parts) {
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  const auto line = static_cast<uint32_t>(place.block * Lines::kRows + threadIdx.x / simt::kWarp);
  if (line >= lines.count) return;
  Part* parts = all_parts + lines.first_part + line * lines.chunks;
  const Part all = MergedPart(ReduceOp::kLogSumExp, parts, lines.chunks);
  if (threadIdx.x % simt::kWarp == 0) parts[0] = all;
}

// The results of chunks.
template <LineKind kKind>
__global__ void __launch_bounds__(Lines::kThreads)
    WriteSoftmax(const __grid_constant__ Problems<Lines> problems, bool log,
                 const Part* all_parts) {
  using namespace softmax_internal;
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  const auto scales_of = [&](uint32_t line) {
    const Part part = all_parts[lines.first_part + line * lines.chunks];
    return ScalesOf(log, static_cast<float>(part.a), part.b);
  };
  const auto result = [&](float x, const Scales& scales) {
    return log ? x - scales.shift - scales.scale : expf(x - scales.shift) * scales.scale;
  };
  if constexpr (kKind != LineKind::kColumns) {
    const RowUnit unit = RowUnitOf(lines, place.block);
    const Scales scales = scales_of(unit.line);
    Held<HeldFours(kKind)> x;
    LoadRow(lines, kSoftmaxX, unit, -INFINITY, x);
    ForEachHeld<HeldFours(kKind)>(unit,
                                  [&](int g, int j, int) { x[g][j] = result(x[g][j], scales); });
    StoreRow(lines, kSoftmaxOut, unit, x);
    return;
  }
  const ColumnUnit unit = ColumnUnitOf(lines, place.block);
  const Scales scales = scales_of(unit.exists ? unit.line : 0);
  float x[Lines::kHeld];
  LoadColumn(lines, kSoftmaxX, unit, unit.row, Lines::kRows, unit.count, -INFINITY, x);
#pragma unroll
  for (int k = 0; k < Lines::kHeld; ++k) x[k] = result(x[k], scales);
  StoreColumn(lines, kSoftmaxOut, unit, unit.row, Lines::kRows, unit.count, x);
}

}  // namespace attnd::cuda
