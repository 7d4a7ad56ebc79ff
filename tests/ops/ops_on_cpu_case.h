// A formula over Ops, forward and gradient, on the CPU device: against plain loops in double, and
// bit for bit against itself with other threads and in other lists. Also on the strict device,
// whose memory the host may not touch and which declines what ops can compose.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/ops/feature_map.h"
#include "tests/device/test_device.h"
#include "tests/ops/gradient_case.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {

using In = const std::vector<Tensor>&;
using Out = std::vector<Tensor>;
// The shape of an input in a problem of size n.
using ShapeOf = std::function<Shape(int64_t n)>;

struct FormulaCase {
  std::string name;
  std::vector<ShapeOf> inputs;
  // Its outputs are float32, with one problem for every problem of the inputs.
  Formula formula;
  std::vector<int64_t> sizes = {0, 1, 63, 64, 65, 131};
};

using Cases = std::vector<FormulaCase>;

inline Shape Rows(int64_t n) { return {2, 2, n, 9}; }
inline ShapeOf Fixed(const Shape& shape) {
  return [shape](int64_t) { return shape; };
}

// f(n) of every problem.
template <class F>
auto ForEachSize(const Tensor& x, const F& f) {
  std::vector<decltype(f(int64_t{}))> list;
  for (size_t p = 0; p < x.size(); ++p) list.push_back(f(x[p].shape[2]));
  return list;
}

inline std::string Numbered(std::string name, std::initializer_list<int> numbers) {
  for (int number : numbers) name += "_" + std::to_string(number);
  return name;
}

// Norms of rows whose squares leave float32, and of rows about as long as a floor.
inline FormulaCase NormsOfFarRows() {
  return {"NormsOfFarRows", {Rows}, [](Ops& ops, In in) {
            const Tensor large = ops.Affine(in[0], 1e20);
            const Tensor little = ops.Affine(in[0], 3e-13);
            return Out{ops.LayerNorm(large, 0.1),
                       FeaturesOf(ops, large, {.norm = RowNorm::kL2, .eps = 1, .offset = 1e20}),
                       FeaturesOf(ops, little, {.norm = RowNorm::kL2, .floor = 1e-12})};
          }};
}

inline void PrintTo(const FormulaCase& c, std::ostream* out) { *out << c.name; }
inline std::string NameOf(const ::testing::TestParamInfo<FormulaCase>& info) {
  return info.param.name;
}

// Elements in row-major order, [problem]: the outputs of a formula, then gradients of its inputs.
// No problem: no gradient.
using Results = std::vector<std::vector<std::vector<float>>>;

inline std::vector<float> Elements(const View& view) {
  EXPECT_EQ(view.dtype, DType::kF32);
  std::vector<float> elements;
  elements.reserve(static_cast<size_t>(view.shape.size()));
  for (int64_t e = 0; e < view.shape.size(); ++e) {
    int64_t at = 0, rest = e;
    for (int i = view.shape.rank - 1; i >= 0; --i) {
      at += rest % view.shape[i] * view.stride[i];
      rest /= view.shape[i];
    }
    elements.push_back(view.As<float>()[at]);
  }
  return elements;
}

// The incoming gradients are those of problems `first`, first + 1, .. of a list.
inline Results RunFormula(Device& device, const Formula& formula, std::vector<Values> inputs,
                          size_t first = 0) {
  BufferPool pool(int64_t{1} << 20, /*poison=*/true);
  const bool is_host = device.info().has_host_memory;
  Stream stream(device, is_host ? &pool : &device.memory());
  Tape tape;
  Ops ops(stream, &tape);
  const auto on_device = [&](Values& values) {
    return is_host ? values.AsTensor() : ToDevice(stream, values.AsTensor());
  };
  std::vector<Tensor> tensors, flows;
  for (Values& values : inputs) {
    tensors.push_back(on_device(values));
    tape.Watch(tensors.back());
  }
  const std::vector<Tensor> outputs = formula(ops, tensors);
  std::vector<Values> weights(outputs.size());
  for (size_t o = 0; o < outputs.size(); ++o) {
    weights[o].shapes = ShapesOf(outputs[o]);
    for (size_t p = 0; p < outputs[o].size(); ++p) {
      std::vector<float>& data = weights[o].data.emplace_back();
      for (int64_t e = 0; e < outputs[o][p].shape.size(); ++e) {
        data.push_back(static_cast<float>(Weight(o, first + p, e)));
      }
    }
    flows.push_back(on_device(weights[o]));
  }
  Results results;
  const auto add = [&](const std::vector<Tensor>& list) {
    for (const Tensor& x : list) {
      auto& result = results.emplace_back();
      const Tensor values = is_host ? x : ToHost(stream, x);
      for (size_t p = 0; p < values.size(); ++p) result.push_back(Elements(values[p]));
    }
  };
  const std::vector<Tensor> grads = tape.Replay(ops, outputs, flows, tensors);
  EXPECT_TRUE(ops.status().ok()) << ops.status();
  if (!ops.status().ok()) return {};
  add(outputs);
  add(grads);
  return results;
}

