// Kernels of layer_norm and of its gradient: rows of up to 8192 elements stay in registers, one
// pass over memory, which bounds them: moments take 5 operations of float64 an element, half of
// what they may. Chunks of longer rows are read twice: their parts meet between launches.
#pragma once

#include "kernels/cuda/along/parts.cuh"
#include "kernels/cuda/along/row_tile.cuh"
#include "kernels/cuda/launch.h"

namespace attnd::cuda {

// Views of Lines, forward and backward.
constexpr int kNormX = 0, kNormY = 1, kNormRstd = 2;
constexpr int kNormGradY = 0, kNormGradDy = 1, kNormGradDx = 2, kNormGradRstd = 3;

constexpr size_t kNormShared = simt::SharedBytes<double>(Lines::kRows);

// Of a stretch of a row: squares = sum (x - mean)^2. Of a row that is put together: rstd in their
// place.
struct Moments {
  double mean, squares, count;
};

namespace layer_norm_internal {

SIMT_FN double Add(double a, double b) { return a + b; }

// Chan, Golub and LeVeque 1983, eq. 2.1.
SIMT_FN Moments Merge(const Moments& s, const Moments& t) {
  const double count = s.count + t.count;
  if (count == 0) return s;
  const double distance = t.mean - s.mean, share = t.count / count;
  return {s.mean + distance * share,
          s.squares + t.squares + distance * distance * (s.count * share), count};
}
SIMT_FN Moments Shuffled(const Moments& x, int flip) {
  return {cuda::Shuffled(x.mean, flip), cuda::Shuffled(x.squares, flip),
          cuda::Shuffled(x.count, flip)};
}

template <int kFours>
SIMT_FN Moments MomentsOf(const RowUnit& unit, const float (&x)[kFours][4], double* scratch) {
  double sum = 0, squares = 0;
  ForEachHeld<kFours>(unit, [&](int g, int j, int) { sum += x[g][j]; });
  const double count = unit.count;
  const double mean = ReduceTeam(sum, unit.team, scratch, Add) / count;
  ForEachHeld<kFours>(unit, [&](int g, int j, int i) {
    const double distance = i < unit.count ? x[g][j] - mean : 0;
    squares += distance * distance;
  });
  return {mean, ReduceTeam(squares, unit.team, scratch, Add), count};
}

SIMT_FN double RstdOf(double squares, int64_t n, double eps) {
  return 1 / sqrt(squares / static_cast<double>(n) + eps);
}

template <int kFours>
SIMT_FN void Normalize(const Lines& lines, const RowUnit& unit, double mean, double rstd,
                       float (&x)[kFours][4]) {
  ForEachHeld<kFours>(
      unit, [&](int g, int j, int) { x[g][j] = static_cast<float>((x[g][j] - mean) * rstd); });
  StoreRow(lines, kNormY, unit, x);
}

// The sums of the gradient's two means.
template <int kFours>
SIMT_FN Part GradSums(const RowUnit& unit, const float (&y)[kFours][4],
                      const float (&dy)[kFours][4], double* scratch) {
  double sum = 0, along = 0;
  ForEachHeld<kFours>(unit, [&](int g, int j, int) {
    const double slope = dy[g][j];
    sum += slope;
    along += slope * y[g][j];
  });
  sum = ReduceTeam(sum, unit.team, scratch, Add);
  return {sum, ReduceTeam(along, unit.team, scratch, Add)};
}

template <int kFours>
SIMT_FN void WriteGradient(const Lines& lines, const RowUnit& unit, const Part& sums,
                           const float (&y)[kFours][4], float (&dy)[kFours][4]) {
  const auto n = static_cast<double>(lines.n);
  const auto mean = static_cast<float>(sums.a / n), slope = static_cast<float>(sums.b / n);
  const float rstd =
      unit.exists ? static_cast<const float*>(lines.data[kNormGradRstd])[unit.offset[kNormGradRstd]]
                  : 0;
  ForEachHeld<kFours>(
      unit, [&](int g, int j, int) { dy[g][j] = (dy[g][j] - mean - slope * y[g][j]) * rstd; });
  StoreRow(lines, kNormGradDx, unit, dy);
}

}  // namespace layer_norm_internal

// Whole rows, and the moments of chunks.
template <int kFours>
__global__ void __launch_bounds__(Lines::kThreads)
    LayerNorm(const __grid_constant__ Problems<Lines> problems, double eps, Moments* all_parts) {
  using namespace layer_norm_internal;
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  simt::SharedTiles shared;
  double* const scratch = shared.Take<double>(Lines::kRows);
  const RowUnit unit = RowUnitOf(lines, place.block);
  Held<kFours> x;
  LoadRow(lines, kNormX, unit, 0, x);
  const Moments moments = MomentsOf(unit, x, scratch);
  const bool is_first = unit.exists && unit.rank == 0;
  if (lines.chunks > 1) {
    if (is_first) all_parts[lines.first_part + unit.line * lines.chunks + unit.chunk] = moments;
    return;
  }
  const double rstd = RstdOf(moments.squares, lines.n, eps);
  Normalize(lines, unit, moments.mean, rstd, x);
  if (!is_first) return;
  static_cast<float*>(lines.data[kNormRstd])[unit.offset[kNormRstd]] = static_cast<float>(rstd);
}

// The mean and rstd of every row, in the place of the moments of its first chunk.
__global__ void __launch_bounds__(Lines::kThreads)
    MergeLayerNorm(const __grid_constant__ Problems<Lines> problems, double eps,
                   Moments* all_parts) {
  using namespace layer_norm_internal;
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  const auto line = static_cast<uint32_t>(place.block * Lines::kRows + threadIdx.x / simt::kWarp);
  if (line >= lines.count) return;
  Moments* parts = all_parts + lines.first_part + line * lines.chunks;
  Moments all = {0, 0, 0};
  for (int64_t i = threadIdx.x % simt::kWarp; i < lines.chunks; i += simt::kWarp) {
    all = Merge(all, parts[i]);
  }
  for (int flip = simt::kWarp / 2; flip > 0; flip /= 2) all = Merge(all, Shuffled(all, flip));
  if (threadIdx.x % simt::kWarp != 0) return;
  const double rstd = RstdOf(all.squares, lines.n, eps);
  parts[0] = {all.mean, rstd, all.count};
  int64_t offset[Lines::kViews];
  lines.Offsets(line, offset);
  static_cast<float*>(lines.data[kNormRstd])[offset[kNormRstd]] = static_cast<float>(rstd);
}

// The results of chunks.
__global__ void __launch_bounds__(Lines::kThreads)
    WriteLayerNorm(const __grid_constant__ Problems<Lines> problems, const Moments* all_parts) {
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  const RowUnit unit = RowUnitOf(lines, place.block);
  Held<kHeldFours> x;
  LoadRow(lines, kNormX, unit, 0, x);
  const Moments row = all_parts[lines.first_part + unit.line * lines.chunks];
  layer_norm_internal::Normalize(lines, unit, row.mean, row.squares, x);
}

// Whole rows, and the sums of chunks.
template <int kFours>
__global__ void __launch_bounds__(Lines::kThreads)
    LayerNormGrad(const __grid_constant__ Problems<Lines> problems, Part* all_parts) {
  using namespace layer_norm_internal;
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  simt::SharedTiles shared;
  double* const scratch = shared.Take<double>(Lines::kRows);
  const RowUnit unit = RowUnitOf(lines, place.block);
  Held<kFours> y, dy;
  LoadRow(lines, kNormGradY, unit, 0, y);
  LoadRow(lines, kNormGradDy, unit, 0, dy);
  const Part sums = GradSums(unit, y, dy, scratch);
  if (lines.chunks == 1) {
    WriteGradient(lines, unit, sums, y, dy);
  } else if (unit.exists && unit.rank == 0) {
    all_parts[lines.first_part + unit.line * lines.chunks + unit.chunk] = sums;
  }
}

// The sums of every row, in the place of those of its first chunk.
__global__ void __launch_bounds__(Lines::kThreads)
    MergeLayerNormGrad(const __grid_constant__ Problems<Lines> problems, Part* all_parts) {
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  const auto line = static_cast<uint32_t>(place.block * Lines::kRows + threadIdx.x / simt::kWarp);
  if (line >= lines.count) return;
  Part* parts = all_parts + lines.first_part + line * lines.chunks;
  Part all = {0, 0};
  for (int64_t i = threadIdx.x % simt::kWarp; i < lines.chunks; i += simt::kWarp) {
    all = {all.a + parts[i].a, all.b + parts[i].b};
  }
  for (int flip = simt::kWarp / 2; flip > 0; flip /= 2) {
    const Part other = Shuffled(all, flip);
    all = {all.a + other.a, all.b + other.b};
  }
  if (threadIdx.x % simt::kWarp == 0) parts[0] = all;
}

// The results of chunks.
__global__ void __launch_bounds__(Lines::kThreads)
    WriteLayerNormGrad(const __grid_constant__ Problems<Lines> problems, const Part* all_parts) {
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  const RowUnit unit = RowUnitOf(lines, place.block);
  Held<kHeldFours> y, dy;
  LoadRow(lines, kNormGradY, unit, 0, y);
  LoadRow(lines, kNormGradDy, unit, 0, dy);
  const Part sums = all_parts[lines.first_part + unit.line * lines.chunks];
  layer_norm_internal::WriteGradient(lines, unit, sums, y, dy);
}

}  // namespace attnd::cuda
