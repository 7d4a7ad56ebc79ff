#include "kernels/core/random_table.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "absl/strings/str_cat.h"
#include "kernels/core/orthonormal.h"
#include "kernels/core/random.h"
#include "kernels/core/run_control.h"

namespace attnd {
namespace {

int64_t Times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

constexpr int64_t kNormalsAtOnce = 4096;

// The table as [heads, rows, D].
struct Matrices {
  int64_t heads = 1, rows = 1, D = 1;
  int64_t blocks() const { return rows / D + (rows % D != 0 ? 1 : 0); }  // of a head
};

Matrices MatricesOf(const Shape& shape) {
  Matrices of;
  for (int i = 0; i < shape.rank - 2; ++i) of.heads = Times(of.heads, shape[i]);
  if (shape.rank > 1) of.rows = shape[shape.rank - 2];
  if (shape.rank > 0) of.D = std::max<int64_t>(shape[shape.rank - 1], 1);
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
  std::vector<float> result(static_cast<size_t>(shape.size()));
  std::vector<double> columns(static_cast<size_t>(std::min(of.rows, D) * D));
  for (int64_t block = 0; block < of.heads * of.blocks() && !CheckPoint(); ++block) {
    const int64_t first = block / of.blocks() * of.rows + block % of.blocks() * D;
    // The columns of Q that are used depend on as many columns of the normals.
    const int64_t used = std::min(of.rows - block % of.blocks() * D, D);
    for (int64_t d = 0; d < D; ++d) {
      const double* row = of_blocks.Row(block * D + d);
      for (int64_t j = 0; j < used; ++j) columns[j * D + d] = row[j];
    }
    Orthonormalise(D, used, columns.data());
    for (int64_t j = 0; j < used; ++j) {
      double norm = std::sqrt(static_cast<double>(D));
      if (params.norms == RowNorms::kChi) {
        const double* row = of_norms.Row(first + j);
        norm = std::sqrt(std::inner_product(row, row + D, row, 0.0));
      }
      for (int64_t d = 0; d < D; ++d) {
        result[(first + j) * D + d] = static_cast<float>(norm * columns[j * D + d]);
      }
    }
  }
  return result;
}

}  // namespace

DrawCost CostOfDraw(const DrawParams& params, const Shape& shape) {
  DrawCost cost{.elements = 1};
  for (int i = 0; i < shape.rank; ++i) cost.elements = Times(cost.elements, shape[i]);
  cost.host_bytes = Times(cost.elements, sizeof(float));
  // Measured by tests/bench/rows_bench, "draw".
  constexpr double kUniform = 5e-9, kNormal = 7e-9, kTruncated = 11e-9;
  constexpr double kStep = 1e-9;
  constexpr int64_t kNormalSteps = 16;
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
    case Distribution::kOrthogonalRows:
      const Matrices of = MatricesOf(shape);
      const int64_t full = of.rows / of.D, rest = of.rows % of.D;
      const int64_t products = Times(of.D, Times(full, of.D * of.D) + rest * rest);
      const int64_t normals = Times(of.blocks(), kNormalSteps * of.D * of.D);
      cost.steps = Times(of.heads, products > kMostDrawSteps ? products : products + normals);
      cost.host_bytes += Times((std::min(of.rows, of.D) + 1) * of.D, sizeof(double));
      cost.seconds = elements * kNormal + static_cast<double>(cost.steps) * kStep;
      break;
  }
  return cost;
}

std::vector<float> DrawTable(const DrawParams& params, const Shape& shape) {
  if (params.distribution == Distribution::kOrthogonalRows) return OrthogonalRows(params, shape);
  const RandomStream stream(params.seed, absl::StrCat(params.name, params.suffix));
  std::vector<float> values(static_cast<size_t>(shape.size()));
  switch (params.distribution) {
    case Distribution::kUniform:
      stream.Uniforms(0, values, params.low, params.high);
      break;
    case Distribution::kNormal:
      stream.Normals(0, values, params.deviation);
      break;
    case Distribution::kTruncatedNormal:
      stream.TruncatedNormals(0, values, params.deviation);
      break;
    case Distribution::kOrthogonalRows:
      break;
  }
  return values;
}

}  // namespace attnd