inline void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t e = 0; e < a.size(); ++e) {
    ASSERT_EQ(std::memcmp(&a[e], &b[e], sizeof(float)), 0)
        << "element " << e << ": " << a[e] << " and " << b[e];
  }
}

// Both round stored values to float32. The CPU also adds in float32: at most two sums (forward and
// gradient) of 131 numbers, with an error of 2^-24 of the largest for each addition.
inline void ExpectNear(const std::vector<float>& got, const std::vector<float>& want) {
  constexpr double kRoundings = 2 * 131;
  ASSERT_EQ(got.size(), want.size());
  double largest = 1;
  for (float x : want) {
    if (std::isfinite(x)) largest = std::max<double>(largest, std::fabs(x));
  }
  for (size_t e = 0; e < want.size(); ++e) {
    if (got[e] == want[e]) continue;  // infinities too
    const double error = std::fabs(static_cast<double>(got[e]) - want[e]);
    ASSERT_LE(error, kRoundings * largest / (1 << 24))
        << "element " << e << " is " << got[e] << ", should be " << want[e];
  }
}

inline bool HasNumbers(const std::vector<std::vector<float>>& problems) {
  return std::any_of(problems.begin(), problems.end(), [](const std::vector<float>& x) {
    return std::any_of(x.begin(), x.end(), [](float e) { return e != 0; });
  });
}

using Comparison = void (*)(const std::vector<float>&, const std::vector<float>&);

// Problem p of `some` is problem first + p of `all`.
inline void Compare(const Results& some, const Results& all, size_t first, Comparison compare) {
  ASSERT_EQ(some.size(), all.size());
  for (size_t r = 0; r < some.size(); ++r) {
    ASSERT_EQ(some[r].empty(), all[r].empty()) << "result " << r;
    for (size_t p = 0; p < some[r].size(); ++p) {
      SCOPED_TRACE("result " + std::to_string(r) + " problem " + std::to_string(first + p));
      compare(some[r][p], all[r].at(first + p));
    }
  }
}

// One for the process.
inline Device& StrictDevice() {
  static Device& device = *NewTestDevice("strict").release();
  return device;
}

inline void ExpectAsInPlainLoops(const FormulaCase& c) {
  std::vector<Values> inputs;
  for (const ShapeOf& shape : c.inputs) {
    std::vector<Shape> shapes;
    for (int64_t n : c.sizes) shapes.push_back(shape(n));
    inputs.push_back(Random(shapes, static_cast<unsigned>(inputs.size() + 1)));
  }
  PlainDevice plain;
  const Results want = RunFormula(plain, c.formula, inputs);
  for (const auto& result : want) {
    EXPECT_TRUE(result.empty() || HasNumbers(result)) << "a gradient of nothing";
  }
  {
    SCOPED_TRACE("strict");
    Compare(RunFormula(StrictDevice(), c.formula, inputs), want, 0, ExpectNear);
  }
  for (const std::string& isa : AvailableIsas()) {
    SCOPED_TRACE(isa);
    const Results one = RunFormula(CpuOf(isa, 1), c.formula, inputs);
    const Results two = RunFormula(CpuOf(isa, 2), c.formula, inputs);
    Compare(one, want, 0, ExpectNear);
    Compare(two, one, 0, ExpectSameBits);
    for (size_t p = 0; p < c.sizes.size(); ++p) {
      std::vector<Values> alone;
      for (const Values& list : inputs) alone.push_back({{list.shapes[p]}, {list.data[p]}});
      Compare(RunFormula(CpuOf(isa, 2), c.formula, alone, p), two, p, ExpectSameBits);
    }
  }
}

}  // namespace attnd::testing
