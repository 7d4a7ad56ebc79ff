// Fragments of ldmatrix and mma.sync: layouts against CUTLASS's formulas, products against sums.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/cuda/simt.h"
#include "tests/cuda/run_kernel.h"

namespace attnd::testing {
namespace {

using simt::bf16;
using simt::f16;
using simt::SharedBytes;
using simt::SharedTiles;

// d[16x8] = a[16x16] b[16x8], b given as rows of k: through ldmatrix, one warp.
template <class T>
__global__ void Product(const T* a, const T* b, float* d) {
  SharedTiles shared;
  T* a_tile = shared.Take<T>(256);
  T* b_tile = shared.Take<T>(256);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) {
    a_tile[i] = a[i];
    b_tile[i] = i % 16 < 8 ? b[i / 16 * 8 + i % 16] : T(0.f);
  }
  __syncwarp();
  uint32_t a_frag[4], b_frag[4];
  simt::LdMatrixX4(a_frag, a_tile + lane % 16 * 16 + lane / 16 * 8);
  simt::LdMatrixX4Trans(b_frag, b_tile + lane % 16 * 16 + lane / 16 * 8);
  float sums[4] = {};
  simt::Mma(T(), sums, a_frag, b_frag[0], b_frag[1]);
  // CUTLASS, SM80_16x8_Row: (lane % 4, lane / 4, i % 2, i / 2) at strides (32, 1, 16, 8) of a
  // column-major 16 x 8 matrix.
  for (int i = 0; i < 4; ++i) {
    const int at = lane % 4 * 32 + lane / 4 + i % 2 * 16 + i / 2 * 8;
    d[at % 16 * 8 + at / 16] = sums[i];
  }
}

// Multiples of 1/8 up to 2: their products and sums are exact.
template <class T>
std::vector<T> Eighths(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> values(n);
  for (T& x : values) x = T(static_cast<float>(static_cast<int>(random() % 33) - 16) / 8);
  return values;
}

template <class T>
void CheckProduct() {
  InEveryOrder([] {
    const std::vector<T> a = Eighths<T>(256, 1), b = Eighths<T>(128, 2);
    const DeviceArray<T> a_device(a), b_device(b);
    const DeviceArray<float> d_device(std::vector<float>(128));
    RunKernel({.shared_bytes = 1024}, Product<T>, a_device.data(), b_device.data(),
              d_device.data());
    const std::vector<float> d = d_device.Get();
    for (size_t m = 0; m < 16; ++m) {
      for (size_t n = 0; n < 8; ++n) {
        float sum = 0;
        for (size_t k = 0; k < 16; ++k) {
          sum += static_cast<float>(a[m * 16 + k]) * static_cast<float>(b[k * 8 + n]);
        }
        EXPECT_EQ(d[m * 8 + n], sum) << m << ", " << n;
      }
    }
  });
}

TEST(EmulatorLayout, ProductOfBf16) { CheckProduct<bf16>(); }
TEST(EmulatorLayout, ProductOfF16) { CheckProduct<f16>(); }

__global__ void LdMatrixLayout(int* wrong) {
  SharedTiles shared;
  uint16_t* tile = shared.Take<uint16_t>(256);
  const unsigned lane = threadIdx.x, t = lane % 4, g = lane / 4;
  // Matrix m at m * 64, its row r at r * 8.
  for (unsigned i = lane; i < 256; i += 32) tile[i] = static_cast<uint16_t>(i);
  __syncwarp();
  uint32_t r[4];
  // SM75_U32x4_LDSM_N: 32 bits at bit 32 lane + 1024 m.
  simt::LdMatrixX4(r, tile + lane * 8);
  for (unsigned m = 0; m < 4; ++m) {
    for (unsigned h = 0; h < 2; ++h) {
      if ((r[m] >> 16 * h & 0xffff) != lane * 2 + h + m * 64) atomicAdd(wrong, 1);
    }
  }
  // SM75_U16x8_LDSM_T: bit 256 t + 16 g + 128 h + 1024 m.
  simt::LdMatrixX4Trans(r, tile + lane * 8);
  for (unsigned m = 0; m < 4; ++m) {
    for (unsigned h = 0; h < 2; ++h) {
      if ((r[m] >> 16 * h & 0xffff) != t * 16 + g + h * 8 + m * 64) atomicAdd(wrong, 1);
    }
  }
}

TEST(EmulatorLayout, LdMatrix) {
  InEveryOrder([] {
    const DeviceArray<int> wrong({0});
    RunKernel({.shared_bytes = 512}, LdMatrixLayout, wrong.data());
    EXPECT_EQ(wrong.Get()[0], 0);
  });
}

// SM80_16x8x16: a[v0, v1, v2] at 32 t + g + 16 v0 + 8 v1 + 128 v2 of a column-major 16 x 16 matrix;
// b[v0, v1] at 16 t + g + 8 v0 + 64 v1 of a column-major 8 x 16 (n x k) one. Elements say where
// they are; the other factor is a unit matrix.
__global__ void Mma16Layout(int* wrong) {
  const int lane = static_cast<int>(threadIdx.x), t = lane % 4, g = lane / 4;
  // Exact in bf16 up to 256.
  const auto bits = [](int x) { return __float_as_uint(static_cast<float>(x)) >> 16; };
  uint32_t a[4] = {}, b[2] = {}, unit_a[4] = {}, unit_b[2] = {};
  for (int v0 = 0; v0 < 2; ++v0) {
    for (int v1 = 0; v1 < 2; ++v1) {
      for (int v2 = 0; v2 < 2; ++v2) {
        const int at = 32 * t + g + 16 * v0 + 8 * v1 + 128 * v2;
        a[v1 + 2 * v2] |= bits(at) << 16 * v0;
        unit_a[v1 + 2 * v2] |= bits(at % 16 == at / 16) << 16 * v0;
      }
      const int at = 16 * t + g + 8 * v0 + 64 * v1;
      b[v1] |= bits(at) << 16 * v0;
      unit_b[v1] |= bits(at % 8 == at / 8) << 16 * v0;
    }
  }
  float from_a[4] = {}, from_b[4] = {};
  simt::Mma(bf16(), from_a, a, unit_b[0], unit_b[1]);  // columns 0 to 7 of a
  simt::Mma(bf16(), from_b, unit_a, b[0], b[1]);       // all of b, row k = m
  for (int i = 0; i < 4; ++i) {
    const int at = 32 * t + g + i % 2 * 16 + i / 2 * 8, m = at % 16, n = at / 16;
    if (from_a[i] != static_cast<float>(m + 16 * n)) atomicAdd(wrong, 1);
    if (from_b[i] != static_cast<float>(n + 8 * m)) atomicAdd(wrong, 1);
  }
}

// SM80_16x8x8 of TF32: a[v0, v1] at 16 t + g + 8 v0 + 64 v1 of a column-major 16 x 8 matrix; b[v]
// at 8 t + g + 32 v of a column-major 8 x 8 (n x k) one. The low 13 bits hold what must not count.
__global__ void Mma8Layout(int* wrong) {
  const int lane = static_cast<int>(threadIdx.x), t = lane % 4, g = lane / 4;
  const auto bits = [](int x) { return __float_as_uint(static_cast<float>(x)) | 0x1fff; };
  uint32_t a[4], b[2], unit_a[4], unit_b[2];
  for (int v = 0; v < 4; ++v) {
    const int at = 16 * t + g + 8 * (v % 2) + 64 * (v / 2);
    a[v] = bits(at);
    unit_a[v] = bits(at % 16 == at / 16);
  }
  for (int v = 0; v < 2; ++v) {
    const int at = 8 * t + g + 32 * v;
    b[v] = bits(at);
    unit_b[v] = bits(at % 8 == at / 8);
  }
  float from_a[4] = {}, from_b[4] = {};
  simt::MmaTf32(from_a, a, unit_b[0], unit_b[1]);  // all of a
  simt::MmaTf32(from_b, unit_a, b[0], b[1]);       // row k = m of b, zeros from row 8 on
  for (int i = 0; i < 4; ++i) {
    const int at = 32 * t + g + i % 2 * 16 + i / 2 * 8, m = at % 16, n = at / 16;
    if (from_a[i] != static_cast<float>(m + 16 * n)) atomicAdd(wrong, 1);
    if (from_b[i] != (m < 8 ? static_cast<float>(n + 8 * m) : 0.f)) atomicAdd(wrong, 1);
  }
}

TEST(EmulatorLayout, Mma) {
  InEveryOrder([] {
    const DeviceArray<int> wrong({0});
    RunKernel({}, Mma16Layout, wrong.data());
    EXPECT_EQ(wrong.Get()[0], 0);
    RunKernel({}, Mma8Layout, wrong.data());
    EXPECT_EQ(wrong.Get()[0], 0);
  });
}

// Row `lane` of a, in its first column, times one.
__global__ void EveryF16(const uint16_t* values, float* out) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4;
  values += blockIdx.x * 16;
  uint32_t a[4] = {};
  if (lane % 4 == 0) {
    a[0] = values[g];
    a[1] = values[g + 8];
  }
  const uint32_t one = lane == 0 ? 0x3c00 : 0;  // row 0, column 0 of b
  float d[4] = {};
  simt::Mma(f16(), d, a, one, 0);
  if (lane % 4 != 0) return;
  out[blockIdx.x * 16 + static_cast<unsigned>(g)] = d[0];
  out[blockIdx.x * 16 + static_cast<unsigned>(g) + 8] = d[2];
}

// Subnormal numbers, infinities and NaN included.
TEST(EmulatorLayout, EveryF16) {
  std::vector<uint16_t> values(65536);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  const DeviceArray<uint16_t> in(values);
  const DeviceArray<float> out(std::vector<float>(65536));
  RunKernel({.grid = 4096}, EveryF16, in.data(), out.data());
  const std::vector<float> all = out.Get();
  for (size_t i = 0; i < values.size(); ++i) {
    const float expected = __half2float(__half(__half_raw{values[i]}));
    if (expected != expected) {
      EXPECT_NE(all[i], all[i]) << i;
    } else {
      EXPECT_EQ(all[i], expected) << i;
    }
  }
}

}  // namespace
}  // namespace attnd::testing
