#include "kernels/core/random_table.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/core/orthonormal.h"
#include "kernels/core/random.h"
#include "kernels/core/run_control.h"

namespace attnd {
namespace {

// Of numbers >= 0; INT64_MAX where the result would be more.
int64_t Times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
int64_t Plus(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

bool IsEmpty(const Shape& shape) {
  return std::any_of(shape.dims.begin(), shape.dims.begin() + shape.rank,
                     [](int64_t n) { return n <= 0; });
}

constexpr int64_t kNormalsAtOnce = 4096;
constexpr int64_t kRowsToCheckPoint = 32;  // of at most 2^13 numbers (kMostDrawSteps)

// A table that is not empty, as [heads, rows, D].
struct Matrices {
  int64_t heads = 1, rows = 1, D = 1;
  int64_t blocks() const { return rows / D + (rows % D != 0 ? 1 : 0); }  // of a head
};

Matrices MatricesOf(const Shape& shape) {
  Matrices of;
  for (int i = 0; i < shape.rank - 2; ++i) of.heads = Times(of.heads, shape[i]);
  if (shape.rank > 1) of.rows = shape[shape.rank - 2];
  if (shape.rank > 0) of.D = shape[shape.rank - 1];
  return of;
}

// Draws the elements of a matrix of rows of D normals, many at once, since a few cost as much
// as 64.
class NormalRows {
 public:
  NormalRows(uint64_t seed, const std::string& name, int64_t rows, int64_t D)
      : stream_(seed, name), rows_(rows), D_(D), values_(static_cast<size_t>(AtOnce() * D)) {}

  // Row r. REQUIRES: r is not below that of the call before.
  const double* Row(int64_t r) {
    if (r >= end_) {
      begin_ = r;
      end_ = std::min(r + AtOnce(), rows_);
      stream_.Normals(static_cast<uint64_t>(r * D_),
                      std::span(values_).first(static_cast<size_t>((end_ - r) * D_)));
    }
    return values_.data() + (r - begin_) * D_;
  }

 private:
  int64_t AtOnce() const { return std::min(std::max<int64_t>(kNormalsAtOnce / D_, 1), rows_); }

  const RandomStream stream_;
  const int64_t rows_, D_;
  int64_t begin_ = 0, end_ = 0;  // of the rows in values_
  std::vector<double> values_;
};

std::vector<float> OrthogonalRows(const DrawParams& params, const Shape& shape) {
  const Matrices of = MatricesOf(shape);
  const int64_t D = of.D;
  NormalRows of_blocks(params.seed, absl::StrCat(params.name, ".block", params.suffix),
                       of.heads * of.blocks() * D, D);
  NormalRows of_norms(params.seed, absl::StrCat(params.name, ".norm", params.suffix),
                      of.heads * of.rows, D);
  std::vector<float> result;
  result.reserve(static_cast<size_t>(shape.size()));
  // Not filled with zeros, which takes milliseconds.
  const auto columns =
      std::make_unique_for_overwrite<double[]>(static_cast<size_t>(std::min(of.rows, D) * D));
  for (int64_t block = 0; block < of.heads * of.blocks() && !CheckPoint(); ++block) {
    const int64_t first = block / of.blocks() * of.rows + block % of.blocks() * D;
    // The columns of Q that are used depend on as many columns of the normals.
    const int64_t used = std::min(of.rows - block % of.blocks() * D, D);
    for (int64_t d = 0; d < D; ++d) {
      const double* row = of_blocks.Row(block * D + d);
      for (int64_t j = 0; j < used; ++j) columns[j * D + d] = row[j];
    }
    Orthonormalise(D, used, columns.get());
    for (int64_t j = 0; j < used; ++j) {
      if (j % kRowsToCheckPoint == kRowsToCheckPoint - 1 && CheckPoint()) break;
      double norm = std::sqrt(static_cast<double>(D));
      if (params.norms == RowNorms::kChi) {
        const double* row = of_norms.Row(first + j);
        norm = std::sqrt(std::inner_product(row, row + D, row, 0.0));
      }
      for (int64_t d = 0; d < D; ++d) {
        result.push_back(static_cast<float>(norm * columns[j * D + d]));
      }
    }
  }
  return result;
}

// DrawCost::steps.
int64_t StepsOf(const Matrices& of) {
  constexpr int64_t kNormalSteps = 16;
  const int64_t full = of.rows / of.D, rest = of.rows % of.D, square = Times(of.D, of.D);
  const int64_t products = Times(of.D, Plus(Times(full, square), Times(rest, rest)));
  const int64_t normals = Times(of.blocks(), Times(kNormalSteps, square));
  return Times(of.heads, Plus(products, normals));
}

// The columns, and the normals of two NormalRows.
int64_t ScratchBytesOf(const Matrices& of) {
  const int64_t columns = Times(std::min(of.rows, of.D), of.D);
  const int64_t normals = Times(2, std::max(of.D, kNormalsAtOnce));
  return Times(Plus(columns, normals), sizeof(double));
}

// Elements first, first + 1, .. of a table whose elements do not depend on each other.
void DrawPiece(const RandomStream& stream, const DrawParams& params, uint64_t first,
               std::span<float> values) {
  switch (params.distribution) {
    case Distribution::kUniform:
      return stream.Uniforms(first, values, params.low, params.high);
    case Distribution::kNormal:
      return stream.Normals(first, values, params.deviation);
    case Distribution::kTruncatedNormal:
      return stream.TruncatedNormals(first, values, params.deviation);
    case Distribution::kGumbel:
      return stream.Gumbels(first, values);
    case Distribution::kOrthogonalRows:
      break;
  }
}

}  // namespace

DrawParams UniformDraw(uint64_t seed, std::string name, double limit) {
  return {.seed = seed,
          .name = std::move(name),
          .distribution = Distribution::kUniform,
          .low = -limit,
          .high = limit};
}

DrawCost CostOfDraw(const DrawParams& params, const Shape& shape) {
  if (IsEmpty(shape)) return {};
  DrawCost cost{.elements = 1};
  for (int i = 0; i < shape.rank; ++i) cost.elements = Times(cost.elements, shape[i]);
  cost.host_bytes = Times(cost.elements, sizeof(float));
  // Measured by tests/bench/rows_bench, "draw".
  constexpr double kUniform = 5e-9, kNormal = 7e-9, kTruncated = 11e-9, kGumbel = 25e-9,
                   kStep = 1e-9;
  const auto elements = static_cast<double>(cost.elements);
  switch (params.distribution) {
    case Distribution::kUniform:
      cost.seconds = elements * kUniform;
      break;
    case Distribution::kNormal:
      cost.seconds = elements * kNormal;
      break;
    case Distribution::kTruncatedNormal:
      cost.seconds = elements * kTruncated;
      break;
    case Distribution::kGumbel:
      cost.seconds = elements * kGumbel;
      break;
    case Distribution::kOrthogonalRows:
      const Matrices of = MatricesOf(shape);
      cost.steps = StepsOf(of);
      cost.host_bytes = Plus(cost.host_bytes, ScratchBytesOf(of));
      cost.seconds = elements * kNormal + static_cast<double>(cost.steps) * kStep;
      break;
  }
  return cost;
}

std::vector<float> DrawTable(const DrawParams& params, const Shape& shape) {
  if (IsEmpty(shape)) return {};
  if (params.distribution == Distribution::kOrthogonalRows) return OrthogonalRows(params, shape);
  const RandomStream stream(params.seed, absl::StrCat(params.name, params.suffix));
  const auto size = static_cast<size_t>(shape.size());
  std::vector<float> values;
  values.reserve(size);
  // In pieces: to fill all of it with zeros first would take tens of milliseconds.
  constexpr size_t kPiece = size_t{1} << 15;
  while (values.size() < size && !CheckPoint()) {
    const size_t first = values.size();
    values.resize(std::min(first + kPiece, size));
    DrawPiece(stream, params, first, std::span(values).subspan(first));
  }
  return values;
}

}  // namespace attnd
