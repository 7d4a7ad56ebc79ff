// The features of random_features that are powers, e^(u - h - s), of rows that teams of threads
// hold (along/row_tile.cuh). u lies where they will be. Bound: bytes of the features, read and
// written.
#pragma once

#include "kernels/cuda/along/parts.cuh"
#include "kernels/cuda/along/row_tile.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/device/random_features.h"

namespace attnd::cuda {

// Views of Lines: u and the features e^u.., x, s, and the features e^-u.. of kCosh.
constexpr int kPowerU = 0, kPowerX = 1, kPowerShift = 2, kPowerBack = 3;
constexpr size_t kPowerShared = simt::SharedBytes<double>(Lines::kRows);

struct PowerRows {
  Lines lines;  // of kShortRows
  int64_t D = 0;
};

enum class PowerStep : uint8_t {
  kOwn,   // s of each row, and the features
  kFind,  // s of each row
  kGiven  // the features, with the s that is there
};

namespace power_rows_internal {

constexpr int kFours = HeldFours(LineKind::kShortRows);

SIMT_FN float HalfSquare(const PowerRows& p, const RowUnit& unit, float alpha, double* scratch) {
  const Lines& lines = p.lines;
  double sum = 0;
  WithFloatType(lines.dtype[kPowerX], [&](auto type) {
    auto* row = static_cast<decltype(type)>(lines.data[kPowerX]) + unit.offset[kPowerX];
    for (int64_t c = unit.rank * 4; c < p.D; c += unit.team * 4) {
      float x[4] = {};
      if (lines.vectors[kPowerX] && c + 4 <= p.D) {
        LoadFour(row + c, x);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = c + j < p.D ? ToFloat(row[c + j]) : 0;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const double scaled = alpha * x[j];
        sum += scaled * scaled;
      }
    }
  });
  sum = ReduceTeam(sum, unit.team, scratch, [](double a, double b) { return a + b; });
  return static_cast<float>(sum / 2);
}

// NaN if a u is.
SIMT_FN float OwnShift(const RowUnit& unit, bool is_cosh, const Held<kFours>& u, double* scratch) {
  float most = -INFINITY;
  ForEachHeld<kFours>(unit, [&](int g, int j, int i) {
    if (i < unit.count) most = Larger(most, is_cosh ? fabsf(u[g][j]) : u[g][j]);
  });
  return ReduceTeam(most, unit.team, reinterpret_cast<float*>(scratch), Larger);
}

}  // namespace power_rows_internal

__global__ void __launch_bounds__(Lines::kThreads, 4)
    PowerRowsKernel(const __grid_constant__ Problems<PowerRows> problems,
                    RandomFeaturesParams params, PowerStep step) {
  using namespace power_rows_internal;
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem.lines;
  simt::SharedTiles shared;
  double* const scratch = shared.Take<double>(Lines::kRows);
  const RowUnit unit = RowUnitOf(lines, place.block);
  const bool is_cosh = params.feature == RandomFeature::kCosh;
  Held<kFours> u;
  LoadRow(lines, kPowerU, unit, 0, u);
  float* const shift = static_cast<float*>(lines.data[kPowerShift]) + unit.offset[kPowerShift];
  float s;
  if (step == PowerStep::kGiven) {
    s = *shift;
  } else {
    s = OwnShift(unit, is_cosh, u, scratch);
    if (unit.exists && unit.rank == 0) *shift = s;
    if (step == PowerStep::kFind) return;
  }
  const float h = HalfSquare(place.problem, unit, static_cast<float>(params.alpha), scratch);
  const auto factor = static_cast<float>(params.factor);
  const float term = factor * static_cast<float>(params.eps);
  const auto power = [&](float x) { return fmaf(expf((x - s) - h), factor, term); };
  if (is_cosh) {
    Held<kFours> back;
    ForEachHeld<kFours>(unit, [&](int g, int j, int) { back[g][j] = power(-u[g][j]); });
    StoreRow(lines, kPowerBack, unit, back);
  }
  ForEachHeld<kFours>(unit, [&](int g, int j, int) { u[g][j] = power(u[g][j]); });
  StoreRow(lines, kPowerU, unit, u);
}

}  // namespace attnd::cuda
