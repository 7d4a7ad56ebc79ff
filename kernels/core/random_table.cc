#include "kernels/core/random_table.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/core/orthonormal.h"
#include "kernels/core/random.h"

namespace attnd {
namespace {

int64_t Times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

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

std::vector<float> OrthogonalRows(const DrawParams& params, const Shape& shape) {
  const auto [heads, rows, D] = MatricesOf(shape);
  const int64_t blocks = MatricesOf(shape).blocks();
  const RandomStream of_blocks(params.seed, absl::StrCat(params.name, ".block", params.suffix));
  const RandomStream of_norms(params.seed, absl::StrCat(params.name, ".norm", params.suffix));
  std::vector<float> result(static_cast<size_t>(shape.size()));
  std::vector<double> columns(static_cast<size_t>(std::min(rows, D) * D));
  std::vector<double> normals(static_cast<size_t>(D));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t block = 0; block < blocks; ++block) {
      // The columns of Q that are used depend on as many columns of the normals.
      const int64_t used = std::min(rows - block * D, D);
      for (int64_t d = 0; d < D; ++d) {
        of_blocks.Normals(static_cast<uint64_t>(((h * blocks + block) * D + d) * D),
                          std::span(normals).first(static_cast<size_t>(used)));
        for (int64_t j = 0; j < used; ++j) columns[j * D + d] = normals[j];
      }
      Orthonormalise(D, used, columns.data());
      for (int64_t j = 0; j < used; ++j) {
        const int64_t first = (h * rows + block * D + j) * D;
        double norm = std::sqrt(static_cast<double>(D));
        if (params.norms == RowNorms::kChi) {
          of_norms.Normals(static_cast<uint64_t>(first), normals);
          norm =
              std::sqrt(std::inner_product(normals.begin(), normals.end(), normals.begin(), 0.0));
        }
        for (int64_t d = 0; d < D; ++d) {
          result[first + d] = static_cast<float>(norm * columns[j * D + d]);
        }
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
  constexpr double kUniform = 2e-9, kNormal = 7e-9, kTruncated = 7e-9;
  constexpr double kStep = 1e-9;
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
      cost.steps = Times(Times(of.heads, of.blocks()), Times(of.D, Times(of.D, of.D)));
      cost.host_bytes += Times((std::min(of.rows, of.D) + 1) * of.D, sizeof(double));
      cost.seconds = 2 * elements * kNormal + static_cast<double>(cost.steps) * kStep;
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
