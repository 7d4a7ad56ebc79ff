// Kernels of elementwise: a thread takes two times four elements, which are side by side in memory
// where the strides allow; tiles of operands that lie across the output turn in shared memory.
// Bound by memory: 3.35 TB/s on an H100, where functions in float64 take as long as the memory
// traffic of float32 (erf: twice that of 16-bit elements).
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
// An odd pitch: a warp reads a column of a tile from 32 banks.
constexpr int kTilePitch = ElementWalk::kTileRows + 1;
constexpr int kTileFloats = kTilePitch * ElementWalk::kTileColumns;
static_assert(ElementWalk::kTileRows * ElementWalk::kTileColumns == kElementsABlock);

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

SIMT_FN Places PlacesOf(const ElementWalk& walk, int64_t block) {
  Places places;
  places.step = walk.fours ? 1 : kElementThreads;
#pragma unroll
  for (int g = 0; g < kElementFours; ++g) {
    places.first[g] = static_cast<uint32_t>(block) * kElementsABlock + g * (4 * kElementThreads) +
                      threadIdx.x * (walk.fours ? 4 : 1);
  }
  places.is_whole = places.first[kElementFours - 1] + 3 * places.step < walk.elements;
  return places;
}

// A tile of a walk that is tiled.
struct Tile {
  uint32_t first_row, first_column, outer;
  int rows, columns;
};

SIMT_FN Tile TileOf(const ElementWalk& walk, int64_t block) {
  constexpr int kRows = ElementWalk::kTileRows, kColumns = ElementWalk::kTileColumns;
  const auto number = static_cast<uint32_t>(block);
  const uint32_t rest = walk.column_tiles.Quotient(number);
  Tile tile;
  tile.first_column = (number - rest * walk.column_tiles.divisor) * kColumns;
  tile.outer = walk.row_tiles.Quotient(rest);
  tile.first_row = (rest - tile.outer * walk.row_tiles.divisor) * kRows;
  tile.rows = static_cast<int>(min(walk.size[walk.rank - 2].divisor - tile.first_row, kRows + 0u));
  tile.columns =
      static_cast<int>(min(walk.size[walk.rank - 1].divisor - tile.first_column, kColumns + 0u));
  return tile;
}

SIMT_FN int64_t OffsetOf(const ElementWalk& walk, int view, const Tile& tile) {
  const auto& stride = walk.stride[view];
  int64_t offset = static_cast<int64_t>(tile.first_row) * stride[walk.rank - 2] +
                   static_cast<int64_t>(tile.first_column) * stride[walk.rank - 1];
  uint32_t number = tile.outer;
  for (int i = walk.rank - 3; i >= 0; --i) {
    const uint32_t rest = walk.size[i].Quotient(number);
    offset += static_cast<int64_t>(number - rest * walk.size[i].divisor) * stride[i];
    number = rest;
  }
  return offset;
}

// Of the tile's elements thread t has those of column t % kTileColumns and of every eighth row.
// `scratch`: kTileFloats of shared memory for operands that are turned.
SIMT_FN void LoadTile(const ElementWalk& walk, int view, const Tile& tile, float* scratch,
                      float (&x)[kElementFours][4]) {
  constexpr int kRows = ElementWalk::kTileRows, kColumns = ElementWalk::kTileColumns;
  const int64_t row_stride = walk.stride[view][walk.rank - 2];
  const int64_t column_stride = walk.stride[view][walk.rank - 1];
  const bool is_turned = walk.turned[view];
  const int first_row = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  WithType(walk.dtype[view], [&](auto type) {
    const auto* data = static_cast<decltype(type)>(walk.data[view]) + OffsetOf(walk, view, tile);
#pragma unroll
    for (int e = 0; e < 4 * kElementFours; ++e) {
      const int i = e * kElementThreads + static_cast<int>(threadIdx.x);
      const int r = is_turned ? i % kRows : first_row + e * (kElementThreads / kColumns);
      const int c = is_turned ? i / kRows : column;
      const bool exists = r < tile.rows && c < tile.columns;
      x[e / 4][e % 4] = exists ? ToFloat(data[r * row_stride + c * column_stride]) : 0;
    }
  });
  if (!is_turned) return;
#pragma unroll
  for (int e = 0; e < 4 * kElementFours; ++e) {
    const int i = e * kElementThreads + static_cast<int>(threadIdx.x);
    scratch[i / kRows * kTilePitch + i % kRows] = x[e / 4][e % 4];
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < 4 * kElementFours; ++e) {
    const int r = first_row + e * (kElementThreads / kColumns);
    x[e / 4][e % 4] = scratch[column * kTilePitch + r];
  }
}

