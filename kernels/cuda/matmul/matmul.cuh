// Products of strided matrices by mma.sync: a block a tile of a result, or a chunk of its sum.
//
// Bound: products of tensor cores. With 128 x 128 tiles a block reads 1 / 32 bytes a FLOP of 16-bit
// operands from L2, of which neighbouring blocks share most; three stages of cp.async hide that.
// Products of float32 take three of TF32: a third of half the rate of 16-bit ones. Thin products
// (few rows or columns) are bound by the bytes of the larger operand.
#pragma once

#include "kernels/cuda/element/element_call.h"
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

// What a block works on. In shared memory, as its sources.
struct MatMulBlock {
  TileSource a, b;
  TilePlace at;
  int64_t first_matrix, first_step;  // of its chunk: a summed matrix, and a step of that
  int steps;                         // of its chunk
};

// The steps of one chunk, as they are loaded: a cursor that runs ahead of the sums.
template <class S>
class StepLoader {
 public:
  using T = typename S::T;

  SIMT_FN StepLoader(const MatMulTask& p, const MatMulBlock& block)
      : p_(p),
        block_(block),
        matrix_(static_cast<int>(block.first_matrix)),
        step_(static_cast<int>(block.first_step)) {}

  // Starts the copy of the next step to a stage.
  SIMT_FN void Load(T* stage) {
    const int64_t k = int64_t{step_} * S::kK;
    const int count = static_cast<int>(p_.K - k < S::kK ? p_.K - k : S::kK);
    LoadTile<S>(block_.a, From(block_.a, p_.a, k), count, stage);
    LoadTile<S>(block_.b, From(block_.b, p_.b, k), count, stage + S::kTile);
    if (++step_ < p_.k_steps) return;
    step_ = 0;
    ++matrix_;
  }

 private:
  SIMT_FN const unsigned char* From(const TileSource& s, const MatMulOperand& side,
                                    int64_t k) const {
    int64_t offset = k * s.k;
    if (p_.summed > 0) offset += MatrixOffset(p_.summed, p_.summed_dims, side.summed, matrix_);
    return s.data + offset * s.bytes;
  }

  const MatMulTask& p_;
  const MatMulBlock& block_;
  int matrix_, step_;
};

// Adds the steps of a block to sums. Exactly: by multiply-adds, to those of which `which` has a
// bit.
template <class S>
SIMT_FN void SumSteps(const MatMulTask& p, const MatMulBlock& block, const WarpTile<S>& warp,
                      bool exactly, uint64_t which, typename S::T* stages,
                      float (&sums)[S::kRowTiles][S::kColumnTiles][4]) {
  const int steps = block.steps;
  StepLoader<S> loader(p, block);
#pragma unroll 1
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (i < steps) loader.Load(stages + i * 2 * S::kTile);
    simt::CopyCommit();
  }
  int stage = 0, left_k = static_cast<int>(p.k_steps - block.first_step);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    simt::CopyWait<S::kStages - 2>();
    // All threads' parts of this stage are there, and none reads the stage that is loaded next.
    __syncthreads();
    if (step + S::kStages - 1 < steps) {
      const int free = stage == 0 ? S::kStages - 1 : stage - 1;
      loader.Load(stages + free * 2 * S::kTile);
    }
    simt::CopyCommit();
    const typename S::T* const tiles = stages + stage * 2 * S::kTile;
    // The last step of a matrix may be a part of one.
    int count = S::kK;
    if (--left_k == 0) {
      left_k = static_cast<int>(p.k_steps);
      count = static_cast<int>(p.K - (p.k_steps - 1) * S::kK);
    }
    if (exactly) {
      if constexpr (!S::kIs16) {
        if (which != 0) warp.AddExactly(tiles, tiles + S::kTile, count, which, sums);
      }
    } else {
      float of_step[S::kRowTiles][S::kColumnTiles][4] = {};
      warp.Add(tiles, tiles + S::kTile, count, of_step);
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[m][n][i] += of_step[m][n][i];
        }
      }
    }
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
  }
  simt::CopyWait<0>();
  __syncthreads();
}

