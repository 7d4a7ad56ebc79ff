// One product as the kernels of matmul get it: how it is cut, and where everything lies.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/device/matmul.h"

namespace attnd::cuda {

// How a tile of an operand is copied to shared memory.
enum class TileCopy : uint8_t {
  kVectors,   // 16 bytes at a time: elements of the tile's own type in dense, aligned lines
  kWords,     // a float32 at a time
  kElements,  // of any float dtype, through registers
};

// A matrix of every batch. Strides in elements, 0 where it repeats.
struct MatMulSide {
  void* data = nullptr;
  DType dtype = DType::kF32;
  bool given = false;
  int64_t row = 0, column = 0;
  std::array<int64_t, kMaxRank - 2> leading = {};
};

// An operand: a [M,K] or b [K,N]. Its tile has lines along k, or across.
struct MatMulOperand : MatMulSide {
  std::array<int64_t, kMaxRank - 2> summed = {};  // strides
  bool along_k = false;
  TileCopy copy = TileCopy::kElements;
};

// Order of a sum: k in steps of kStep; the steps of every summed matrix one after another; a step
// starts from zero and is added to the steps before it. Long sums of small results are cut into
// chunks of steps, each summed alone; chunks are added as AddChunksKernel says. All of it follows
// from M, N, K, the summed dimensions and the dtypes alone. What else is decided here changes no
// bit of the result.
struct MatMulTask {
  // Elements of k of a step: of 16-bit operands of one dtype, and of others.
  static constexpr int kStep16 = 64, kStep32 = 32;
  // Tiles of results: large ones where they are enough to fill the device.
  static constexpr int kLarge = 128, kSmall = 64;

  MatMulTask() = default;
  explicit MatMulTask(const MatMulProblem& problem);

  MatMulOperand a, b;
  MatMulSide bias, multiply, out;
  DType dtype = DType::kF32;  // of both operands if that has 16 bits; kF32: any
  int64_t M = 0, N = 0, K = 0;
  // Leading dimensions that out has, and those that are summed.
  int kept = 0, summed = 0;
  std::array<int64_t, kMaxRank - 2> kept_dims = {}, summed_dims = {};
  int64_t batches = 1, matrices = 1;  // their products

  int64_t k_steps = 0;  // of one matrix
  int64_t steps = 0;    // of all summed matrices
  int64_t chunk = 0;    // steps of a chunk
  int64_t chunks = 1;
  int tile = kSmall;  // rows and columns of a tile
  int64_t tiles_m = 0, tiles_n = 0;
  bool crosses = false;  // contiguous elements of out run along M
  // Sums of chunks, [tiles][chunks][partial_lines][partial_length]: lines as crosses says, of tiles
  // that may be smaller than `tile`.
  float* partial = nullptr;
  int partial_lines = 0, partial_length = 0;

  int64_t tiles() const { return batches * tiles_m * tiles_n; }
  int64_t partial_floats() const {
    return chunks > 1 ? tiles() * chunks * partial_lines * partial_length : 0;
  }
  double flops() const;  // that tiles take

 private:
  void SetLeading(const MatMulProblem& problem);
  void CutSum();
  void MergeRows();
  void CutTiles();
  void SetCopies();
};

// What follows a sum x: activation(alpha x + bias) * multiply * scale + term. With waves instead:
// two results, N elements apart, from y = alpha x + bias.
struct MatMulFinish {
  enum class Waves : uint8_t { kNone, kSinCos, kCosSin };  // scale times the waves of y

  float alpha = 1, scale = 1, term = 0;
  bool activates = false;
  ElementOp activation = ElementOp::kCopy;
  Waves waves = Waves::kNone;
};

}  // namespace attnd::cuda
