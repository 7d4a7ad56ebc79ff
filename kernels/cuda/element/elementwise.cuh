// Kernels of elementwise: a thread takes two times four elements, which are side by side in memory
// where the strides allow. Bound by memory: 3.35 TB/s on an H100, where functions in float64 take
// as long as the memory traffic of float32 (erf: twice that of 16-bit elements).
#pragma once

#include "kernels/cuda/element/element_math.h"
#include "kernels/cuda/element/element_walk.h"
#include "kernels/cuda/fours.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda {

struct ElementKernelOp {
  ElementOp op;
  bool derivative;
  float alpha, beta;
};

constexpr int kElementThreads = 256, kElementFours = 2;
constexpr int kElementsABlock = kElementThreads * kElementFours * 4;

namespace element_internal {

// Offset of element `number` of a view.
SIMT_FN int64_t OffsetOf(const ElementWalk& walk, int view, uint32_t number) {
  int64_t offset = 0;
  for (int i = walk.rank - 1; i > 0; --i) {
    const uint32_t rest = walk.size[i].Quotient(number);
    offset += static_cast<int64_t>(number - rest * walk.size[i].divisor) * walk.stride[view][i];
    number = rest;
  }
  return walk.rank == 0 ? 0 : offset + static_cast<int64_t>(number) * walk.stride[view][0];
}

// The elements of one thread: four from each `first`, `step` apart.
struct Places {
  uint32_t first[kElementFours];
  uint32_t step;
  bool is_whole;  // all of them exist
};

SIMT_FN void Load(const ElementWalk& walk, int view, const Places& places,
                  float (&x)[kElementFours][4]) {
  const ElementWalk::Access access = walk.access[view];
  const bool in_fours = places.is_whole && walk.fours && access != ElementWalk::kScattered;
  WithType(walk.dtype[view], [&](auto type) {
    const auto* data = static_cast<decltype(type)>(walk.data[view]);
    if (in_fours) {
#pragma unroll
      for (int g = 0; g < kElementFours; ++g) {
        const auto* from = data + OffsetOf(walk, view, places.first[g]);
        if (access == ElementWalk::kVector) {
          LoadFour(from, x[g]);
        } else {
          x[g][0] = x[g][1] = x[g][2] = x[g][3] = ToFloat(*from);
        }
      }
      return;
    }
#pragma unroll
    for (int g = 0; g < kElementFours; ++g) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t number = places.first[g] + j * places.step;
        x[g][j] = number < walk.elements ? ToFloat(data[OffsetOf(walk, view, number)]) : 0;
      }
    }
  });
}

SIMT_FN void StoreAll(const ElementWalk& walk, const Places& places,
                      const float (&x)[kElementFours][4]) {
  constexpr int kOut = ElementWalk::kOut;
  const bool in_fours = places.is_whole && walk.fours && walk.access[kOut] == ElementWalk::kVector;
  WithFloatType(walk.dtype[kOut], [&](auto type) {
    auto* data = static_cast<decltype(type)>(walk.data[kOut]);
#pragma unroll
    for (int g = 0; g < kElementFours; ++g) {
      if (in_fours) {
        StoreFour(data + OffsetOf(walk, kOut, places.first[g]), x[g]);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t number = places.first[g] + j * places.step;
        if (number < walk.elements) Store(data + OffsetOf(walk, kOut, number), x[g][j]);
      }
    }
  });
}

// x = f(x, y, z) of all elements.
template <class F>
SIMT_FN void ForEachElement(float (&x)[kElementFours][4], const F& f) {
#pragma unroll
  for (int g = 0; g < kElementFours; ++g) {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[g][j] = f(x[g][j], g, j);
  }
}

template <class Y>
SIMT_FN void ApplyToTwo(ElementOp op, float (&x)[kElementFours][4], const Y& y) {
  switch (op) {
    case ElementOp::kAdd:
      return ForEachElement(x, [&](float a, int g, int j) { return a + y[g][j]; });
    case ElementOp::kSubtract:
      return ForEachElement(x, [&](float a, int g, int j) { return a - y[g][j]; });
    case ElementOp::kMultiply:
      return ForEachElement(x, [&](float a, int g, int j) { return a * y[g][j]; });
    case ElementOp::kDivide:
      return ForEachElement(x, [&](float a, int g, int j) { return a / y[g][j]; });
    case ElementOp::kSafeDivide:
      return ForEachElement(x,
                            [&](float a, int g, int j) { return y[g][j] == 0 ? 0 : a / y[g][j]; });
    // Written so that NaN stays NaN: comparisons with it are false.
    case ElementOp::kMaximum:
      return ForEachElement(
          x, [&](float a, int g, int j) { return a > y[g][j] || a != a ? a : y[g][j]; });
    case ElementOp::kMinimum:
      return ForEachElement(
          x, [&](float a, int g, int j) { return a < y[g][j] || a != a ? a : y[g][j]; });
    case ElementOp::kLogAddExp:
      return ForEachElement(x, [&](float a, int g, int j) {
        return static_cast<float>(wide::LogAddExp(a, y[g][j]));
      });
    case ElementOp::kGreater:
      return ForEachElement(x, [&](float a, int g, int j) { return a > y[g][j] ? 1 : 0; });
    case ElementOp::kEqual:
      return ForEachElement(x, [&](float a, int g, int j) { return a == y[g][j] ? 1 : 0; });
    default:
      return;
  }
}

}  // namespace element_internal

// kOperands: of the operation, or 2 of a derivative.
template <int kOperands>
__global__ void __launch_bounds__(kElementThreads)
    Elementwise(const __grid_constant__ Problems<ElementWalk> problems, ElementKernelOp op) {
  using namespace element_internal;
  const auto place = FindPlace(problems);
  const ElementWalk& walk = place.problem;
  const auto block = static_cast<uint32_t>(place.block) * kElementsABlock;
  Places places;
  places.step = walk.fours ? 1 : kElementThreads;
#pragma unroll
  for (int g = 0; g < kElementFours; ++g) {
    places.first[g] = block + g * (4 * kElementThreads) + threadIdx.x * (walk.fours ? 4 : 1);
  }
  places.is_whole = places.first[kElementFours - 1] + 3 * places.step < walk.elements;
  float x[kElementFours][4];
  Load(walk, 0, places, x);
  if constexpr (kOperands == 1) {
    if (op.op == ElementOp::kAffine) {
      ForEachElement(x, [&](float a, int, int) { return op.alpha * a + op.beta; });
    } else {
      WithUnary(op.op, [&](auto of) {
        constexpr ElementOp kOp = decltype(of)::value;
        ForEachElement(x, [](float a, int, int) { return ElementMap<kOp>(a); });
      });
    }
  } else {
    float y[kElementFours][4];
    Load(walk, 1, places, y);
    if constexpr (kOperands == 3) {
      float z[kElementFours][4];
      Load(walk, 2, places, z);
      ForEachElement(x, [&](float a, int g, int j) { return a != 0 ? y[g][j] : z[g][j]; });
    } else if (!op.derivative) {
      ApplyToTwo(op.op, x, y);
    } else if (op.op == ElementOp::kAffine) {
      ForEachElement(x, [&](float a, int, int) { return op.alpha * a; });
    } else {
      WithUnary(op.op, [&](auto of) {
        ForEachElement(x,
                       [&](float a, int g, int j) { return ElementSlope<of.value>(a, y[g][j]); });
      });
    }
  }
  StoreAll(walk, places, x);
}

}  // namespace attnd::cuda