// The sides that a sum is combined with, at a tile.
struct FinishSides {
  SIMT_FN FinishSides(const MatMulTask& p, const TilePlace& at)
      : bias(Start(p, p.bias, at)), multiply(Start(p, p.multiply, at)), out(Start(p, p.out, at)) {}

  // Element (m, n) of the tile.
  SIMT_FN void Store(const MatMulTask& p, const MatMulFinish& finish, int m, int n,
                     float sum) const {
    float x = sum * finish.alpha;
    const int64_t at = At(p.out, out, m, n);
    if (p.bias.given) x += LoadFloat(p.bias.data, p.bias.dtype, At(p.bias, bias, m, n));
    if (finish.waves != MatMulFinish::Waves::kNone) {
      float sine, cosine;
      sincosf(x, &sine, &cosine);
      const bool is_sin_cos = finish.waves == MatMulFinish::Waves::kSinCos;
      StoreFloat(p.out.data, p.out.dtype, at, finish.scale * (is_sin_cos ? sine : cosine));
      StoreFloat(p.out.data, p.out.dtype, at + p.N, finish.scale * (is_sin_cos ? cosine : sine));
      return;
    }
    if (finish.activates) x = CalledMap(finish.activation, x);
    if (p.multiply.given) {
      x *= LoadFloat(p.multiply.data, p.multiply.dtype, At(p.multiply, multiply, m, n));
    }
    StoreFloat(p.out.data, p.out.dtype, at, x * finish.scale + finish.term);
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
constexpr size_t kMatMulSharedBytes =
    simt::SharedBytes<unsigned char>(S::kBytes) + simt::SharedBytes<MatMulBlock>(1);

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    MatMulKernel(const __grid_constant__ Problems<MatMulTask> problems, MatMulFinish finish) {
  const Place<MatMulTask> place = FindPlace(problems);
  const MatMulTask& p = place.problem;
  simt::SharedTiles shared;
  unsigned char* const memory = shared.Take<unsigned char>(S::kBytes);
  MatMulBlock& block = *shared.Take<MatMulBlock>(1);
  if (threadIdx.x == 0) {
    const int64_t tile = place.block / p.chunks, first = (place.block - tile * p.chunks) * p.chunk;
    const TilePlace at(p, tile);
    const auto offset = [&](const MatMulOperand& side) {
      return MatrixOffset(p.kept, p.kept_dims, side.leading, at.batch);
    };
    const int64_t left = p.steps - first < p.chunk ? p.steps - first : p.chunk;
    const int64_t matrix = p.steps == 0 ? 0 : first / p.k_steps;
    block = {SourceOf(p.a, p.a.row, p.a.column, offset(p.a) + at.m * p.a.row, at.rows),
             SourceOf(p.b, p.b.column, p.b.row, offset(p.b) + at.n * p.b.column, at.columns),
             at,
             matrix,
             first - matrix * p.k_steps,
             static_cast<int>(left)};
  }
  __syncthreads();

  const WarpTile<S> warp(p.a.along_k, p.b.along_k, block.at.rows, block.at.columns);
  float sums[S::kRowTiles][S::kColumnTiles][4] = {};
  uint64_t which = 0;
  // The parts of an infinity are not numbers, and those of the largest numbers are not finite: sums
  // of float32 that are not finite are done again.
  for (bool exactly = false;; exactly = true) {
    SumSteps<S>(p, block, warp, exactly, which, reinterpret_cast<typename S::T*>(memory), sums);
    if (S::kIs16 || exactly) break;
    which = warp.NotFinite(sums);
    if (!__syncthreads_or(which != 0)) break;
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < S::kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (which >> warp.Bit(m, n, i) & 1) sums[m][n][i] = 0;
        }
      }
    }
  }

  // Through shared memory, so that threads follow the lines of the result.
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
  const TilePlace at = block.at;
  const FinishSides sides(p, at);
  float* const partial =
      p.chunks > 1 ? p.partial + place.block * (p.partial_lines * p.partial_length) : nullptr;
  const int pitch = p.crosses ? S::kSize + 4 : S::kSize + 8;
  for (int e = static_cast<int>(threadIdx.x); e < S::kSize * S::kSize; e += S::kThreads) {
    const int line = e / S::kSize, i = e % S::kSize;
    const int m = p.crosses ? i : line, n = p.crosses ? line : i;
    if (m >= at.rows || n >= at.columns) continue;
    const float sum = result[line * pitch + i];
    if (partial != nullptr) {
      partial[line * p.partial_length + i] = sum;
    } else {
      sides.Store(p, finish, m, n, sum);
    }
  }
}

