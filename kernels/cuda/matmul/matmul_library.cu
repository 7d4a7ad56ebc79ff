#include "kernels/cuda/matmul/matmul_library.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/core/integer.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_queue.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda {
namespace {

// Products of a matrix from which on one call has enough for a whole device: two FLOPs each take
// 4 us at 600 TFLOP/s, about as long as the host needs to ask for it.
constexpr double kLeastProducts = 1 << 30;
// Thinner ones are bound by memory, which no library does better.
constexpr int64_t kLeastExtent = 128, kMostExtent = int64_t{1} << 30;
// Rows of a piece are a multiple of it: of the tiles of all algorithms.
constexpr int64_t kRows = 256;

struct Matrix {
  bool is_plain = false;
  bool by_columns = false;  // elements are contiguous along a column
  int64_t pitch = 0;        // between rows, or columns
};

// Lines without overlap, each aligned as the library needs it.
Matrix MatrixOf(const View& view, bool is_dry) {
  const int rank = view.shape.rank;
  const int64_t row = view.stride[rank - 2], column = view.stride[rank - 1];
  Matrix matrix{.by_columns = row == 1};
  matrix.pitch = matrix.by_columns ? column : row;
  const int64_t vector = CublasLt::kAlign / SizeOf(view.dtype);
  const int64_t length = view.shape[matrix.by_columns ? rank - 2 : rank - 1];
  matrix.is_plain = (row == 1) != (column == 1) && matrix.pitch >= length &&
                    matrix.pitch < kMostExtent && matrix.pitch % vector == 0;
  for (int i = 0; i + 2 < rank; ++i) {
    matrix.is_plain &= view.shape[i] == 1 || view.stride[i] % vector == 0;
  }
  // Tensors begin at multiples of 64 bytes: where a view of one begins follows from its slices. A
  // dry stream may have no memory yet, or that of a message.
  matrix.is_plain &= is_dry || reinterpret_cast<uintptr_t>(view.data) % CublasLt::kAlign == 0;
  return matrix;
}

// The bytes that lie between the first matrix of a view and that of number `matrix` of `leading`.
int64_t OffsetOf(const View& view, const Shape& leading, int64_t matrix) {
  int64_t elements = 0;
  for (int i = leading.rank - 3; i >= 0; --i) {
    if (view.shape[i] != 1) elements += matrix % leading[i] * view.stride[i];
    matrix /= leading[i];
  }
  return elements * SizeOf(view.dtype);
}

bool IsSummed(const MatMulProblem& p) {
  for (int i = 0; i + 2 < p.out.shape.rank; ++i) {
    if (p.out.shape[i] != std::max(p.a.shape[i], p.b.shape[i])) return true;
  }
  return false;
}

// Of `rows` rows. Elements of out that are contiguous along N are the columns of its transpose,
// b^T a^T.
LtProduct LtProductOf(const LibraryProduct& p, const Matrix& a, const Matrix& b, const Matrix& out,
                      int64_t rows) {
  LtProduct lt{
      .k = p.K, .d_pitch = out.pitch, .operands = p.problem->a.dtype, .d = p.problem->out.dtype};
  if (p.by_columns) {
    lt.m = rows, lt.n = p.N;
    lt.a_pitch = a.pitch, lt.b_pitch = b.pitch;
    lt.transposes_a = !a.by_columns, lt.transposes_b = !b.by_columns;
  } else {
    lt.m = p.N, lt.n = rows;
    lt.a_pitch = b.pitch, lt.b_pitch = a.pitch;
    lt.transposes_a = b.by_columns, lt.transposes_b = a.by_columns;
  }
  return lt;
}

// Of so many rows of a matrix, as own kernels would take on tensor cores: an upper bound on Hopper,
// whose faster instructions the library has.
double SecondsOf(const Cuda& cuda, const LibraryProduct& p, int64_t rows) {
  const double M = static_cast<double>(rows), N = static_cast<double>(p.N),
               K = static_cast<double>(p.K);
  const auto size = [](const View& view) { return static_cast<double>(SizeOf(view.dtype)); };
  const double bytes = (M + N) * K * size(p.problem->a) + M * N * size(p.problem->out);
  return cuda.Seconds(2 * M * N * K * cuda.flops / cuda.tensor_flops, bytes);
}

}  // namespace

LibraryProducts::LibraryProducts(CudaDevice& device, Stream& stream, const MatMulFinish& finish)
    : device_(device),
      stream_(stream),
      finish_(finish),
      is_plain_(device.cublas_lt() != nullptr && finish.scale == 1 && finish.term == 0 &&
                !finish.activates && finish.waves == MatMulFinish::Waves::kNone) {}

