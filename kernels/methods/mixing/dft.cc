#include "kernels/methods/mixing/dft.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace attnd {
namespace {

// cos and sin of 2 pi j / n for j < n.
std::pair<std::vector<float>, std::vector<float>> Circle(int64_t n) {
  std::vector<float> cosines, sines;
  for (int64_t j = 0; j < n; ++j) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(j) / static_cast<double>(n);
    cosines.push_back(static_cast<float>(std::cos(angle)));
    sines.push_back(static_cast<float>(std::sin(angle)));
  }
  return {std::move(cosines), std::move(sines)};
}

// [n][2][n], row j: the cosines, then sign times the sines of 2 pi j k / n over k.
std::vector<float> Matrix(int64_t n, float sign) {
  const auto [cosines, sines] = Circle(n);
  std::vector<float> matrix(static_cast<size_t>(2 * n * n));
  for (int64_t j = 0; j < n; ++j) {
    float* const of_cos = matrix.data() + j * 2 * n;
    for (int64_t k = 0, turn = 0; k < n; ++k, turn = (turn + j) % n) {
      of_cos[k] = cosines[turn];
      of_cos[n + k] = sign * sines[turn];
    }
  }
  return matrix;
}

// The matrices of an axis of x, one for all problems of one size.
Tensor Matrices(Ops& ops, const Tensor& x, int axis, float sign) {
  std::vector<Tensor> made;
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < x.size(); ++p) {
    const int64_t n = x[p].shape[axis];
    auto found =
        std::find_if(made.begin(), made.end(), [&](const Tensor& t) { return t[0].shape[2] == n; });
    if (found == made.end()) {
      std::vector<float> values = ops.stream().is_dry() ? std::vector<float>() : Matrix(n, sign);
      made.push_back(ops.FromHost({Shape{1, 1, n, 2 * n}},
                                  std::vector<std::vector<float>>{std::move(values)}));
      if (!ops.status().ok()) return {};
      found = made.end() - 1;
    }
    views.push_back((*found)[0]);
    buffers.push_back(found->buffer(0));
  }
  return Tensor(std::move(views), std::move(buffers));
}

}  // namespace

Tensor DftByProducts(Ops& ops, const Tensor& x) {
  if (!ops.status().ok()) return {};
  const Tensor over_channels = Matrices(ops, x, 3, 1), over_rows = Matrices(ops, x, 2, -1);
  std::vector<Shape> apart, pairs, stacked;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape& s = x[p].shape;
    apart.push_back({1, 1, s[3], 2, s[3]});
    pairs.push_back({s[0], s[1], 1, s[2], s[3]});
    stacked.push_back({s[0], s[1], 2 * s[2], s[3]});
  }
  // [B,H,1,N,C] by [1,1,2,C,C]: both halves of T, one above the other.
  const Tensor halves = ops.Transpose(ops.Reshape(over_channels, apart), 2, 3);
  const Tensor T = ops.Reshape(ops.MatMul(ops.Reshape(x, pairs), halves), stacked);
  return ops.MatMul(over_rows, T);
}

}  // namespace attnd
