// The vector functions under attend, on every instruction set of this machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/core/copy.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/simd/targets.h"
#include "tests/cpu/attend_case.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/cpu/attend_math_test.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/cpu/simd/lane_mask-inl.h"
#include "kernels/cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// `n` is a multiple of 16.
void RunExp2(const float* from, int64_t n, float* to) {
  const DF d;
  for (int64_t i = 0; i < n; i += kLanes) hn::StoreU(Exp2(d, hn::LoadU(d, from + i)), d, to + i);
}
void RunWiden(DType dtype, const void* from, int64_t n, float* to) { Widen(dtype, from, n, to); }
void RunNarrow(DType dtype, const float* from, int64_t n, void* to) { Narrow(dtype, from, n, to); }
void RunTransposeMask(const TileMask& mask, uint64_t* rows) { TransposeMask(mask, rows); }
void RunTranspose(const float* from, int64_t rows, int64_t columns, float* to) {
  Transpose(from, columns, rows, columns, to, rows);
}
int64_t LanesOf() { return kLanes; }
// `start` as in the order of Start.
void RunGemm(int start, int64_t M, int64_t N, int64_t K, const float* a, bool by_column,
             const float* b, float* c, const float* scale) {
  const Broadcast left = {a, by_column ? 1 : K, by_column ? M : 1};
  if (start == 0) Gemm<Start::kZero>(M, N, K, left, {b, N}, {c, N});
  if (start == 1) Gemm<Start::kAdd>(M, N, K, left, {b, N}, {c, N});
  if (start == 2) Gemm<Start::kScale>(M, N, K, left, {b, N}, {c, N}, scale);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

#define ATTND_OF_ISA(F) Choose(isa(), HWY_CHOOSE_SSE4(F), HWY_CHOOSE_AVX2(F), HWY_CHOOSE_AVX3(F))

class CpuMath : public testing::TestWithParam<std::string> {
 protected:
  Isa isa() const { return static_cast<CpuDevice&>(CpuOf(GetParam(), 1)).cpu().isa; }
};
INSTANTIATE_TEST_SUITE_P(Isa, CpuMath, testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(CpuMath, Exp2IsWithinThreeUlpOfLibm) {
  std::vector<float> x;
  for (float f = -126.0f; f < 127.5f; f += 1.0f / 512 + 1e-5f) x.push_back(f);
  for (int i = 0; i < 4096; ++i) x.push_back(-std::ldexp(1.0f, -i % 40));
  while (x.size() % 16 != 0) x.push_back(0);
  std::vector<float> y(x.size());
  ATTND_OF_ISA(RunExp2)(x.data(), static_cast<int64_t>(x.size()), y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const double truth = std::exp2(static_cast<double>(x[i]));
    const double ulp = std::ldexp(1.0, std::ilogb(truth) - 23);
    ASSERT_LE(std::abs(y[i] - truth), 3 * ulp) << x[i];
  }
}

TEST_P(CpuMath, Exp2KeepsItsSpecialValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan = std::bit_cast<float>(0xFFFFFFFFu), other = std::bit_cast<float>(0x7F800001u);
  std::vector<float> x = {0, -0.0f, -kInf, kInf, nan, other, -126.5f, -1e30f, 1e30f, 1, -1, 128};
  x.resize(16);
  std::vector<float> y(16);
  static_cast<CpuDevice&>(CpuOf(GetParam(), 1))
      .cpu()
      .pool->ParallelFor(1, /*parallel=*/false, [&](int64_t, int) {
        ATTND_OF_ISA(RunExp2)(x.data(), 16, y.data());
      });
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_EQ(y[3], kInf);
  EXPECT_TRUE(std::isnan(y[4]) && std::isnan(y[5]));
  EXPECT_EQ(y[6], 0.0f);
  EXPECT_EQ(y[7], 0.0f);
  EXPECT_EQ(y[8], kInf);
  EXPECT_EQ(y[9], 2.0f);
  EXPECT_EQ(y[10], 0.5f);
  EXPECT_EQ(y[11], kInf);
}

TEST_P(CpuMath, HalvesWidenExactlyAndRoundToNearestEven) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> all(65536), back(65536);
    for (int i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
    std::vector<float> wide(65536);
    ATTND_OF_ISA(RunWiden)(dtype, all.data(), 65536, wide.data());
    ATTND_OF_ISA(RunNarrow)(dtype, wide.data(), 65536, back.data());
    std::vector<float> between, rounded_wide;
    for (int i = 0; i < 65536; ++i) {
      if (std::isnan(wide[i])) {
        EXPECT_TRUE((i & 0x7FFF) > (dtype == DType::kF16 ? 0x7C00 : 0x7F80)) << i;
        continue;
      }
      EXPECT_EQ(back[i], all[i]);
      between.push_back(wide[i] * (1 + 0x1p-11f));  // half way between two halves, for many
      between.push_back(wide[i] * 1.0007f);
    }
    std::vector<uint16_t> narrow(between.size());
    ATTND_OF_ISA(RunNarrow)
    (dtype, between.data(), static_cast<int64_t>(between.size()), narrow.data());
    rounded_wide.resize(between.size());
    ATTND_OF_ISA(RunWiden)
    (dtype, narrow.data(), static_cast<int64_t>(narrow.size()), rounded_wide.data());
    for (size_t i = 0; i < between.size(); ++i) {
      ASSERT_EQ(rounded_wide[i], RoundTo(dtype, between[i])) << between[i];
    }
  }
}

TEST_P(CpuMath, TransposesOfAnyShape) {
  for (int64_t rows : {1, 3, 4, 17, 64}) {
    for (int64_t columns : {1, 4, 6, 33}) {
      std::vector<float> from(rows * columns), to(rows * columns, -1);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
      ATTND_OF_ISA(RunTranspose)(from.data(), rows, columns, to.data());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          ASSERT_EQ(to[c * rows + r], from[r * columns + c]);
        }
      }
    }
  }
  std::mt19937_64 random(1);
  TileMask mask;
  for (uint64_t& word : mask) word = random();
  uint64_t bits[kTile];
  ATTND_OF_ISA(RunTransposeMask)(mask, bits);
  for (int64_t q = 0; q < kTile; ++q) {
    for (int64_t key = 0; key < kTile; ++key) {
      ASSERT_EQ(bits[q] >> key & 1, mask[key] >> q & 1);
    }
  }
}

