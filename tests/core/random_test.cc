// Check values of the specifications. A number does not depend on the calls that ask for it.
#include "kernels/core/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/ops/ops.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

double Phi(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

// Philox4x32-10 word by word, from the paper.
std::array<uint32_t, 4> PlainPhilox(std::array<uint32_t, 4> x, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * x[0], p1 = uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<uint32_t>(p1 >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return x;
}

TEST(RandomTest, PhiloxOfTheReference) {
  // Random123's known answer for counter 0 and key 0.
  EXPECT_EQ(PlainPhilox({0, 0, 0, 0}, 0, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(RandomTest, HashOfAName) { EXPECT_EQ(Fnv1a("omega"), 0x3460cbae3ad8be88u); }

TEST(RandomTest, FirstNumbersOfAStream) {
  const RandomStream stream(42, "omega");
  const double uniforms[] = {0.106448163395, 0.654360254644, 0.760410560179, 0.145020838478};
  const double normals[] = {-1.196759363435, -1.745841146282, 0.453554796295, 0.584877430203};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(stream.Uniform(i), uniforms[i], 1e-12);
    EXPECT_NEAR(stream.Normal(i), normals[i], 1e-12);
  }
}

TEST(RandomTest, EveryElementIsTheOneOfItsBlock) {
  const uint64_t seed = 0x123456789ABCDEF0u, hash = Fnv1a("x");
  const RandomStream stream(seed, "x");
  // Beyond 2^32 blocks too.
  for (uint64_t e : {uint64_t{0}, uint64_t{63}, uint64_t{64}, uint64_t{1} << 34,
                     (uint64_t{1} << 34) + 65, (uint64_t{1} << 40) + 3}) {
    const uint64_t block = e / 4;
    const auto x = PlainPhilox({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                static_cast<uint32_t>(hash), static_cast<uint32_t>(hash >> 32)},
                               static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    EXPECT_EQ(stream.Uniform(e), (x[e % 4] + 0.5) / 4294967296.0);
    const double u0 = (x[e % 4 / 2 * 2] + 0.5) / 4294967296.0;
    const double angle = 2 * M_PI * (x[e % 4 / 2 * 2 + 1] + 0.5) / 4294967296.0;
    const double normal =
        std::sqrt(-2 * std::log(u0)) * (e % 2 == 0 ? std::cos(angle) : std::sin(angle));
    EXPECT_NEAR(stream.Normal(e), normal, 1e-14 * (1 + std::fabs(normal)));
  }
}

TEST(RandomTest, NormalsAreThoseOfLibm) {
  // Relative to the uniforms of the stream; extremes of both come up among so many.
  const RandomStream stream(7, "wide");
  std::vector<double> normals(1 << 18);
  stream.Normals(0, normals);
  for (size_t e = 0; e < normals.size(); e += 2) {
    const double radius = std::sqrt(-2 * std::log(stream.Uniform(e)));
    const double angle = 2 * M_PI * stream.Uniform(e + 1);
    ASSERT_NEAR(normals[e], radius * std::cos(angle), 4e-15 * (1 + radius)) << e;
    ASSERT_NEAR(normals[e + 1], radius * std::sin(angle), 4e-15 * (1 + radius)) << e;
  }
}

TEST(RandomTest, GumbelsAreThoseOfTheFormula) {
  const RandomStream stream(3, "gumbel");
  std::vector<float> values(1 << 12);
  stream.Gumbels(5, values);
  for (size_t i = 0; i < values.size(); ++i) {
    const double u = stream.Uniform(5 + i);
    ASSERT_EQ(values[i], static_cast<float>(-std::log(-std::log(u + 1e-6) + 1e-6))) << i;
  }
}

TEST(RandomTest, PiecesAreTheWhole) {
  const RandomStream stream(3, "piece");
  std::vector<float> whole(300), piece(300);
  stream.Normals(0, std::span<float>(whole), 0.5);
  for (size_t begin : {0, 1, 3, 62, 129}) {
    for (size_t count : {0, 1, 63, 64, 65, 131}) {
      std::fill(piece.begin(), piece.end(), 9.0f);
      stream.Normals(begin, std::span<float>(piece).first(count), 0.5);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(piece[i], whole[begin + i]);
      ASSERT_EQ(piece[count], 9.0f);
    }
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole[i], static_cast<float>(0.5 * stream.Normal(i)));
  }
}

TEST(RandomTest, UniformsOfARange) {
  const RandomStream stream(3, "u");
  std::vector<float> values(257);
  stream.Uniforms(5, values, -0.25, 0.5);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], static_cast<float>(-0.25 + 0.75 * stream.Uniform(5 + i)));
  }
}

TEST(RandomTest, TruncatedNormalsInvertTheDistribution) {
  const RandomStream stream(11, "t");
  std::vector<float> values(1 << 16);
  stream.TruncatedNormals(0, values, 2);
  double squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double z = values[i] * 0.87962566103423978 / 2;
    ASSERT_NEAR(Phi(z), Phi(-2) + stream.Uniform(i) * (Phi(2) - Phi(-2)), 1e-7);
    squares += static_cast<double>(values[i]) * values[i];
  }
  EXPECT_NEAR(squares / static_cast<double>(values.size()), 4, 0.06);
}

