// Products of strided matrices by mma.sync: a block a tile of a result, or a chunk of its sum.
//
// Bound: products of tensor cores. With 128 x 128 tiles a block reads 1 / 32 bytes a FLOP of 16-bit
// operands from L2, of which neighbouring blocks share most; three stages of cp.async hide that.
// Products of float32 take three of TF32: a third of half the rate of 16-bit ones. Thin products
// (few rows or columns) are bound by the bytes of the larger operand.
#pragma once

#include "kernels/cuda/element/element_math.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/matmul/matmul_tile.cuh"

namespace attnd::cuda {

// Tile number `number` of a problem. Neighbours in the order of blocks share operands in L2: they
// run over few rows of tiles at a time.
struct TilePlace {
  SIMT_FN TilePlace(const MatMulTask& p, int64_t number) {
    constexpr int64_t kGroup = 8;
    const int64_t of_matrix = p.tiles_m * p.tiles_n;
    batch = number / of_matrix;
    const int64_t tile = number - batch * of_matrix;
    const int64_t group = tile / (kGroup * p.tiles_n), first = group * kGroup;
    const int64_t height = p.tiles_m - first < kGroup ? p.tiles_m - first : kGroup;
    const int64_t rest = tile - first * p.tiles_n;
    const int64_t column = rest / height;
    m = (first + rest - column * height) * p.tile;
    n = column * p.tile;
    rows = static_cast<int>(p.M - m < p.tile ? p.M - m : p.tile);
    columns = static_cast<int>(p.N - n < p.tile ? p.N - n : p.tile);
  }

  int64_t batch, m, n;
  int rows, columns;
};

// The steps of one chunk, as they are loaded: a cursor that runs ahead of the sums.
template <class S>
class StepLoader {
 public:
  using T = typename S::T;

  SIMT_FN StepLoader(const MatMulTask& p, const TileSource& a, const TileSource& b, int64_t first)
      : p_(p), a_(a), b_(b), matrix_(first / p.k_steps), k_(first % p.k_steps * S::kK) {
    SetMatrix();
  }

  // Starts the copy of the next step to a stage.
  SIMT_FN void Load(T* stage) {
    const int count = static_cast<int>(p_.K - k_ < S::kK ? p_.K - k_ : S::kK);
    LoadTile<S>(a_, from_a_ + k_ * a_.k * a_.bytes, count, stage);
    LoadTile<S>(b_, from_b_ + k_ * b_.k * b_.bytes, count, stage + S::kTile);
    k_ += S::kK;
    if (k_ < p_.K) return;
    k_ = 0;
    ++matrix_;
    SetMatrix();
  }

 private:
  SIMT_FN void SetMatrix() {
    from_a_ = a_.data + MatrixOffset(p_.summed, p_.summed_dims, p_.a.summed, matrix_) * a_.bytes;
    from_b_ = b_.data + MatrixOffset(p_.summed, p_.summed_dims, p_.b.summed, matrix_) * b_.bytes;
  }

  const MatMulTask& p_;
  const TileSource &a_, &b_;
  const unsigned char *from_a_, *from_b_;
  int64_t matrix_, k_;
};

SIMT_FN bool IsFinite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

// sums of the steps [first, end). Exactly: those of which `again` has a bit, by multiply-adds.
template <class S, bool kExactly>
SIMT_FN void SumSteps(const MatMulTask& p, const TileSource& a, const TileSource& b, int64_t first,
                      int64_t end, const WarpTile<S>& warp, uint64_t again, typename S::T* stages,
                      float (&sums)[S::kRowTiles][S::kColumnTiles][4]) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (!kExactly || (again >> ((m * S::kColumnTiles + n) * 4 + i) & 1) != 0) sums[m][n][i] = 0;
      }
    }
  }
  if (first >= end) return;
  StepLoader<S> loader(p, a, b, first);
#pragma unroll
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (first + i < end) loader.Load(stages + i * 2 * S::kTile);
    simt::CopyCommit();
  }
  int stage = 0;
  int64_t k = first % p.k_steps * S::kK;
  for (int64_t step = first; step < end; ++step) {
    simt::CopyWait<S::kStages - 2>();
    // All threads' parts of this stage are there, and none reads the stage that is loaded next.
    __syncthreads();
    if (step + S::kStages - 1 < end) {
      const int free = stage == 0 ? S::kStages - 1 : stage - 1;
      loader.Load(stages + free * 2 * S::kTile);
    }
    simt::CopyCommit();
    const typename S::T* const tiles = stages + stage * 2 * S::kTile;
    const int count = static_cast<int>(p.K - k < S::kK ? p.K - k : S::kK);
    float of_step[S::kRowTiles][S::kColumnTiles][4] = {};
    if constexpr (kExactly) {
      if (again != 0) warp.AddExactly(tiles, tiles + S::kTile, count, of_step);
    } else {
      warp.Add(tiles, tiles + S::kTile, count, of_step);
    }
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!kExactly || (again >> ((m * S::kColumnTiles + n) * 4 + i) & 1) != 0) {
            sums[m][n][i] += of_step[m][n][i];
          }
        }
      }
    }
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
    k = k + S::kK < p.K ? k + S::kK : 0;
  }
  simt::CopyWait<0>();
}

// One copy of the code of all functions.
__device__ __noinline__ inline float Activated(ElementOp op, float x) {
  return ElementMapOf(op, x);
}

// The sides that a sum is combined with, at a tile.
struct FinishSides {
  SIMT_FN FinishSides(const MatMulTask& p, const TilePlace& at)
      : bias(Start(p, p.bias, at)),
        multiply(Start(p, p.multiply, at)),
        out(Start(p, p.out, at)) {}