// Adds up the chunks of sums of small results. Bound by the bytes of the chunks. Teams of threads
// share the chunks of an element: thread i of t adds chunks i, i + t, .. in this order, and those
// sums are added in the order of threads.
constexpr int kFinishThreads = 256, kMostFinishTeam = 32;
constexpr int kFinishEach = 4;     // elements of a team, one after another
constexpr int kFinishChunks = 32;  // of a thread, as long as teams can grow

__host__ __device__ inline int FinishTeam(int64_t chunks) {
  int team = 1;
  while (team < kMostFinishTeam && team * kFinishChunks < chunks) team *= 2;
  return team;
}
// Of a tile.
__host__ __device__ inline int64_t FinishBlocks(const MatMulTask& p) {
  const int of_block = kFinishThreads / FinishTeam(p.chunks) * kFinishEach;
  return (p.partial_lines * p.partial_length + of_block - 1) / of_block;
}
constexpr size_t kFinishSharedBytes = simt::SharedBytes<float>(kFinishThreads);

static __global__ void __launch_bounds__(kFinishThreads)
    AddChunksKernel(const __grid_constant__ Problems<MatMulTask> problems, MatMulFinish finish) {
  const Place<MatMulTask> place = FindPlace(problems);
  const MatMulTask& p = place.problem;
  simt::SharedTiles shared;
  float* const sums = shared.Take<float>(kFinishThreads);
  const int team = FinishTeam(p.chunks), teams = kFinishThreads / team;
  const int thread = static_cast<int>(threadIdx.x), member = thread / teams;
  const int64_t blocks = FinishBlocks(p), tile = place.block / blocks;
  const TilePlace at(p, tile);
  const FinishSides sides(p, at);
  const int of_chunk = p.partial_lines * p.partial_length;
  const float* const partial = p.partial + tile * p.chunks * of_chunk;
  const auto first = static_cast<int>((place.block - tile * blocks) * (teams * kFinishEach));
  for (int each = 0; each < kFinishEach; ++each) {
    const int e = first + each * teams + thread % teams;
    const int line = e / p.partial_length, i = e - line * p.partial_length;
    const int m = p.crosses ? i : line, n = p.crosses ? line : i;
    const bool exists = e < of_chunk && m < at.rows && n < at.columns;
    float sum = 0;
    if (exists) {
      const float* const from = partial + e;
      sum = from[int64_t{member} * of_chunk];
#pragma unroll 8
      for (int64_t chunk = member + team; chunk < p.chunks; chunk += team) {
        sum += from[chunk * of_chunk];
      }
    }
    if (team > 1) {
      __syncthreads();  // all have read the sums of the element before
      sums[thread] = sum;
      __syncthreads();
      if (member > 0) continue;
      for (int other = 1; other < team; ++other) sum += sums[other * teams + thread];
    }
    if (exists) sides.Store(p, finish, m, n, sum);
  }
}

}  // namespace attnd::cuda
