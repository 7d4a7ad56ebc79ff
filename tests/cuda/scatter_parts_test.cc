// Sums of very many rows on a CUDA device: launches take parts of them, between which a run can
// end.
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/core/run_control.h"
#include "kernels/device/gather.h"
#include "tests/cuda/emulator/options.h"
#include "tests/cuda/thread_orders.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

Device& Cuda() { return CpuOf("cuda", 1); }

// An index tensor whose element m is value(m).
template <class F>
TestArray Index(const Shape& shape, const F& value) {
  TestArray index(DType::kI32, shape);
  PlainArray plain(shape, 0);
  for (size_t m = 0; m < plain.values.size(); ++m) {
    plain.values[m] = static_cast<double>(value(static_cast<int64_t>(m)));
  }
  index.Write(plain);
  return index;
}

int64_t LaunchesOf(const ScatterRowsProblem& problem) {
  RunOn(Cuda(), [&](Stream& stream) {
    static_cast<void>(emu::TakeCounters());
    return Cuda().Run(stream, ScatterRowsArgs{.problems = {problem}});
  });
  return emu::TakeCounters().launches;
}

// `sums`: in float32 and in order.
void ExpectBits(const TestArray& out, const std::vector<float>& sums) {
  const std::vector<std::byte> bytes = out.Bytes();
  ASSERT_EQ(bytes.size(), sums.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(bytes.data(), sums.data(), bytes.size()), 0);
  EXPECT_TRUE(out.GuardsIntact());
}

// Rows of few and of very many rows of x, which end within parts and at their borders.
TEST(ScatterParts, SumsOfManyRowsAreInOrder) {
  constexpr int64_t kPart = int64_t{1} << 16;
  // Rows of x of each row of out, ascending; the rest are left out.
  const std::vector<std::vector<int64_t>> all_counts = {
      {1000, 70000, 1, 0, 66000, 300},
      {0, kPart, 2 * kPart, 1, kPart + 1},
      {3 * kPart + 5},
  };
  for (const std::vector<int64_t>& counts : all_counts) {
    for (const int64_t D : {1, 4}) {
      for (const int64_t left_out : {0, 70000}) {
        std::vector<int64_t> targets;
        for (size_t n = 0; n < counts.size(); ++n) {
          targets.insert(targets.end(), static_cast<size_t>(counts[n]), static_cast<int64_t>(n));
        }
        targets.insert(targets.end(), static_cast<size_t>(left_out), -1);
        const auto M = static_cast<int64_t>(targets.size());
        const auto N = static_cast<int64_t>(counts.size());
        // Interleaved: 7919 is prime.
        const auto target = [&](int64_t m) { return targets[static_cast<size_t>(m * 7919 % M)]; };
        const TestArray x = TestArray::Random(1, DType::kF32, {1, M, D});
        const TestArray index = Index({1, M}, target);
        const TestArray out(DType::kF32, {1, N, D});
        LaunchesOf({x.view(), index.view(), out.view(), {}, {}});
        const PlainArray values = x.Read();
        std::vector<float> sums(static_cast<size_t>(N * D), 0.0f);
        for (int64_t m = 0; m < M; ++m) {
          for (int64_t d = 0; d < D && target(m) >= 0; ++d) {
            sums[static_cast<size_t>(target(m) * D + d)] +=
                static_cast<float>(values.values[static_cast<size_t>(m * D + d)]);
          }
        }
        ExpectBits(out, sums);
      }
    }
  }
}

TEST(ScatterParts, EachMatrixIsDividedByItsOwn) {
  constexpr int64_t kM = 70001, kD = 3;
  const TestArray x = TestArray::Random(1, DType::kBF16, {2, kM, kD});
  const TestArray index = Index({1, kM}, [](int64_t m) { return m % 1000 == 0 ? 1 : 2; });
  const TestArray divisor = TestArray::Random(2, DType::kF32, {2, 4}, Memory::kDense, 1, 2);
  const TestArray out(DType::kF32, {2, 4, kD});
  const PlainArray values = x.Read(), by = divisor.Read();
  std::vector<float> sums(2 * 4 * kD, 0.0f);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t m = 0; m < kM; ++m) {
      for (int64_t d = 0; d < kD; ++d) {
        sums[static_cast<size_t>((b * 4 + (m % 1000 == 0 ? 1 : 2)) * kD + d)] +=
            static_cast<float>(values.values[static_cast<size_t>((b * kM + m) * kD + d)]);
      }
    }
    for (int64_t n = 0; n < 4; ++n) {
      for (int64_t d = 0; d < kD; ++d) {
        sums[static_cast<size_t>((b * 4 + n) * kD + d)] /=
            static_cast<float>(by.values[static_cast<size_t>(b * 4 + n)]);
      }
    }
  }
  InEveryOrder([&] {
    LaunchesOf({x.view(), index.view(), out.view(), {}, divisor.view()});
    ExpectBits(out, sums);
  });
}

