// Drawn tables: what drawing costs, and that a stopped run ends it early. The numbers themselves:
// random_test.cc.
#include "kernels/core/random_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/core/orthonormal.h"
#include "kernels/core/random.h"
#include "tests/plain/check_observer.h"

namespace attnd::testing {
namespace {

constexpr Distribution kDistributions[] = {Distribution::kUniform, Distribution::kNormal,
                                           Distribution::kTruncatedNormal,
                                           Distribution::kOrthogonalRows};

DrawParams OrthogonalRows() {
  return {.seed = 7, .name = "w", .distribution = Distribution::kOrthogonalRows};
}

int64_t StepsOf(const Shape& shape) { return CostOfDraw(OrthogonalRows(), shape).steps; }

TEST(RandomTable, StepsAreThoseOfEveryBlock) {
  for (int64_t heads : {1, 3}) {
    for (int64_t rows : {1, 4, 63, 64, 65, 131}) {
      for (int64_t D : {1, 5, 64, 65}) {
        int64_t steps = 0;
        for (int64_t first = 0; first < rows; first += D) {
          const int64_t m = std::min(D, rows - first);
          steps += heads * (m * m * D + 16 * D * D);
        }
        EXPECT_EQ(StepsOf({heads, rows, D}), steps) << heads << " " << rows << " " << D;
        EXPECT_EQ(StepsOf({1, heads, rows, D}), steps);
      }
    }
  }
  EXPECT_EQ(StepsOf({8}), 8 + 16 * 64);
  // A step more than the products alone may be too many.
  EXPECT_EQ(StepsOf({1, int64_t{1} << 24}), (int64_t{1} << 24) + (int64_t{1} << 52));
}

// Symptom: the cost of shapes that a request sends without data overflowed, so that a table of
// 2^76 elements counted as a small one.
TEST(RandomTable, CostsOfAnyShapeSaturate) {
  const int64_t big = int64_t{1} << 30, most = INT64_MAX;
  const DrawCost of_scores = CostOfDraw(OrthogonalRows(), {1 << 16, big, big});
  EXPECT_EQ(of_scores.elements, most);
  EXPECT_EQ(of_scores.steps, most);
  EXPECT_EQ(of_scores.host_bytes, most);
  EXPECT_GT(of_scores.seconds, 1e9);
  // Elements fit and their bytes do not; scratch memory alone does not.
  const DrawCost of_bytes = CostOfDraw(OrthogonalRows(), {4, big, big});
  EXPECT_EQ(of_bytes.elements, int64_t{1} << 62);
  EXPECT_EQ(of_bytes.host_bytes, most);
  EXPECT_EQ(CostOfDraw(OrthogonalRows(), {big, big}).host_bytes, most);
  EXPECT_EQ(CostOfDraw(OrthogonalRows(), {int64_t{1} << 62}).host_bytes, most);
  // Only the normals, only the products, or only the heads have too many steps.
  EXPECT_EQ(StepsOf({1, big}), most);
  EXPECT_EQ(StepsOf({1, 1, int64_t{1} << 32}), most);
  const int64_t D = 1 << 20;
  EXPECT_EQ(StepsOf({D - 1, D}), D * (D - 1) * (D - 1) + 16 * D * D) << "fits";
  EXPECT_EQ(StepsOf({big, big, 1}), most);
  EXPECT_EQ(StepsOf({most, most, most}), most);
  EXPECT_EQ(StepsOf({most - 1, most}), most);
  EXPECT_EQ(StepsOf({most, most - 1}), most);
}

// Symptom: a table of rows without columns wrote outside of its memory.
TEST(RandomTable, EmptyOnesCostNothing) {
  for (const Distribution distribution : kDistributions) {
    const DrawParams params = {.name = "w", .distribution = distribution};
    for (const Shape& shape : {Shape{2, 4, 0}, Shape{2, 0, 4}, Shape{0, 4, 4}, Shape{0},
                               Shape{int64_t{1} << 62, int64_t{1} << 62, 0}}) {
      const DrawCost cost = CostOfDraw(params, shape);
      EXPECT_EQ(cost.elements, 0) << ToString(shape);
      EXPECT_EQ(cost.steps, 0);
      EXPECT_EQ(cost.host_bytes, 0);
      EXPECT_EQ(cost.seconds, 0);
      EXPECT_TRUE(DrawTable(params, shape).empty());
    }
  }
}

TEST(RandomTable, ElementsAreThoseOfTheStream) {
  const Shape shape = {3, 40'009};  // more than is drawn at once
  std::vector<float> want(static_cast<size_t>(shape.size()));
  const RandomStream stream(7, "w#2");
  DrawParams params = {
      .seed = 7, .name = "w", .suffix = "#2", .low = -3, .high = 5, .deviation = 0.5};
  params.distribution = Distribution::kUniform;
  stream.Uniforms(0, want, -3, 5);
  EXPECT_EQ(DrawTable(params, shape), want);
  params.distribution = Distribution::kNormal;
  stream.Normals(0, std::span<float>(want), 0.5);
  EXPECT_EQ(DrawTable(params, shape), want);
  params.distribution = Distribution::kTruncatedNormal;
  stream.TruncatedNormals(0, want, 0.5);
  EXPECT_EQ(DrawTable(params, shape), want);
  params.distribution = Distribution::kGumbel;
  stream.Gumbels(0, want);
  EXPECT_EQ(DrawTable(params, shape), want);
}

TEST(RandomTable, ACutBlockHasTheFirstRowsOfAFullOne) {
  const int64_t D = 37;
  const std::vector<float> full = DrawTable(OrthogonalRows(), {2 * D, D});
  for (int64_t rows : {int64_t{1}, D - 1, D, D + 1, 2 * D - 1}) {
    const std::vector<float> cut = DrawTable(OrthogonalRows(), {rows, D});
    EXPECT_EQ(cut, std::vector<float>(full.begin(), full.begin() + rows * D)) << rows;
  }
}

// Check points of a run of `work`, which is stopped at the `last` of them.
template <class Work>
int64_t ChecksOf(const Work& work, int64_t last = INT64_MAX) {
  std::atomic<int64_t> checks = 0;
  const CheckObserver observer([&] { return ++checks >= last; });
  const auto run = observer.NewRun();
  const RunScope scope(run.get());
  work();
  return checks;
}

// Symptom: a column of 1020 numbers took 2 ms without a check point.
TEST(RandomTable, LongColumnsHaveCheckPoints) {
  constexpr int64_t D = 512;
  std::vector<double> columns(static_cast<size_t>(D * D));
  RandomStream(1, "x").Normals(0, std::span(columns));
  constexpr int64_t kSteps = int64_t{1} << 16;  // about a nanosecond each
  const std::vector<double> normals = columns;
  const auto norm_of_last = [&] {
    const double* last = columns.data() + (D - 1) * D;
    return std::sqrt(std::inner_product(last, last + D, last, 0.0));
  };
  const int64_t checks = ChecksOf([&] { Orthonormalise(D, D, columns.data()); });
  EXPECT_GT(checks, D * D * D / kSteps);
  EXPECT_NEAR(norm_of_last(), 1, 1e-12);
  columns = normals;
  ChecksOf([&] { Orthonormalise(D, D, columns.data()); }, /*last=*/checks - 1);
  EXPECT_GT(std::fabs(norm_of_last() - 1), 0.01) << "stopped within the last column";
}

TEST(RandomTable, AStoppedDrawEndsEarly) {
  for (const Distribution distribution : kDistributions) {
    const DrawParams params = {.name = "w", .distribution = distribution};
    for (const Shape& shape : {Shape{1 << 10, 1 << 8}, Shape{1 << 16, 4}}) {
      std::vector<float> values;
      const auto draw = [&] { values = DrawTable(params, shape); };
      const int64_t checks = ChecksOf(draw);
      EXPECT_GE(checks, shape.size() >> 11);
      EXPECT_EQ(values.size(), static_cast<size_t>(shape.size()));
      ChecksOf(draw, /*last=*/checks / 2);
      EXPECT_LT(values.size(), static_cast<size_t>(shape.size()) * 3 / 4);
    }
  }
}

}  // namespace
}  // namespace attnd::testing