bool LibraryProducts::Take(const MatMulProblem& p) {
  const DType dtype = p.a.dtype;
  if (!is_plain_ || p.bias.given() || p.multiply.given() || p.b.dtype != dtype ||
      (dtype != DType::kF16 && dtype != DType::kBF16) ||
      (p.out.dtype != dtype && p.out.dtype != DType::kF32)) {
    return false;
  }
  const int rank = p.out.shape.rank;
  LibraryProduct product{.problem = &p,
                         .M = p.out.shape[rank - 2],
                         .N = p.out.shape[rank - 1],
                         .K = p.a.shape[rank - 1]};
  const auto [least, most] = std::minmax({product.M, product.N, product.K});
  const double products = static_cast<double>(product.M) * static_cast<double>(product.N) *
                          static_cast<double>(product.K);
  if (least < kLeastExtent || most > kMostExtent || products < kLeastProducts || IsSummed(p)) {
    return false;
  }
  const bool is_dry = stream_.is_dry();
  const Matrix a = MatrixOf(p.a, is_dry), b = MatrixOf(p.b, is_dry), out = MatrixOf(p.out, is_dry);
  // Long sums of small results are cut by own kernels, which the library must not do.
  if (!a.is_plain || !b.is_plain || !out.is_plain || MatMulTask(p).chunks > 1) return false;
  product.by_columns = out.by_columns;
  const double most_pieces = static_cast<double>(CeilDiv(product.M, kRows));
  const double slices = std::ceil(SecondsOf(CudaOf(device_), product, product.M) / kSliceSeconds);
  const auto pieces = static_cast<int64_t>(std::clamp(slices, 1.0, most_pieces));
  product.rows = std::min(RoundUp(CeilDiv(product.M, pieces), kRows), product.M);
  const int64_t last = product.M - (CeilDiv(product.M, product.rows) - 1) * product.rows;
  product.piece = device_.cublas_lt()->PlanOf(LtProductOf(product, a, b, out, product.rows));
  product.last = device_.cublas_lt()->PlanOf(LtProductOf(product, a, b, out, last));
  if (product.piece == nullptr || product.last == nullptr) return false;
  products_.push_back(std::move(product));
  return true;
}

DeviceStatus LibraryProducts::Run(std::vector<MatMulProblem>* left) {
  if (products_.empty()) return {};
  // What one product needs, as they run one after another. Own kernels that serve instead, where it
  // fails or memory is not aligned, need what their list takes: it is planned here.
  int64_t workspace_bytes = 0;
  for (const LibraryProduct& product : products_) {
    workspace_bytes = std::max({workspace_bytes, CublasLt::WorkspaceBytes(*product.piece),
                                CublasLt::WorkspaceBytes(*product.last)});
  }
  const int64_t list_bytes = stream_.alike().ProblemsOf(static_cast<int64_t>(products_.size())) *
                             Share(sizeof(MatMulTask) + sizeof(int64_t));
  buffer_ = TakeShared(stream_, Share(workspace_bytes + CublasLt::kWorkspaceAlign) + list_bytes);
  if (buffer_ == nullptr) return NoMemory(stream_);
  void* const workspace = reinterpret_cast<void*>(
      RoundUp(reinterpret_cast<intptr_t>(buffer_->data()), CublasLt::kWorkspaceAlign));
  bool has_failed = false;
  for (const LibraryProduct& product : products_) {
    if (!has_failed) {
      DeviceStatus status = Multiply(product, workspace, &has_failed);
      if (!status.ok()) return status;
    }
    if (has_failed) left->push_back(*product.problem);
  }
  if (has_failed) buffer_ = nullptr;
  return {};
}

DeviceStatus LibraryProducts::Multiply(const LibraryProduct& p, void* workspace, bool* has_failed) {
  const Shape& shape = p.problem->out.shape;
  int64_t matrices = 1;
  for (int i = 0; i + 2 < shape.rank; ++i) matrices *= shape[i];
  for (int64_t first = 0; first < p.M; first += p.rows) {
    const int64_t rows = std::min(p.rows, p.M - first);
    const double seconds = SecondsOf(CudaOf(device_), p, rows);
    if (stream_.is_dry()) {
      stream_.work().seconds += static_cast<double>(matrices) * seconds;
      continue;
    }
    const CublasLt::Plan& plan = first + p.rows < p.M ? *p.piece : *p.last;
    for (int64_t matrix = 0; matrix < matrices; ++matrix) {
      if (stream_.stopped()) return {DeviceStatus::Code::kStopped, "run: stopped"};
      const auto at = [&](const View& view, int64_t row) {
        return view.As<std::byte>() + OffsetOf(view, shape, matrix) +
               row * view.stride[shape.rank - 2] * SizeOf(view.dtype);
      };
      const std::byte *a = at(p.problem->a, first), *b = at(p.problem->b, 0);
      if (!p.by_columns) std::swap(a, b);
      CudaQueue& queue = QueueOf(stream_);
      *has_failed = !device_.cublas_lt()->Multiply(
          plan, finish_.alpha, a, b, at(p.problem->out, first), workspace, queue.stream());
      if (*has_failed) return {};
      queue.cuda_progress().Add(seconds);
    }
  }
  return {};
}

}  // namespace attnd::cuda
