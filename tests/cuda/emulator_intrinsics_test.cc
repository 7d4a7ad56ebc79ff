// What CUDA C++ offers without an include: values that CUDA's documents give, edges included.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cuda/simt.h"
#include "tests/cuda/run_kernel.h"

namespace attnd::testing {
namespace {

// Both compilers may fold constants: what they fold with is what runs, `zero` hides the rest.
__global__ void Integers(long long* out, int zero) {
  const int minus = zero - 1;
  const unsigned high = 0x80000000u + static_cast<unsigned>(zero);
  *out++ = __popc(0xf0f0u + static_cast<unsigned>(zero));
  *out++ = __popcll(~0ull);
  *out++ = __clz(zero);
  *out++ = __clz(1);
  *out++ = __clzll(zero);
  *out++ = __ffs(zero);
  *out++ = __ffs(8);
  *out++ = __ffsll(1ll << 40);
  *out++ = __brev(1u);
  *out++ = __brev(0x0000f00fu);
  *out++ = __byte_perm(0x33221100u, 0x77665544u, 0x7140u);
  *out++ = __funnelshift_l(high, 0x0fu, 4);
  *out++ = __funnelshift_r(0xf0u, 0x0au, 4);
  *out++ = __mulhi(minus, 5);
  *out++ = __umulhi(high, 6u);
  *out++ = __mul64hi(minus, 5);
  *out++ = static_cast<long long>(__umul64hi(1ull << 63, 6ull));
  *out++ = min(minus, 3);
  *out++ = max(static_cast<unsigned>(minus), 3u);
  *out++ = min(5u, zero);
  *out++ = max(-5ll, static_cast<long long>(minus));
}

TEST(EmulatorIntrinsics, Integers) {
  const std::vector<long long> expected = {
      8,    64,         32, 31, 64, 0, 4,  41,         0x80000000, 0xf00f0000, 0x77114400,
      0xf8, 0xa000000f, -1, 3,  -1, 3, -1, 0xffffffff, 0,          -1};
  const DeviceArray<long long> out(std::vector<long long>(expected.size(), -99));
  RunKernel({.block = 1}, Integers, out.data(), 0);
  EXPECT_EQ(out.Get(), expected);
}

__global__ void Conversions(const float* in, long long* out) {
  const float x = in[threadIdx.x];
  out += threadIdx.x * 7;
  out[0] = __float2int_rn(x);
  out[1] = __float2int_rz(x);
  out[2] = __float2int_rd(x);
  out[3] = __float2int_ru(x);
  out[4] = __float2uint_rn(x);
  out[5] = __float2ll_rn(x);
  out[6] = __float_as_int(__int_as_float(__float_as_int(x)));
}

TEST(EmulatorIntrinsics, Conversions) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr long long kMost = std::numeric_limits<long long>::max();
  const std::vector<float> x = {2.5f, -2.5f, 3e9f, -kInfinity, kInfinity};
  const std::vector<std::vector<long long>> expected = {
      {2, 2, 2, 3, 2, 2, 0x40200000},
      {-2, -2, -3, -2, 0, -2, static_cast<int>(0xc0200000)},
      {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, 3000000000, 3000000000, 0x4f32d05e},
      {INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN, 0, -kMost - 1, static_cast<int>(0xff800000)},
      {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX, UINT32_MAX, kMost, 0x7f800000}};
  const DeviceArray<float> in(x);
  const DeviceArray<long long> out(std::vector<long long>(x.size() * 7));
  RunKernel({.block = static_cast<unsigned>(x.size())}, Conversions, in.data(), out.data());
  const std::vector<long long> all = out.Get();
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(std::vector<long long>(&all[i * 7], &all[i * 7] + 7), expected[i]) << x[i];
  }
}

// `at`: a number that no thread writes, as __ldg requires.
__global__ void Floats(float* out, const float* at, float nan, float two) {
  *out++ = min(nan, two);
  *out++ = max(two, nan);
  *out++ = __fmaf_rn(two, 0x1.000002p0f, -two);
  *out++ = __fadd_rn(__fmul_rn(two, 0x1.8p0f), 1.f);
  *out++ = __frcp_rn(two);
  *out++ = __fsqrt_rn(two * 2);
  *out++ = rsqrtf(two * 2);
  *out++ = __saturatef(two);
  *out++ = __saturatef(nan);
  *out++ = __fdividef(two, 4.f);
  *out++ = __uint2float_rn(0xffffffffu);
  *out++ = __ldg(at);
  *out++ = roundf(erff(two) * 1000);
  *out++ = roundf(__expf(two) * 1000);
  *out++ = roundf(__logf(two) * 1000);
  float s, c;
  sincosf(two, &s, &c);
  *out++ = roundf(s * 1000);
  *out++ = roundf(c * 1000);
}

TEST(EmulatorIntrinsics, Floats) {
  const std::vector<float> expected = {2,    2,       0x1p-22f, 4,   0.5f, 2,   0.5f, 1,   0,
                                       0.5f, 0x1p32f, 0.25f,    995, 7389, 693, 909,  -416};
  const DeviceArray<float> out(std::vector<float>(expected.size())), at(std::vector<float>{0.25f});
  RunKernel({.block = 1}, Floats, out.data(), at.data(), std::numeric_limits<float>::quiet_NaN(),
            2.f);
  EXPECT_EQ(out.Get(), expected);
}

}  // namespace
}  // namespace attnd::testing