  // Element (m, n) of the tile.
  SIMT_FN void Store(const MatMulTask& p, const MatMulFinish& finish, int m, int n,
                     float sum) const {
    float x = sum * finish.alpha;
    if (p.bias.given) x += LoadFloat(p.bias.data, p.bias.dtype, At(p.bias, bias, m, n));
    if (finish.activates) x = Activated(finish.activation, x);
    if (p.multiply.given) {
      x *= LoadFloat(p.multiply.data, p.multiply.dtype, At(p.multiply, multiply, m, n));
    }
    StoreFloat(p.out.data, p.out.dtype, At(p.out, out, m, n), x);
  }

  const int64_t bias, multiply, out;

 private:
  SIMT_FN static int64_t Start(const MatMulTask& p, const MatMulSide& side, const TilePlace& at) {
    return MatrixOffset(p.kept, p.kept_dims, side.leading, at.batch) + at.m * side.row +
           at.n * side.column;
  }
  SIMT_FN static int64_t At(const MatMulSide& side, int64_t start, int m, int n) {
    return start + m * side.row + n * side.column;
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads)
    MatMulKernel(const __grid_constant__ Problems<MatMulTask> problems, MatMulFinish finish) {
  const Place<MatMulTask> place = FindPlace(problems);
  const MatMulTask& p = place.problem;
  const int64_t tile = place.block / p.chunks, chunk = place.block - tile * p.chunks;
  const TilePlace at(p, tile);
  simt::SharedTiles shared;
  unsigned char* const memory = shared.Take<unsigned char>(S::kBytes);

  const auto offset = [&](const MatMulOperand& side) {
    return MatrixOffset(p.kept, p.kept_dims, side.leading, at.batch);
  };
  const TileSource a =
      SourceOf(p.a, p.a.row, p.a.column, offset(p.a) + at.m * p.a.row, at.rows);
  const TileSource b =
      SourceOf(p.b, p.b.column, p.b.row, offset(p.b) + at.n * p.b.column, at.columns);
  const WarpTile<S> warp(a.along_k, b.along_k, at.rows, at.columns);
  const int64_t first = chunk * p.chunk;
  const int64_t end = first + p.chunk < p.steps ? first + p.chunk : p.steps;
  float sums[S::kRowTiles][S::kColumnTiles][4];
  auto* const stages = reinterpret_cast<typename S::T*>(memory);
  SumSteps<S, false>(p, a, b, first, end, warp, 0, stages, sums);
  if constexpr (!S::kIs16) {
    // The parts of an infinity are not numbers, and those of the largest numbers are not finite.
    uint64_t again = 0;
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!IsFinite(sums[m][n][i])) again |= uint64_t{1} << ((m * S::kColumnTiles + n) * 4 + i);
        }
      }
    }
    if (__syncthreads_or(again != 0)) {
      SumSteps<S, true>(p, a, b, first, end, warp, again, stages, sums);
    }
  }

  // Through shared memory, so that threads follow the lines of the result.
  __syncthreads();
  auto* const result = reinterpret_cast<float*>(memory);
  const int row_pitch = p.crosses ? 1 : S::kSize + 8, column_pitch = p.crosses ? S::kSize + 4 : 1;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        result[warp.Row(m, i) * row_pitch + warp.Column(n, i) * column_pitch] = sums[m][n][i];
      }
    }
  }
  __syncthreads();
  const FinishSides sides(p, at);
  float* const partial =
      p.chunks > 1 ? p.partial + place.block * (S::kSize * S::kSize) : nullptr;
  const int pitch = p.crosses ? S::kSize + 4 : S::kSize + 8;
  for (int e = static_cast<int>(threadIdx.x); e < S::kSize * S::kSize; e += S::kThreads) {
    const int line = e / S::kSize, i = e % S::kSize;
    const int m = p.crosses ? i : line, n = p.crosses ? line : i;
    if (m >= at.rows || n >= at.columns) continue;
    const float sum = result[line * pitch + i];
    if (partial != nullptr) {
      partial[e] = sum;
    } else {
      sides.Store(p, finish, m, n, sum);
    }
  }
}

// Adds up the chunks of sums of small results: kPieces blocks a tile. Bound by the bytes of the
// chunks.
constexpr int kFinishThreads = 256, kFinishPieces = 4;

static __global__ void __launch_bounds__(kFinishThreads)
    AddChunksKernel(const __grid_constant__ Problems<MatMulTask> problems, MatMulFinish finish) {
  constexpr int kSize = MatMulTask::kSmall, kElements = kSize * kSize;
  const Place<MatMulTask> place = FindPlace(problems);
  const MatMulTask& p = place.problem;
  const int64_t tile = place.block / kFinishPieces;
  const int piece = static_cast<int>(place.block - tile * kFinishPieces);
  const TilePlace at(p, tile);
  const FinishSides sides(p, at);
  const float* const partial = p.partial + tile * p.chunks * kElements;
  const int end = (piece + 1) * (kElements / kFinishPieces);
  for (int e = end - kElements / kFinishPieces + static_cast<int>(threadIdx.x); e < end;
       e += kFinishThreads) {
    const int line = e / kSize, i = e % kSize;
    const int m = p.crosses ? i : line, n = p.crosses ? line : i;
    if (m >= at.rows || n >= at.columns) continue;
    float sum = partial[e];
#pragma unroll 8
    for (int chunk = 1; chunk < p.chunks; ++chunk) sum += partial[chunk * kElements + e];
    sides.Store(p, finish, m, n, sum);
  }
}

}  // namespace attnd::cuda