TEST_P(CpuMath, GemmOfAnyShapeAndStart) {
  const int64_t lanes = ATTND_OF_ISA(LanesOf)();
  std::mt19937 random(1);
  std::uniform_int_distribution<int> small(-4, 4);  // sums are exact
  const auto fill = [&](int64_t n) {
    std::vector<float> x(n);
    for (float& f : x) f = static_cast<float>(small(random));
    return x;
  };
  for (int64_t M = 0; M <= 14; ++M) {
    for (int64_t N = 0; N <= 7 * lanes; N += lanes) {
      for (int64_t K : {0, 1, 5}) {
        const auto a = fill(M * K), b = fill(K * N), start = fill(M * N), scale = fill(N);
        for (int form = 0; form < 6; ++form) {
          const bool by_column = form % 2 == 1;
          std::vector<float> c = start;
          ATTND_OF_ISA(RunGemm)
          (form / 2, M, N, K, a.data(), by_column, b.data(), c.data(), scale.data());
          for (int64_t m = 0; m < M; ++m) {
            for (int64_t n = 0; n < N; ++n) {
              float sum = form < 2 ? 0 : form < 4 ? start[m * N + n] : start[m * N + n] * scale[n];
              for (int64_t k = 0; k < K; ++k) {
                sum += (by_column ? a[k * M + m] : a[m * K + k]) * b[k * N + n];
              }
              ASSERT_EQ(c[m * N + n], sum) << M << " " << N << " " << K << " form " << form;
            }
          }
        }
      }
    }
  }
}

