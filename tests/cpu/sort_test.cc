// sort and top-k against a stable sort in double.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "kernels/ops/ops.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

using ::testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  TestArray x, order;

  Case(const TestArray& keys, int64_t M) : x(keys) {
    Shape shape = x.view().shape;
    shape.dims[shape.rank - 1] = M;
    order = TestArray(DType::kI32, shape);
  }
};

// Every size with every number of results around the border between sorting and selecting; few
// distinct keys, so that ties are everywhere.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  unsigned seed = 0;
  for (int64_t N : {0, 1, 2, 63, 64, 65, 255, 256, 257, 1009, 5000}) {
    for (int64_t M : {int64_t{0}, int64_t{1}, N / 9, N / 8, N / 8 + 1, N / 2, N}) {
      if (M > N) continue;
      const Shape shape = N > 1000 ? Shape{2, N} : Shape{2, 1, 3, N};
      cases.emplace_back(TestArray::Random(++seed, DType::kF32, shape, Memory::kDense, -1, 1), M);
      cases.emplace_back(TestArray::Random(++seed, DType::kI32, shape, Memory::kDense, -4, 5), M);
      cases.emplace_back(
          TestArray::Random(++seed, DType::kI32, shape, Memory::kTransposed, -70000, 70000), M);
    }
  }
  for (Memory memory : {Memory::kPitched, Memory::kTransposed}) {
    cases.emplace_back(TestArray::Random(++seed, DType::kF32, {3, 2, 300}, memory), 300);
    cases.emplace_back(TestArray::Random(++seed, DType::kF32, {3, 2, 300}, memory), 7);
  }
  cases.emplace_back(TestArray::Random(++seed, DType::kF32, {2, 0, 5}), 3);
  // Special values, in short and long rows: infinities, zeros of both signs, NaN of both signs,
  // numbers that flush to zero.
  for (int64_t N : {40, 1000}) {
    for (int64_t M : {int64_t{4}, N}) {
      TestArray x(DType::kF32, {N});
      const float values[] = {0.0f, -0.0f, kNan, -kNan, kInf, -kInf, 1e-41f, -1e-41f, 2e-41f, 1.0f};
      for (int64_t i = 0; i < N; ++i) x.view().As<float>()[i] = values[(i * i + i / 7) % 10];
      cases.emplace_back(x, M);
    }
  }
  return cases;
}

class SortTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SortTest, IsTheStableOrder) {
  std::vector<Case> cases = Cases();
  std::vector<SortProblem> problems;
  for (Case& c : cases) problems.push_back({c.x.view(), c.order.view()});
  for (const SortArgs& args : {SortArgs{}, SortArgs{.descending = true}, SortArgs{.by_index = true},
                               SortArgs{.descending = true, .by_index = true}}) {
    const auto of = [&](std::vector<SortProblem> list) {
      SortArgs all = args;
      all.problems = std::move(list);
      return all;
    };
    const auto check = [&](const std::string& how) {
      for (Case& c : cases) {
        TestArray truth(DType::kI32, c.order.view().shape);
        PlainRun(of({{c.x.view(), truth.view()}}));
        EXPECT_EQ(c.order.Bytes() == truth.Bytes(), true)
            << how << " " << ToString(c.x.view().shape) << " to " << ToString(truth.view().shape);
        EXPECT_TRUE(c.order.GuardsIntact());
        c.order.Write(PlainArray(truth.view().shape, -5));
      }
    };
    for (int threads : {1, 2}) {
      Device& device = CpuOf(GetParam(), threads);
      const int64_t before = device.launches();
      RunOn(device, [&](Stream& stream) { return device.Run(stream, of(problems)); });
      EXPECT_EQ(device.launches() - before, 1);
      check("list, threads " + std::to_string(threads));
    }
    for (const SortProblem& p : problems) {
      Device& device = CpuOf(GetParam(), 2);
      RunOn(device, [&](Stream& stream) { return device.Run(stream, of({p})); });
    }
    check("alone");
  }
}

