#include "kernels/cpu/matmul/matmul_tiling.h"

#include <algorithm>
#include <utility>

#include "kernels/core/integer.h"

namespace attnd {
namespace {

MatMulSide SideOf(const View& view) {
  MatMulSide side;
  if (!view.given()) return side;
  const int rank = view.shape.rank;
  const auto stride = [&](int i) { return view.shape[i] == 1 ? 0 : view.stride[i]; };
  side.data = view.As<char>();
  side.dtype = view.dtype;
  side.given = true;
  side.row = stride(rank - 2);
  side.column = stride(rank - 1);
  for (int i = 0; i + 2 < rank; ++i) side.leading[i] = stride(i);
  return side;
}

// The parts of `size` that are at most `largest` long, as equal as multiples of `unit` allow.
int64_t EvenPart(int64_t size, int64_t largest, int64_t unit) {
  const int64_t parts = std::max<int64_t>(CeilDiv(size, largest), 1);
  return std::max(RoundUp(CeilDiv(size, parts), unit), unit);
}

}  // namespace

MatMulTiling::MatMulTiling(const MatMulProblem& problem, int64_t lanes, int threads)
    : a(SideOf(problem.a)),
      b(SideOf(problem.b)),
      bias(SideOf(problem.bias)),
      multiply(SideOf(problem.multiply)),
      out(SideOf(problem.out)) {
  const int rank = problem.out.shape.rank;
  M = problem.out.shape[rank - 2];
  N = problem.out.shape[rank - 1];
  K = problem.a.shape[rank - 1];
  SetLeading(problem);
  CutSum();
  MergeRows();
  Orient(lanes);
  CutTiles(threads);
}

void MatMulTiling::SetLeading(const MatMulProblem& problem) {
  for (int i = 0; i + 2 < problem.out.shape.rank; ++i) {
    const int64_t dim = problem.a.shape[i] != 1 ? problem.a.shape[i] : problem.b.shape[i];
    if (dim == 1) continue;
    if (problem.out.shape[i] == dim) {
      for (MatMulSide* side : {&a, &b, &bias, &multiply, &out}) {
        side->leading[kept] = side->leading[i];
      }
      kept_dims[kept++] = dim;
      batches *= dim;
    } else {
      summed_a[summed] = a.leading[i];
      summed_b[summed] = b.leading[i];
      summed_dims[summed++] = dim;
      matrices *= dim;
    }
  }
}

void MatMulTiling::CutSum() {
  // A chunk of 2048 products outweighs adding its tile to the others; one small result does not
  // occupy more than 16 threads.
  constexpr int64_t kSmallTiles = 16, kLongSum = 4096, kChunkSum = 2048, kMaxChunks = 16;
  k_steps = CeilDiv(K, kStep);
  steps = matrices * k_steps;
  chunk = std::max<int64_t>(steps, 1);
  const int64_t length = std::min(K, kStep);
  if (CeilDiv(M, 64) * CeilDiv(N, 64) > kSmallTiles || steps * length < kLongSum) return;
  chunk = std::max(CeilDiv(kChunkSum, length), CeilDiv(steps, kMaxChunks));
  chunks = CeilDiv(steps, chunk);
}

// Where b repeats, the rows of consecutive batches are rows of one taller matrix, if they lie so.
void MatMulTiling::MergeRows() {
  while (kept > 0 && b.leading[kept - 1] == 0 && M > 0) {
    const int outer = kept - 1;
    for (const MatMulSide* side : {&a, &bias, &multiply, &out}) {
      if (M > 1 && side->leading[outer] != side->row * M) return;
    }
    for (MatMulSide* side : {&a, &bias, &multiply, &out}) {
      if (M == 1) side->row = side->leading[outer];
    }
    batches /= std::max<int64_t>(kept_dims[outer], 1);
    M *= kept_dims[outer];
    kept = outer;
  }
}

// In vector multiply-adds, two a cycle: what one orientation costs. Factors were measured with
// tests/bench/matmul_bench.cc.
double MatMulTiling::Cost(int64_t lanes) const {
  const auto of = [](int64_t x) { return static_cast<double>(x); };
  const double rows_of_tiles = of(CeilDiv(M, kTileM)), columns_of_tiles = of(CeilDiv(N, kTileN));
  double cost = of(M) * of(K) * of(CeilDiv(N, lanes));
  cost += of(K) * of(N) * rows_of_tiles * (b.column == 1 ? 4.0 / of(lanes) : b.row == 1 ? 1 : 4);
  cost += of(M) * of(K) * columns_of_tiles * (a.column == 1 ? 0 : a.row == 1 ? 0.1 : 4);
  return cost + (out.column == 1 ? 0 : 1) * of(M) * of(N);
}

void MatMulTiling::Transpose() {
  std::swap(a, b);
  std::swap(M, N);
  std::swap(summed_a, summed_b);
  for (MatMulSide* side : {&a, &b, &bias, &multiply, &out}) std::swap(side->row, side->column);
}

void MatMulTiling::Orient(int64_t lanes) {
  // A row or column of one element is contiguous in either direction.
  const auto settle = [](int64_t rows, int64_t columns, MatMulSide* side) {
    if (columns == 1 && side->row != 1) side->column = 1;
    if (rows == 1 && side->column != 1) side->row = 1;
  };
  settle(M, K, &a);
  settle(K, N, &b);
  settle(M, N, &out);
  const double as_is = Cost(lanes);
  Transpose();
  if (Cost(lanes) >= as_is) Transpose();
  crosses = out.column != 1 && out.row == 1;
}

void MatMulTiling::CutTiles(int threads) {
  // Two items a thread, until packing B for few rows costs too much. One thread packs B least often
  // in the largest tiles.
  constexpr int64_t kLeastRows = 64;
  const int64_t items = threads == 1 ? 1 : 2 * threads;
  tile_n = EvenPart(N, is_thin() ? kThinTileN : kTileN, 64);
  tiles_n = CeilDiv(N, tile_n);
  int64_t largest = kTileM;
  while (largest > kLeastRows && batches * CeilDiv(M, largest) * tiles_n * chunks < items) {
    largest /= 2;
  }
  tile_m = EvenPart(M, largest, 4);
  tiles_m = CeilDiv(M, tile_m);
}

double MatMulTiling::flops() const {
  return 2.0 * static_cast<double>(M * batches) * static_cast<double>(N) *
         static_cast<double>(K * matrices);
}

int64_t MatMulTiling::scratch_floats() const {
  const int64_t turned = crosses ? tile_n * (tile_m + kGap) : 0;
  return operand_floats() + c_floats() + 2 * (std::max(tile_m, tile_n) + kGap) + turned;
}

int64_t MatMulTiling::Offset(const MatMulSide& side, int64_t batch) const {
  int64_t offset = 0;
  for (int i = kept - 1; i >= 0; --i) {
    offset += batch % kept_dims[i] * side.leading[i];
    batch /= kept_dims[i];
  }
  return offset;
}

int64_t MatMulTiling::SummedOffset(const std::array<int64_t, kMaxRank>& strides,
                                   int64_t matrix) const {
  int64_t offset = 0;
  for (int i = summed - 1; i >= 0; --i) {
    offset += matrix % summed_dims[i] * strides[i];
    matrix /= summed_dims[i];
  }
  return offset;
}

}  // namespace attnd