// Of several sources, each of several parts or several of them in one, and of pairs.
TEST(ScatterParts, SumsOverSourcesAndPairsAreInOrder) {
  struct Size {
    int64_t sources, M, D;
    bool has_columns;
    int64_t parts;
  };
  // Pairs have parts of sources alone.
  const Size sizes[] = {{2, 70000, 4, false, 4},
                        {5, 30000, 1, false, 3},
                        {4100, 1, 2, false, 3},
                        {3, 2000, 5, true, 1},
                        {4100, 2, 5, true, 3}};
  for (const Size& size : sizes) {
    const auto row = [](int64_t m) { return m % 100 == 0 ? -1 : m % 10 == 0 ? 0 : 2; };
    const auto column = [](int64_t w) { return w == 3 ? 0 : 1; };
    const TestArray x = TestArray::Random(1, DType::kF32, {size.sources, size.M, size.D});
    const TestArray index = Index({1, size.M}, row);
    const TestArray columns = Index({1, size.D}, column);
    const int64_t width = size.has_columns ? 2 : size.D;
    const TestArray out(DType::kF32, {1, 3, width});
    const PlainArray values = x.Read();
    std::vector<float> sums(static_cast<size_t>(3 * width), 0.0f);
    for (int64_t m = 0; m < size.sources * size.M; ++m) {
      const int64_t n = row(m % size.M);
      for (int64_t d = 0; d < size.D && n >= 0; ++d) {
        sums[static_cast<size_t>(n * width + (size.has_columns ? column(d) : d))] +=
            static_cast<float>(values.values[static_cast<size_t>(m * size.D + d)]);
      }
    }
    InEveryOrder([&] {
      const int64_t launches = LaunchesOf(
          {x.view(), index.view(), out.view(), size.has_columns ? columns.view() : View(), {}});
      EXPECT_GE(launches, size.parts);
      ExpectBits(out, sums);
    });
  }
}

// Sequences of other lengths have a problem each, with sums of its own; a plan has one for all.
TEST(ScatterParts, WhatLaterLaunchesGoOnWithIsPlanned) {
  const auto planned = [](int64_t sequences, int64_t sources, int64_t M, int problems,
                          const AlikeProblems& alike) {
    // More sums than lists.
    const TestArray x(DType::kF32, {sequences, sources, M, 4}), out(DType::kF32, {1, 1, 90000, 4});
    const TestArray index = Index({1, 1, M}, [](int64_t) { return 0; });
    ScatterRowsArgs args;
    for (int p = 0; p < problems; ++p) {
      args.problems.push_back({x.view(), index.view(), out.view(), {}, {}});
    }
    Stream dry(Cuda(), nullptr);
    dry.alike() = alike;
    EXPECT_TRUE(Cuda().Run(dry, args).ok());
    return dry.workspace().peak_bytes();
  };
  for (const auto& [sources, M] : {std::pair<int64_t, int64_t>{2100, 1}, {2, 70000}, {500, 1}}) {
    EXPECT_GE(planned(5, sources, M, 1, {.problems = 5, .most = 5}),
              planned(1, sources, M, 5, {.entries = 5, .problems = 5}))
        << sources << " sources of " << M;
  }
}

// Where all rows of x went to one row of out, one launch had them all.
TEST(ScatterParts, ARunEndsBetweenThem) {
  using Time = RunControl::Clock::time_point;
  constexpr int64_t kM = 5 << 16;
  const TestArray x = TestArray::Random(1, DType::kF32, {1, kM, 1});
  const TestArray index = Index({1, kM}, [](int64_t) { return 0; });
  const TestArray out(DType::kF32, {1, 1, 1});
  const auto ends_at = [&](int last) {
    static int reads;
    reads = 0;
    RunControl control(0, 0, [] { return Time(std::chrono::hours(++reads)); });
    control.StopAt(Time(std::chrono::hours(last)));
    BufferPool pool(0, /*poison=*/true);
    Stream stream(Cuda(), &pool, &control);
    const ScatterRowsArgs args{.problems = {{x.view(), index.view(), out.view(), {}, {}}}};
    const DeviceStatus status = Cuda().Run(stream, args);
    return std::pair(status.code() == DeviceStatus::Code::kStopped, reads);
  };
  const auto [is_stopped, reads] = ends_at(1'000'000);
  EXPECT_FALSE(is_stopped);
  // The last parts alone hold what is left.
  for (int part = 1; part <= 5; ++part) EXPECT_TRUE(ends_at(reads - part).first) << part;
}

}  // namespace
}  // namespace attnd::testing
