// What kernels need beyond CUDA C++: tiles in shared memory, tensor-core and cp.async instructions.
// nvcc sees the instructions, g++ the emulator that the tests link (tests/cuda/emulator). The only
// place of inline PTX. A kernel includes this header and nothing else of CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define SIMT_WHERE
#define SIMT_FN __device__ __forceinline__
#else
#include "cuda_emulator.h"
#define SIMT_WHERE , emu::Where where = emu::Where::Here()
#define SIMT_FN inline
#endif

namespace attnd::simt {

using bf16 = __nv_bfloat16;
using f16 = __half;

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr size_t kSharedAlign = 128;

// Bytes that SharedTiles::Take<T>(n) uses.
template <class T>
__host__ __device__ constexpr size_t SharedBytes(size_t n) {
  return (n * sizeof(T) + kSharedAlign - 1) / kSharedAlign * kSharedAlign;
}

#ifdef __CUDACC__
SIMT_FN unsigned SharedAddress(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
#endif

// Deals out the block's dynamic shared memory. Every thread takes the same tiles in the same order.
// Tiles are apart: never reach one through a pointer to another. Their contents are undefined at
// first.
class SharedTiles {
 public:
#ifdef __CUDACC__
  SIMT_FN SharedTiles() {
    extern __shared__ __align__(128) unsigned char simt_dynamic_shared[];
    next_ = simt_dynamic_shared;
  }
#endif
  template <class T>
  SIMT_FN T* Take(size_t n SIMT_WHERE) {
#ifdef __CUDACC__
    T* tile = reinterpret_cast<T*>(next_);
    next_ += SharedBytes<T>(n);
    return tile;
#else
    return static_cast<T*>(emu::TakeShared(n * sizeof(T), where));
#endif
  }
#ifdef __CUDACC__

 private:
  unsigned char* next_;
#endif
};

// Four 8x8 matrices of 16-bit elements from shared memory. Lane i points to row i % 8 of matrix
// i / 8 (16 bytes, aligned); r[m] holds elements (lane / 4, lane % 4 * 2 + {0, 1}) of matrix m.
SIMT_FN void LdMatrixX4(uint32_t (&r)[4], const void* row SIMT_WHERE) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
#else
  emu::LdMatrix(r, 4, row, /*transposed=*/false, where);
#endif
}

// The same with every matrix transposed.
SIMT_FN void LdMatrixX4Trans(uint32_t (&r)[4], const void* row SIMT_WHERE) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(SharedAddress(row))
               : "memory");
#else
  emu::LdMatrix(r, 4, row, /*transposed=*/true, where);
#endif
}

// d[16x8] += a[16x16] b[16x8], float32 accumulation. With g = lane / 4, t = lane % 4 * 2:
// a[i]: row g + (i & 1) * 8, columns t + (i >> 1) * 8 + {0, 1};
// b0, b1: rows t + {0, 1} and t + {8, 9}, column g; d[i]: row g + (i >> 1) * 8, column t + (i & 1).
SIMT_FN void Mma(bf16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 SIMT_WHERE) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  emu::Mma16816(emu::MmaType::kBf16, d, a, b0, b1, where);
#endif
}
SIMT_FN void Mma(f16, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 SIMT_WHERE) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  emu::Mma16816(emu::MmaType::kF16, d, a, b0, b1, where);
#endif
}

// d[16x8] += a[16x8] b[8x8] of float32 bits whose low 13 are ignored. With g = lane / 4, t = lane %
// 4: a[i]: row g + (i & 1) * 8, column t + (i >> 1) * 4; b0, b1: rows t and t + 4, column g; d as
// above.
SIMT_FN void MmaTf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 SIMT_WHERE) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  emu::Mma1688Tf32(d, a, b0, b1, where);
#endif
}

// x = high + low + an error of 2^-23 |x|, both TF32 where their low 13 bits are ignored. high is
// rounded to the nearest, so that what three products (high high, high low, low high) leave out has
// no bias: they are float32-grade. Where x rounds to infinity or is not finite, low is not finite.
SIMT_FN void SplitTf32(float x, uint32_t* high, uint32_t* low) {
  *high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  *low = __float_as_uint(x - __uint_as_float(*high));
}

// Copies kBytes (4, 8 or 16, aligned to as much) from global to shared memory behind the thread's
// back; zeros where not `valid` (`from` is not read then, but must be aligned).
template <int kBytes = 16>
SIMT_FN void CopyAsync(void* to, const void* from, bool valid SIMT_WHERE) {
#ifdef __CUDACC__
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(to)),
                 "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(SharedAddress(to)),
                 "l"(from), "n"(kBytes), "r"(valid ? kBytes : 0)
                 : "memory");
  }
#else
  emu::CopyAsync(to, from, valid ? kBytes : 0, kBytes, where);
#endif
}
SIMT_FN void CopyCommit() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emu::CopyCommit();
#endif
}
// Waits until at most kPending of this thread's groups are under way.
template <int kPending>
SIMT_FN void CopyWait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#else
  emu::CopyWait(kPending);
#endif
}

// 2^x to 2 ulp; 2^-inf = 0. Results below 2^-126 are 0.
SIMT_FN float Exp2(float x) {
#ifdef __CUDACC__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// 1 / x to 20 bits, for normal x whose reciprocal is normal.
SIMT_FN double RoughReciprocal(double x) {
#ifdef __CUDACC__
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
#else
  return __longlong_as_double(__double_as_longlong(1 / x) & ~0xffffffffll);
#endif
}

// Of a whole warp, in a fixed order; every lane gets it.
SIMT_FN float WarpSum(float x SIMT_WHERE) {
  for (int flip = kWarp / 2; flip > 0; flip /= 2) {
#ifdef __CUDACC__
    x += __shfl_xor_sync(kAllLanes, x, flip);
#else
    x += __shfl_xor_sync(kAllLanes, x, flip, kWarp, where);
#endif
  }
  return x;
}

}  // namespace attnd::simt
