// feature_rows of maps: teams of threads hold their rows (along/row_tile.cuh), of which memory is
// passed over once. Bound: bytes of x, the gradient and the result.
#pragma once

#include "kernels/cuda/along/row_tile.cuh"
#include "kernels/cuda/element/element_call.h"
#include "kernels/cuda/launch.h"
#include "kernels/device/feature_rows.h"

namespace attnd::cuda {

// Views of Lines.
constexpr int kMappedX = 0, kMappedOut = 1, kMappedGrad = 2;
constexpr size_t kMappedShared = simt::SharedBytes<double>(Lines::kRows);

namespace mapped_rows_internal {

constexpr int kFours = HeldFours(LineKind::kShortRows);
using HeldRow = Held<kFours>;

SIMT_FN double Add(double a, double b) { return a + b; }

// Calls f with a map of float32: those that methods use most are part of the kernel.
template <class F>
SIMT_FN void WithMap(ElementOp op, const F& f) {
  switch (op) {
    case ElementOp::kCopy:
      return f([](float x) { return x; });
    case ElementOp::kExp:
      return f([](float x) { return ElementMap<ElementOp::kExp>(x); });
    case ElementOp::kRelu:
      return f([](float x) { return ElementMap<ElementOp::kRelu>(x); });
    case ElementOp::kEluPlusOne:
      return f([](float x) { return ElementMap<ElementOp::kEluPlusOne>(x); });
    default:
      return f([op](float x) { return CalledMap(op, x); });
  }
}

// A feature is phi / norm. kL2: `root` is the root in it, 0 where it has no gradient.
struct Norm {
  float norm = 1, root = 0;
  bool is_zero = false;  // so are the features and their gradients
};

SIMT_FN Norm NormOf(const FeatureRows& f, const RowUnit& unit, const HeldRow& phi,
                    double* scratch) {
  Norm result;
  if (f.norm == RowNorm::kNone) return result;
  double sum = 0;
  ForEachHeld<kFours>(unit, [&](int g, int j, int i) {
    const double x = i < unit.count ? phi[g][j] : 0;
    sum += f.norm == RowNorm::kSum ? x : x * x;
  });
  sum = ReduceTeam(sum, unit.team, scratch, Add);
  if (f.norm == RowNorm::kSum) {
    result.norm = static_cast<float>(sum);
  } else {
    result.root = static_cast<float>(sqrt(sum + f.eps));
    const auto floor = static_cast<float>(f.floor), offset = static_cast<float>(f.offset);
    const bool is_below = result.root < floor;
    result.norm = (is_below ? floor : result.root) + offset;
    if (is_below) result.root = 0;
  }
  result.is_zero = result.norm == 0;
  return result;
}

// phi becomes the gradient of the features before their norm: with y = phi / norm,
// (dy - sum(dy y)) / norm for the sum, (dy - phi sum(dy y) / root) / norm for the root of squares.
SIMT_FN void Unnorm(const FeatureRows& f, const RowUnit& unit, const Norm& norm, const HeldRow& dy,
                    HeldRow& phi, double* scratch) {
  if (f.norm == RowNorm::kNone) {
    ForEachHeld<kFours>(unit, [&](int g, int j, int) { phi[g][j] = dy[g][j]; });
    return;
  }
  // Of quotients: features may be far from 1, and products with them leave float32.
  double sum = 0;
  ForEachHeld<kFours>(unit, [&](int g, int j, int i) {
    const double y = i < unit.count && !norm.is_zero ? phi[g][j] / norm.norm : 0;
    sum += dy[g][j] * y;
  });
  const auto along = static_cast<float>(ReduceTeam(sum, unit.team, scratch, Add));
  ForEachHeld<kFours>(unit, [&](int g, int j, int) {
    float flow = dy[g][j];
    if (f.norm == RowNorm::kSum) {
      flow -= along;
    } else if (norm.root != 0) {
      flow = fmaf(-along, phi[g][j] / norm.root, flow);
    }
    phi[g][j] = flow / norm.norm;
  });
}

}  // namespace mapped_rows_internal

// REQUIRES: lines of kShortRows.
template <bool kDerivative>
__global__ void __launch_bounds__(Lines::kThreads, kDerivative ? 2 : 4)
    MappedRowsKernel(const __grid_constant__ Problems<Lines> problems, FeatureRows features) {
  using namespace mapped_rows_internal;
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  simt::SharedTiles shared;
  double* const scratch = shared.Take<double>(Lines::kRows);
  const RowUnit unit = RowUnitOf(lines, place.block);
  HeldRow x, phi;
  LoadRow(lines, kMappedX, unit, 0, x);
  WithMap(features.map, [&](auto map) {
    ForEachHeld<kFours>(unit, [&](int g, int j, int) { phi[g][j] = map(x[g][j]); });
  });
  const Norm norm = NormOf(features, unit, phi, scratch);
  if constexpr (kDerivative) {
    HeldRow dy;
    LoadRow(lines, kMappedGrad, unit, 0, dy);
    Unnorm(features, unit, norm, dy, phi, scratch);
    ForEachHeld<kFours>(unit, [&](int g, int j, int) {
      phi[g][j] = norm.is_zero ? 0 : CalledSlope(features.map, phi[g][j], x[g][j]);
    });
  } else if (features.norm != RowNorm::kNone) {
    ForEachHeld<kFours>(
        unit, [&](int g, int j, int) { phi[g][j] = norm.is_zero ? 0 : phi[g][j] / norm.norm; });
  }
  StoreRow(lines, kMappedOut, unit, phi);
}

}  // namespace attnd::cuda