// --- Add and Gather ------------------------------------------------------------------------------
TEST_P(CpuMath, AddsAnyStridesAndDtypes) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Shape shape = {2, 3, 50, 37};
    GuardedTensor a(dtype, shape, Layout::kBHND), b(dtype, shape, Layout::kBNHD);
    GuardedTensor sum(dtype, shape, Layout::kBNHD);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto each = [&](const auto& fn) {
      for (int i = 0; i < 2 * 3 * 50 * 37; ++i) {
        fn(i / (3 * 50 * 37), i / (50 * 37) % 3, i / 37 % 50, i % 37);
      }
    };
    each([&](int x, int y, int z, int w) {
      a.Set(x, y, z, w, normal(random));
      b.Set(x, y, z, w, normal(random));
    });
    const ElementwiseProblem problems[] = {{a.view(), b.view(), {}, sum.view()},
                                           {a.view(), a.view(), {}, a.view()}};
    const GuardedTensor before = a;
    Device& device = CpuOf(GetParam(), 2);
    BufferPool pool;
    Stream stream(device, &pool);
    std::vector<float> expected;
    each([&](int x, int y, int z, int w) {
      expected.push_back(RoundTo(dtype, a.Get(x, y, z, w) + b.Get(x, y, z, w)));
    });
    const int64_t launches = device.launches();
    ASSERT_TRUE(
        device.Run(stream, ElementwiseArgs{.op = ElementOp::kAdd, .problems = {problems[0]}}).ok());
    size_t n = 0;
    each([&](int x, int y, int z, int w) { ASSERT_EQ(sum.Get(x, y, z, w), expected[n++]); });
    std::vector<float> twice;
    each([&](int x, int y, int z, int w) { twice.push_back(2 * a.Get(x, y, z, w)); });
    ASSERT_TRUE(
        device.Run(stream, ElementwiseArgs{.op = ElementOp::kAdd, .problems = {problems[1]}}).ok());
    n = 0;
    each([&](int x, int y, int z, int w) { ASSERT_EQ(a.Get(x, y, z, w), twice[n++]); });
    EXPECT_EQ(device.launches(), launches + 2);
    EXPECT_TRUE(a.GuardsIntact() && b.GuardsIntact() && sum.GuardsIntact());
  }
}

// On one thread, and from kStreamedBytes up on all of them.
TEST_P(CpuMath, GathersSpansInOrder) {
  Device& device = CpuOf(GetParam(), 2);
  BufferPool pool;
  Stream stream(device, &pool);
  Stream dry(device, nullptr);
  for (const size_t bytes :
       {size_t{4}, size_t{300'007}, kStreamedBytes - 1, kStreamedBytes, size_t{5'000'011}}) {
    std::vector<std::byte> source(bytes);
    for (size_t i = 0; i < bytes; ++i) source[i] = static_cast<std::byte>(i * 31 >> 3);
    const std::span<const std::byte> all = source;
    const size_t cut = bytes * 3 / 5;
    const std::span<const std::byte> spans[] = {all.subspan(0, 1), all.subspan(1, 0),
                                                all.subspan(1, cut), all.subspan(1 + cut)};
    std::vector<std::byte> target(bytes);
    ASSERT_TRUE(device.Upload(stream, target.data(), spans, /*source=*/nullptr).ok());
    EXPECT_EQ(target, source);
    const double before = dry.work().seconds;
    ASSERT_TRUE(device.Upload(dry, nullptr, spans, /*source=*/nullptr).ok());
    EXPECT_GT(dry.work().seconds, before);
  }
  ASSERT_TRUE(device.Upload(stream, nullptr, {}, /*source=*/nullptr).ok());
}

}  // namespace
}  // namespace attnd
#endif
