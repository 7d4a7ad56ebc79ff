#include "kernels/cuda/matmul/matmul_task.h"

#include <algorithm>
#include <cstdlib>

namespace attnd::cuda {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

void SetSide(const View& view, MatMulSide* side) {
  if (!view.given()) return;
  const int rank = view.shape.rank;
  const auto stride = [&](int i) { return view.shape[i] == 1 ? 0 : view.stride[i]; };
  side->data = view.data;
  side->dtype = view.dtype;
  side->given = true;
  side->row = stride(rank - 2);
  side->column = stride(rank - 1);
  for (int i = 0; i + 2 < rank; ++i) side->leading[i] = stride(i);
}

// Whether elements lie closer together along the axis of stride x than along that of y. An axis of
// stride 0 is one of a single element, or repeats.
bool IsCloser(int64_t x, int64_t y) {
  if (x == 0 || y == 0) return x != 0;
  return std::abs(x) <= std::abs(y);
}

// Products that a chunk of an [M,N] result may sum: some 0.1 ms pass for 4096. More for results of
// many elements, so that chunks take no more than 1 / 32 of the bytes of dense operands of 16 bits
// (1 / 8 where M and N just begin another tile). Of 128 tiles at most 24 000, where a step has one
// product some 10 ms.
int64_t LongestSum(int64_t M, int64_t N) {
  constexpr int64_t kFewest = 4096, kShare = 64;
  return std::max(kFewest, kShare * M * N / std::max<int64_t>(M + N, 1));
}

}  // namespace

MatMulTask::MatMulTask(const MatMulProblem& problem) {
  SetSide(problem.a, &a);
  SetSide(problem.b, &b);
  SetSide(problem.bias, &bias);
  SetSide(problem.multiply, &multiply);
  SetSide(problem.out, &out);
  if (a.dtype == b.dtype) dtype = a.dtype;
  const int rank = problem.out.shape.rank;
  M = problem.out.shape[rank - 2];
  N = problem.out.shape[rank - 1];
  K = problem.a.shape[rank - 1];
  SetLeading(problem);
  CutSum();
  MergeRows();
  CutTiles();
  SetCopies();
}

void MatMulTask::SetLeading(const MatMulProblem& problem) {
  for (int i = 0; i + 2 < problem.out.shape.rank; ++i) {
    const int64_t dim = problem.a.shape[i] != 1 ? problem.a.shape[i] : problem.b.shape[i];
    if (dim == 1) continue;
    if (problem.out.shape[i] == dim) {
      for (MatMulSide* side :
           {static_cast<MatMulSide*>(&a), static_cast<MatMulSide*>(&b), &bias, &multiply, &out}) {
        side->leading[kept] = side->leading[i];
      }
      kept_dims[kept++] = dim;
      batches *= dim;
    } else {
      a.summed[summed] = a.leading[i];
      b.summed[summed] = b.leading[i];
      summed_dims[summed++] = dim;
      matrices *= dim;
    }
  }
}

void MatMulTask::CutSum() {
  // With so many blocks one product fills a device. A chunk of 1024 products outweighs writing its
  // tile and reading it again.
  constexpr int64_t kBlocks = 256, kChunkSum = 1024, kMostChunks = 32;
  const int64_t step = dtype == DType::kF32 ? kStep32 : kStep16;
  k_steps = DivideUp(K, step);
  steps = matrices * k_steps;
  chunk = std::max<int64_t>(steps, 1);
  const int64_t tiles = std::max<int64_t>(DivideUp(M, kSmall) * DivideUp(N, kSmall), 1);
  const int64_t products = std::max<int64_t>(std::min(K, step), 1);  // of a step
  const int64_t most = std::min({kBlocks / tiles, steps * products / kChunkSum, kMostChunks});
  if (most <= 1) return;
  // Nothing ends a block, whose steps follow one another: longer sums have more chunks.
  const int64_t longest = std::max<int64_t>(LongestSum(M, N) / products, 1);
  chunk = std::min(DivideUp(steps, most), longest);
  chunks = DivideUp(steps, chunk);
}

// Where b repeats, the rows of consecutive batches are rows of one taller matrix, if they lie so.
void MatMulTask::MergeRows() {
  while (kept > 0 && b.leading[kept - 1] == 0 && M > 0) {
    const int outer = kept - 1;
    for (const MatMulSide* side : {static_cast<MatMulSide*>(&a), &bias, &multiply, &out}) {
      if (M > 1 && side->leading[outer] != side->row * M) return;
    }
    for (MatMulSide* side : {static_cast<MatMulSide*>(&a), &bias, &multiply, &out}) {
      if (M == 1) side->row = side->leading[outer];
    }
    batches /= std::max<int64_t>(kept_dims[outer], 1);
    M *= kept_dims[outer];
    kept = outer;
  }
}

void MatMulTask::CutTiles() {
  // A large tile reads half as much for as many products, where there are enough of them.
  constexpr int64_t kEnough = 96;
  const bool is_large = chunks == 1 &&
                        batches * DivideUp(M, kLarge) * DivideUp(N, kLarge) >= kEnough &&
                        M > kSmall && N > kSmall;
  tile = is_large ? kLarge : kSmall;
  tiles_m = DivideUp(M, tile);
  tiles_n = DivideUp(N, tile);
}

void MatMulTask::SetCopies() {
  crosses = IsCloser(out.row, out.column) && out.column != 1;
  partial_lines = static_cast<int>(std::min<int64_t>(crosses ? N : M, tile));
  partial_length = static_cast<int>(std::min<int64_t>(crosses ? M : N, tile));
  a.along_k = IsCloser(a.column, a.row) && (a.column == 1 || a.row != 1);
  b.along_k = IsCloser(b.row, b.column) && b.column != 1;
  const auto set = [&](MatMulOperand* side, int64_t across, int64_t stride_k, int64_t outer) {
    const int64_t line = side->along_k ? across : stride_k,
                  step = side->along_k ? stride_k : across;
    const int64_t length = side->along_k ? K : outer;
    const int64_t vector = 16 / SizeOf(dtype);
    bool is_aligned = side->dtype == dtype && step == 1 && length % vector == 0 &&
                      line % vector == 0 && reinterpret_cast<uintptr_t>(side->data) % 16 == 0;
    for (int i = 0; i < kept; ++i) is_aligned &= side->leading[i] % vector == 0;
    for (int i = 0; i < summed; ++i) is_aligned &= side->summed[i] % vector == 0;
    side->copy = is_aligned                                           ? TileCopy::kVectors
                 : dtype == DType::kF32 && side->dtype == DType::kF32 ? TileCopy::kWords
                                                                      : TileCopy::kElements;
  };
  set(&a, a.row, a.column, M);
  set(&b, b.column, b.row, N);
}

double MatMulTask::flops() const {
  // What warps compute at a time: 16 rows, 32 columns.
  const int64_t rows = DivideUp(M, 16) * 16, columns = DivideUp(N, 32) * 32;
  return 2.0 * static_cast<double>(rows * batches) * static_cast<double>(columns) *
         static_cast<double>(K * matrices);
}

}  // namespace attnd::cuda
