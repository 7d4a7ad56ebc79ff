// Percentiles of the load generator against those of sorted values.
#include "tests/bench/latency_histogram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace attnd::bench {
namespace {

TEST(LatencyHistogram, EmptyIsZero) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.Percentile(50), 0);
}

TEST(LatencyHistogram, SmallValuesAreExact) {
  LatencyHistogram histogram;
  for (int64_t value = 0; value < 100; ++value) histogram.Add(value);
  EXPECT_EQ(histogram.Percentile(0), 0);
  EXPECT_EQ(histogram.Percentile(1), 0);
  EXPECT_EQ(histogram.Percentile(50), 49);
  EXPECT_EQ(histogram.Percentile(99), 98);
  EXPECT_EQ(histogram.Percentile(100), 99);
}

TEST(LatencyHistogram, EveryValueIsReadBackWithinItsBound) {
  for (int bits = 0; bits < 63; ++bits) {
    for (const int64_t around : {-1, 0, 1}) {
      const int64_t value = std::max<int64_t>((int64_t{1} << bits) + around, 0);
      LatencyHistogram histogram;
      histogram.Add(value);
      // A larger one, so that the bucket's end shows and not max().
      histogram.Add(INT64_MAX);
      const int64_t read = histogram.Percentile(50);
      EXPECT_GE(read, value);
      EXPECT_LE(static_cast<double>(read - value), static_cast<double>(value) / 64);
    }
  }
}

TEST(LatencyHistogram, AgreesWithSorting) {
  std::mt19937 random(3);
  std::lognormal_distribution<double> latency(std::log(2e6), 1.5);
  std::vector<int64_t> values(20'000);
  LatencyHistogram histogram;
  for (int64_t& value : values) histogram.Add(value = static_cast<int64_t>(latency(random)));
  std::sort(values.begin(), values.end());
  for (const double percent : {1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0}) {
    const auto rank = static_cast<size_t>(std::ceil(percent / 100 * 20'000)) - 1;
    const auto exact = static_cast<double>(values[rank]);
    const auto ours = static_cast<double>(histogram.Percentile(percent));
    EXPECT_GE(ours, exact) << percent;
    EXPECT_LE(ours, exact * (1 + 1.0 / 64)) << percent;
  }
  EXPECT_EQ(histogram.max(), values.back());
}

}  // namespace
}  // namespace attnd::bench