SIMT_FN void StoreTile(const ElementWalk& walk, const Tile& tile,
                       const float (&x)[kElementFours][4]) {
  constexpr int kOut = ElementWalk::kOut, kColumns = ElementWalk::kTileColumns;
  const int64_t row_stride = walk.stride[kOut][walk.rank - 2];
  const int64_t column_stride = walk.stride[kOut][walk.rank - 1];
  const int first_row = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
  if (column >= tile.columns) return;
  WithFloatType(walk.dtype[kOut], [&](auto type) {
    auto* data = static_cast<decltype(type)>(walk.data[kOut]) + OffsetOf(walk, kOut, tile);
#pragma unroll
    for (int e = 0; e < 4 * kElementFours; ++e) {
      const int r = first_row + e * (kElementThreads / kColumns);
      if (r < tile.rows) Store(data + r * row_stride + column * column_stride, x[e / 4][e % 4]);
    }
  });
}

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

// x = op(x, y, z).
template <int kOperands, class Operand>
SIMT_FN void Apply(const ElementKernelOp& op, float (&x)[kElementFours][4], const Operand& y,
                   const Operand& z) {
  if constexpr (kOperands == 1) {
    if (op.op == ElementOp::kAffine) {
      ForEachElement(x, [&](float a, int, int) { return op.alpha * a + op.beta; });
    } else {
      WithUnary(op.op, [&](auto of) {
        constexpr ElementOp kOp = decltype(of)::value;
        ForEachElement(x, [](float a, int, int) { return ElementMap<kOp>(a); });
      });
    }
  } else if constexpr (kOperands == 3) {
    ForEachElement(x, [&](float a, int g, int j) { return a != 0 ? y[g][j] : z[g][j]; });
  } else if (!op.derivative) {
    ApplyToTwo(op.op, x, y);
  } else if (op.op == ElementOp::kAffine) {
    ForEachElement(x, [&](float a, int, int) { return op.alpha * a; });
  } else {
    WithUnary(op.op, [&](auto of) {
      constexpr ElementOp kOp = decltype(of)::value;
      ForEachElement(x, [&](float a, int g, int j) { return ElementSlope<kOp>(a, y[g][j]); });
    });
  }
}

}  // namespace element_internal

// Of a launch in which some operand is turned.
constexpr size_t kTurnShared = ElementWalk::kOperands * simt::SharedBytes<float>(kTileFloats);

// kOperands: of the operation, or 2 of a derivative.
template <int kOperands>
__global__ void __launch_bounds__(kElementThreads)
    Elementwise(const __grid_constant__ Problems<ElementWalk> problems, ElementKernelOp op) {
  using namespace element_internal;
  const auto block = FindPlace(problems);
  const ElementWalk& walk = block.problem;
  float x[3][kElementFours][4];
  if (walk.tiled) {
    const Tile tile = TileOf(walk, block.block);
    simt::SharedTiles shared;
#pragma unroll
    for (int v = 0; v < kOperands; ++v) {
      LoadTile(walk, v, tile, shared.Take<float>(kTileFloats), x[v]);
    }
    Apply<kOperands>(op, x[0], x[1], x[2]);
    StoreTile(walk, tile, x[0]);
    return;
  }
  const Places places = PlacesOf(walk, block.block);
#pragma unroll
  for (int v = 0; v < kOperands; ++v) Load(walk, v, places, x[v]);
  Apply<kOperands>(op, x[0], x[1], x[2]);
  StoreAll(walk, places, x[0]);
}

}  // namespace attnd::cuda