// Keys of which many are equal where the selection ends, and keys that are spread over all sizes.
TEST_P(SortTest, SelectionAmongEqualAndFarKeys) {
  for (int64_t M : {1, 5, 128, 400, 2000}) {
    TestArray equal(DType::kF32, {5000}), far(DType::kF32, {5000});
    for (int64_t i = 0; i < 5000; ++i) {
      equal.view().As<float>()[i] = i % 97 == 0 ? 2.0f : i % 3 == 0 ? 1.0f : 0.0f;
      far.view().As<float>()[i] =
          std::ldexp(1 + static_cast<float>(i % 13), static_cast<int>(i * 7 % 300) - 170) *
          (i % 2 == 0 ? 1.0f : -1.0f);
    }
    for (const TestArray& x : {equal, far}) {
      const Case c(x, M), truth(x, M);
      Device& device = CpuOf(GetParam(), 1);
      for (bool descending : {false, true}) {
        const auto args = [&](const Case& of) {
          return SortArgs{.descending = descending,
                          .by_index = true,
                          .problems = {{of.x.view(), of.order.view()}}};
        };
        RunOn(device, [&](Stream& stream) { return device.Run(stream, args(c)); });
        PlainRun(args(truth));
        EXPECT_EQ(c.order.Bytes() == truth.order.Bytes(), true) << M;
      }
    }
  }
}

TEST_P(SortTest, SelectionOfEverRisingAndFallingKeys) {
  // Rising keys replace all candidates of a top-k again and again.
  for (bool rising : {true, false}) {
    TestArray x(DType::kI32, {4096});
    for (int i = 0; i < 4096; ++i) x.view().As<int32_t>()[i] = rising ? i : -i;
    const Case c(x, 100);
    const SortProblem p = {c.x.view(), c.order.view()};
    Device& device = CpuOf(GetParam(), 1);
    RunOn(device, [&](Stream& stream) {
      return device.Run(stream, SortArgs{.descending = true, .problems = {p}});
    });
    for (int m = 0; m < 100; ++m) {
      ASSERT_EQ(c.order.view().As<int32_t>()[m], rising ? 4095 - m : m);
    }
  }
}

TEST_P(SortTest, TopKOfARaggedList) {
  Device& device = CpuOf(GetParam(), 2);
  BufferPool pool(0, /*poison=*/true);
  float a[] = {1, 3, kNan, 3, 2}, b[] = {-1, -2, -1};
  const Tensor x({DenseView(a, DType::kF32, {1, 5}), DenseView(b, DType::kF32, {1, 3})},
                 std::vector<std::shared_ptr<Buffer>>(2));
  Stream stream(device, &pool);
  Tape tape;
  Ops ops(stream, &tape);
  tape.Watch(x);
  const Tensor top = ops.TopK(x, {4, 2}), sorted = ops.Sort(x, {5, 3});
  const auto indices = [](const Tensor& order, size_t problem) {
    const auto* values = order[problem].As<int32_t>();
    return std::vector<int32_t>(values, values + order[problem].shape.size());
  };
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_THAT(indices(top, 0), ElementsAre(1, 3, 4, 0));
  EXPECT_THAT(indices(top, 1), ElementsAre(0, 2));
  EXPECT_THAT(indices(sorted, 0), ElementsAre(0, 4, 1, 3, 2));
  EXPECT_THAT(indices(sorted, 1), ElementsAre(1, 0, 2));
  // An order is a constant.
  EXPECT_FALSE(tape.IsWatched(top));
}

TEST_P(SortTest, MoreThanThereAreIsRefused) {
  float a[] = {1, 3};
  const Tensor x({DenseView(a, DType::kF32, {1, 2})}, std::vector<std::shared_ptr<Buffer>>(1));
  Stream stream(CpuOf(GetParam(), 1), nullptr);
  Ops ops(stream, nullptr);
  ops.TopK(x, {3});
  EXPECT_EQ(ops.status().message(), "sort: x float32 or int32, count at most its last dimension");
}

INSTANTIATE_TEST_SUITE_P(Isas, SortTest, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace attnd::testing
