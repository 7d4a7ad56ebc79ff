// Gradients of formulas over Ops against finite differences, on the plain device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "kernels/ops/ops.h"
#include "tests/plain/plain_device.h"

namespace attnd::testing {

// Arrays of a ragged list, with their values.
struct Values {
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> data;

  Tensor AsTensor(Layout layout = Layout::kBHND) {
    std::vector<View> views;
    for (size_t p = 0; p < shapes.size(); ++p) {
      views.push_back(DenseView(data[p].data(), DType::kF32, shapes[p], layout));
    }
    return Tensor(std::move(views), std::vector<std::shared_ptr<Buffer>>(shapes.size()));
  }
};

inline Values Random(const std::vector<Shape>& shapes, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Values values{shapes, {}};
  for (const Shape& shape : shapes) {
    std::vector<float>& data = values.data.emplace_back(shape.size());
    for (float& x : data) x = uniform(random);
  }
  return values;
}

using Formula = std::function<std::vector<Tensor>(Ops&, const std::vector<Tensor>&)>;

// A fixed weight for element e of problem p of output o: the incoming gradient.
inline double Weight(size_t o, size_t p, int64_t e) {
  return std::sin(0.9 * e + 2.0 * p + 5.0 * o + 1);
}

class GradientTest : public ::testing::Test {
 protected:
  double Loss(const Formula& formula, std::vector<Values>& inputs) {
    Stream stream(device_, &pool_);
    Ops ops(stream, /*tape=*/nullptr);
    const std::vector<Tensor> outputs = formula(ops, Tensors(inputs));
    EXPECT_TRUE(ops.status().ok()) << ops.status();
    double loss = 0;
    for (size_t o = 0; o < outputs.size(); ++o) {
      for (size_t p = 0; p < outputs[o].size(); ++p) {
        const View& view = outputs[o][p];
        for (int64_t e = 0; e < view.shape.size(); ++e) {
          const double x = view.As<float>()[e];
          if (std::isfinite(x)) loss += Weight(o, p, e) * x;
        }
      }
    }
    return loss;
  }

  std::vector<Tensor> Gradients(const Formula& formula, std::vector<Values>& inputs,
                                const std::vector<bool>& watched) {
    Stream stream(device_, &pool_);
    Tape tape;
    Ops ops(stream, &tape);
    const std::vector<Tensor> tensors = Tensors(inputs);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (watched[i]) tape.Watch(tensors[i]);
    }
    const std::vector<Tensor> outputs = formula(ops, tensors);
    std::vector<Values>& weights = weights_;
    weights.clear();
    for (size_t o = 0; o < outputs.size(); ++o) {
      Values& w = weights.emplace_back();
      for (size_t p = 0; p < outputs[o].size(); ++p) {
        w.shapes.push_back(outputs[o][p].shape);
        std::vector<float>& data = w.data.emplace_back();
        for (int64_t e = 0; e < w.shapes[p].size(); ++e) {
          data.push_back(static_cast<float>(Weight(o, p, e)));
        }
      }
    }
    const auto grads = tape.Replay(ops, outputs, Tensors(weights), tensors);
    EXPECT_TRUE(ops.status().ok()) << ops.status();
    return grads;
  }

  // Checks the gradients of the watched inputs, by default of all. Steps of 1/128 are exact in
  // float32; outputs are stored in float32 (6e-8 each), so differences are exact to 1e-4, their
  // truncation error is below 1e-3 for these functions of unit scale.
  void ExpectGradientsMatch(const Formula& formula, std::vector<Values> inputs,
                            std::vector<bool> watched = {}) {
    watched.resize(inputs.size(), watched.empty());
    const auto grads = Gradients(formula, inputs, watched);
    constexpr float kStep = 1.0f / 128;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!watched[i]) continue;
      ASSERT_FALSE(grads[i].empty());
      for (size_t p = 0; p < inputs[i].data.size(); ++p) {
        ASSERT_EQ(grads[i][p].shape, inputs[i].shapes[p]);
        for (size_t e = 0; e < inputs[i].data[p].size(); ++e) {
          float& x = inputs[i].data[p][e];
          const float saved = x;
          x = saved + kStep;
          const double above = Loss(formula, inputs), x_above = x;
          x = saved - kStep;
          const double below = Loss(formula, inputs), x_below = x;
          x = saved;
          const double expected = (above - below) / (x_above - x_below);
          ASSERT_NEAR(grads[i][p].As<float>()[e], expected, 2e-3 * (1 + std::fabs(expected)))
              << "input " << i << " problem " << p << " element " << e;
        }
      }
    }
  }

  static std::vector<Tensor> Tensors(std::vector<Values>& values) {
    std::vector<Tensor> tensors;
    for (Values& v : values) tensors.push_back(v.AsTensor());
    return tensors;
  }

  // Gradients may be views of incoming ones.
  std::vector<Values> inputs_, weights_;
  PlainDevice device_;
  BufferPool pool_{int64_t{1} << 20, /*poison=*/true};
};

}  // namespace attnd::testing
