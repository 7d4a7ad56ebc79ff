#include "kernels/methods/memory/sinusoids.h"

#include <cmath>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/core/stopped.h"

namespace attnd {
namespace {

// sin and cos of (first, first + step, ..) w_m, row by row.
struct Table {
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> sines, cosines;

  void Add(Ops& ops, const Shape& shape, int64_t rows, int64_t step, int64_t waves) {
    constexpr double kSecondsPerNumber = 3e-8;
    shapes.push_back(shape);
    std::vector<float>& sin = sines.emplace_back();
    std::vector<float>& cos = cosines.emplace_back();
    if (ops.stream().is_dry()) {
      ops.stream().work().seconds += kSecondsPerNumber * 2 * static_cast<double>(rows * waves);
      return;
    }
    sin.reserve(static_cast<size_t>(rows * waves));
    cos.reserve(static_cast<size_t>(rows * waves));
    std::vector<double> frequency;
    for (int64_t m = 0; m < waves; ++m) {
      frequency.push_back(std::pow(10000.0, -static_cast<double>(m) / static_cast<double>(waves)));
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t m = 0; m < waves; ++m) {
        if (m % 1024 == 0 && CheckPoint()) return ops.Fail(StoppedStatus());
        const double angle = static_cast<double>(i * step) * frequency[static_cast<size_t>(m)];
        sin.push_back(static_cast<float>(std::sin(angle)));
        cos.push_back(static_cast<float>(std::cos(angle)));
      }
    }
  }
};

}  // namespace

// With d = a width + b: sin d w = sin(a width w) cos(b w) + cos(a width w) sin(b w), and the same
// for the cosine. The angles are exact in double, large ones as well.
Sinusoids SinusoidsOf(Ops& ops, const std::vector<int64_t>& rows,
                      const std::vector<int64_t>& sizes) {
  Table far, near;
  std::vector<Shape> flat;
  for (size_t p = 0; p < rows.size() && ops.status().ok(); ++p) {
    const int64_t waves = sizes[p] / 2;
    const auto width = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(rows[p]))));
    const int64_t blocks = CeilDiv(rows[p], width);
    far.Add(ops, {blocks, 1, waves}, blocks, width, waves);
    near.Add(ops, {1, width, waves}, width, 1, waves);
    flat.push_back({1, blocks * width, waves});
  }
  if (!ops.status().ok()) return {};
  const Tensor sin_a = ops.FromHost(far.shapes, std::move(far.sines));
  const Tensor cos_a = ops.FromHost(far.shapes, std::move(far.cosines));
  const Tensor sin_b = ops.FromHost(near.shapes, std::move(near.sines));
  const Tensor cos_b = ops.FromHost(near.shapes, std::move(near.cosines));
  const auto product = [&](const Tensor& a, const Tensor& b) {
    return ops.Apply(ElementOp::kMultiply, a, b);
  };
  const auto first = [&](const Tensor& x) { return ops.Slice(ops.Reshape(x, flat), 1, {0}, rows); };
  return {first(ops.Apply(ElementOp::kAdd, product(sin_a, cos_b), product(cos_a, sin_b))),
          first(ops.Apply(ElementOp::kSubtract, product(cos_a, cos_b), product(sin_a, sin_b)))};
}

}  // namespace attnd