TEST(RandomTest, IntegerDraws) {
  EXPECT_EQ(Mix(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(DrawKey(42, 1, 0, 0, 0), 0x7c15e27c53336e6fu);
  EXPECT_EQ(Bounded(uint64_t{1} << 63, 10), 5u);
  EXPECT_EQ(Bounded(~uint64_t{0}, 10), 9u);
}

TEST(RandomTest, SamplesAreAscendingAndDistinct) {
  Sampler sampler(50);
  const auto draw = [&](int64_t M, int64_t count, uint64_t seed) {
    const auto drawn = sampler.Draw(M, count, seed, 2, 3, 4);
    return std::vector<int32_t>(drawn.begin(), drawn.end());
  };
  const std::vector<int32_t> drawn = draw(50, 7, 1);
  ASSERT_EQ(drawn.size(), 7u);
  for (size_t i = 0; i < drawn.size(); ++i) {
    EXPECT_TRUE(drawn[i] >= 0 && drawn[i] < 50);
    if (i > 0) {
      EXPECT_LT(drawn[i - 1], drawn[i]);
    }
  }
  std::vector<int32_t> all(50);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(draw(50, 70, 1), all);
  EXPECT_TRUE(draw(0, 3, 1).empty());
  EXPECT_EQ(draw(50, 7, 1), drawn) << "a draw depends on those before it";
  // Every candidate comes up.
  std::vector<int> times(50);
  for (uint64_t seed = 0; seed < 500; ++seed) ++times[draw(50, 1, seed)[0]];
  for (int n : times) EXPECT_GT(n, 0);
}

TEST(RandomTest, OrthogonalRowsOfTheSpecification) {
  const std::vector<float> rows = DrawTable(
      {.seed = 42, .name = "omega", .distribution = Distribution::kOrthogonalRows}, {6, 4});
  const double first[] = {-1.43557606, 1.10759028, -2.08318904, 0.54948125};
  const double last[] = {-0.91187414, -0.05909804, -0.35146846, -0.12176166};
  ASSERT_EQ(rows.size(), 24u);
  for (int d = 0; d < 4; ++d) {
    EXPECT_NEAR(rows[d], first[d], 1e-7);
    EXPECT_NEAR(rows[20 + d], last[d], 1e-7);
  }
}

TEST(RandomTest, OrthogonalWithinBlocksAndHeadsDiffer) {
  const int64_t H = 2, m = 130, D = 65;
  DrawParams params = {.seed = 1,
                       .name = "omega",
                       .suffix = "#3",
                       .distribution = Distribution::kOrthogonalRows,
                       .norms = RowNorms::kSqrtD};
  const std::vector<float> rows = DrawTable(params, {H, m, D});
  ASSERT_EQ(rows.size(), static_cast<size_t>(H * m * D));
  const auto dot = [&](int64_t i, int64_t j) {
    return std::inner_product(rows.begin() + i * D, rows.begin() + (i + 1) * D,
                              rows.begin() + j * D, 0.0);
  };
  for (int64_t i = 0; i < H * m; ++i) {
    EXPECT_NEAR(dot(i, i), D, 1e-4);
    for (int64_t j = i / D * D; j < i; ++j) EXPECT_NEAR(dot(i, j), 0, 1e-4);
  }
  EXPECT_NE(rows[0], rows[m * D]);
  params.suffix = "";
  EXPECT_NE(rows[0], DrawTable(params, {1, D})[0]);
}

TEST(RandomTest, DrawnTablesAreSharedByShape) {
  Device& device = CpuOf(AvailableIsas()[0], 1);
  BufferPool pool(0, /*poison=*/true);
  for (BufferPool* memory : {&pool, static_cast<BufferPool*>(nullptr)}) {
    Stream stream(device, memory);
    Ops ops(stream, nullptr);
    const DrawParams params = {.seed = 5, .name = "e", .deviation = 3};
    const Tensor table = ops.Draw(params, {{4, 3}, {2, 3}, {4, 3}});
    ASSERT_TRUE(ops.status().ok()) << ops.status();
    ASSERT_EQ(table.size(), 3u);
    EXPECT_EQ(table.buffer(0), table.buffer(2));
    EXPECT_NE(table.buffer(0), table.buffer(1));
    // 48 and 24 bytes take 64 each.
    EXPECT_EQ(stream.workspace().current_bytes(), 2 * RoundedBytes(48));
    if (memory == nullptr) continue;
    for (int64_t e = 0; e < 12; ++e) {
      const float expected = static_cast<float>(3 * RandomStream(5, "e").Normal(e));
      EXPECT_EQ(table[0].As<float>()[e], expected);
      if (e < 6) {
        EXPECT_EQ(table[1].As<float>()[e], expected);
      }
    }
  }
}

}  // namespace
}  // namespace attnd::testing
