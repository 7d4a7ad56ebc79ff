// How one product is cut: its dimensions as loops, the sum over k in steps, the result in tiles.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/device/matmul.h"

namespace attnd {

// A matrix per batch. Strides in elements, 0 where it repeats.
struct MatMulSide {
  char* data = nullptr;
  DType dtype = DType::kF32;
  bool given = false;
  int64_t row = 0, column = 0;
  std::array<int64_t, kMaxRank> leading = {};

  char* At(int64_t offset) const { return data + offset * SizeOf(dtype); }
};

// Order of a sum: k in steps of kStep; the steps of every summed matrix one after another; a step
// starts from zero and is added to the steps before it. Long sums of small results are cut into
// chunks of steps, each summed alone and added in ascending order. All of it follows from M, N, K
// and the summed dimensions alone. What else is decided here changes no bit of the result.
struct MatMulTiling {
  // A step of a panel of B (128 rows of 64 floats, 32 KB) stays in L1 while rows of A stream from
  // L2. Both with the tile of C take 1 MB, half of L2, and bring 2 (1 / 256 + 1 / 512) bytes a FLOP
  // from memory. Steps of 256 and tiles of 128 x 256 were slower. See tests/bench/matmul_bench.cc.
  static constexpr int64_t kStep = 128;
  static constexpr int64_t kTileM = 256, kTileN = 512;
  // With so few rows of A, rows of B are read once, in long pieces, kThinRows at a time.
  static constexpr int64_t kThin = 4, kThinTileN = 512, kThinRows = 8;
  // Distances in scratch: no power of two, which would fight for few cache sets.
  static constexpr int64_t kGap = 16;

  MatMulTiling(const MatMulProblem& problem, int64_t lanes, int threads);

  // a [M,K], b [K,N], the rest [M,N]; the lanes of a vector run along N, which may be out's rows.
  MatMulSide a, b, bias, multiply, out;
  int64_t M = 0, N = 0, K = 0;
  // Leading dimensions that out has, and those that are summed.
  int kept = 0, summed = 0;
  std::array<int64_t, kMaxRank> kept_dims = {}, summed_dims = {};
  std::array<int64_t, kMaxRank> summed_a = {}, summed_b = {};  // strides
  int64_t batches = 1, matrices = 1;                           // their products

  int64_t k_steps = 0;  // of one matrix
  int64_t steps = 0;    // of all summed matrices
  int64_t chunk = 0;    // steps of a chunk
  int64_t chunks = 1;
  int64_t tile_m = 0, tile_n = 0, tiles_m = 0, tiles_n = 0;
  bool crosses = false;  // contiguous elements of out run along M: tiles are transposed at the end

  int64_t tiles() const { return batches * tiles_m * tiles_n; }
  int64_t items() const { return tiles() * chunks; }
  double flops() const;
  bool is_thin() const { return M <= kThin && b.column == 1; }
  // Floats of one tile of C, and of the scratch of one thread.
  int64_t c_stride() const { return tile_n + kGap; }
  int64_t c_floats() const { return tile_m * c_stride(); }
  int64_t operand_floats() const { return a_floats() + b_floats(); }
  int64_t a_floats() const { return (tile_m + kGap) * (kStep + kGap); }
  int64_t b_floats() const { return tile_n * (is_thin() ? kThinRows + kThin : kStep + 64); }
  int64_t scratch_floats() const;

  // Offsets of a batch's matrix in a side, and of a summed matrix in a and b.
  int64_t Offset(const MatMulSide& side, int64_t batch) const;
  int64_t SummedOffset(const std::array<int64_t, kMaxRank>& strides, int64_t matrix) const;

 private:
  void SetLeading(const MatMulProblem& problem);
  void CutSum();
  void MergeRows();
  void Orient(int64_t lanes);
  double Cost(int64_t lanes) const;
  void Transpose();
  void CutTiles(int threads);
};

}  // namespace attnd
