// What CUDA C++ offers without an include: barriers, atomics, bits, fast mathematics. The types are
// those of CUDA's own declarations, so that a call means the same to both compilers.
#pragma once

#include <math.h>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "fibers.h"

inline void __syncthreads(emu::Where w = emu::Where::Here()) { emu::SyncThreads(0, w); }
inline int __syncthreads_count(int vote, emu::Where w = emu::Where::Here()) {
  return emu::SyncThreads(vote, w);
}
inline int __syncthreads_or(int vote, emu::Where w = emu::Where::Here()) {
  return emu::SyncThreads(vote, w) > 0;
}
inline int __syncthreads_and(int vote, emu::Where w = emu::Where::Here()) {
  return emu::SyncThreads(vote == 0, w) == 0;
}
inline void __syncwarp(unsigned mask = ~0u, emu::Where w = emu::Where::Here()) {
  emu::SyncWarp(mask, w);
}
inline void __threadfence() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
[[noreturn]] inline void __trap() { emu::Fail(emu::Where::Here(), "__trap"); }

namespace emu {

template <class T>
concept Atomic = std::is_same_v<T, int> || std::is_same_v<T, unsigned> ||
    std::is_same_v<T, unsigned long long> || std::is_same_v<T, float> || std::is_same_v<T, double>;

// Relaxed, as on the device.
template <Atomic T, class Rule>
T Update(T* p, Rule rule) {
  T old, desired;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do {
    desired = rule(old);
  } while (!__atomic_compare_exchange(p, &old, &desired, /*weak=*/true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED));
  return old;
}

}  // namespace emu

// clang-format off
template <class T> T atomicAdd(T* p, std::type_identity_t<T> v) {
  return emu::Update(p, [v](T x) { return static_cast<T>(x + v); });
}
template <class T> T atomicSub(T* p, std::type_identity_t<T> v) {
  return emu::Update(p, [v](T x) { return static_cast<T>(x - v); });
}
template <class T> T atomicMax(T* p, std::type_identity_t<T> v) {
  return emu::Update(p, [v](T x) { return x < v ? v : x; });
}
template <class T> T atomicMin(T* p, std::type_identity_t<T> v) {
  return emu::Update(p, [v](T x) { return v < x ? v : x; });
}
template <class T> T atomicAnd(T* p, std::type_identity_t<T> v) {
  return emu::Update(p, [v](T x) { return x & v; });
}
template <class T> T atomicOr(T* p, std::type_identity_t<T> v) {
  return emu::Update(p, [v](T x) { return x | v; });
}
template <class T> T atomicXor(T* p, std::type_identity_t<T> v) {
  return emu::Update(p, [v](T x) { return x ^ v; });
}
template <class T> T atomicExch(T* p, std::type_identity_t<T> v) {
  return emu::Update(p, [v](T) { return v; });
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return emu::Update(p, [=](T x) { return x == expected ? v : x; });
}

template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> void __stcs(T* p, T v) { *p = v; }
template <class T> void __stcg(T* p, T v) { *p = v; }

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1) << (31 - i);
  return y;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= static_cast<unsigned>(bytes >> (selector >> i * 4 & 7) * 8 & 0xff) << i * 8;
  }
  return out;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((uint64_t{high} << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline int __mulhi(int x, int y) { return static_cast<int>(int64_t{x} * y >> 32); }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(uint64_t{x} * y >> 32);
}
inline long long __mul64hi(long long x, long long y) {
  return static_cast<long long>(static_cast<__int128>(x) * y >> 64);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

namespace emu {
// A conversion that saturates, with 0 for NaN: what is undefined in C++ has a value on the device.
template <class To, class From>
To Saturate(From x) {
  if (x != x) return 0;
  using Limits = std::numeric_limits<To>;
  // The first value beyond, which a float has exactly.
  if (x >= std::ldexp(From{1}, Limits::digits)) return Limits::max();
  return x < static_cast<From>(Limits::min()) ? Limits::min() : static_cast<To>(x);
}
}  // namespace emu
inline int __float2int_rn(float x) { return emu::Saturate<int>(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return emu::Saturate<int>(std::trunc(x)); }
inline int __float2int_rd(float x) { return emu::Saturate<int>(std::floor(x)); }
inline int __float2int_ru(float x) { return emu::Saturate<int>(std::ceil(x)); }
inline unsigned __float2uint_rn(float x) { return emu::Saturate<unsigned>(std::nearbyint(x)); }
inline unsigned __float2uint_rz(float x) { return emu::Saturate<unsigned>(std::trunc(x)); }
inline long long __float2ll_rn(float x) { return emu::Saturate<long long>(std::nearbyint(x)); }
inline long long __float2ll_rz(float x) { return emu::Saturate<long long>(std::trunc(x)); }
inline long long __double2ll_rn(double x) { return emu::Saturate<long long>(std::nearbyint(x)); }

// Fast on the device, exact to a rounding here.
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
inline float rsqrtf(float x) { return static_cast<float>(1 / std::sqrt(static_cast<double>(x))); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }

// Never contracted to other operations, on both sides.
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

namespace emu {
template <class T> T Least(T a, T b) { return b < a ? b : a; }
template <class T> T Greatest(T a, T b) { return a < b ? b : a; }
}  // namespace emu
// The device's overloads; of a float and NaN they are the float.
#define EMU_MIN_MAX(T, A, B, least, greatest) \
  inline T min(A a, B b) { return least; }    \
  inline T max(A a, B b) { return greatest; }
#define EMU_MIN_MAX_INTEGER(T, A, B) \
  EMU_MIN_MAX(T, A, B, emu::Least(static_cast<T>(a), static_cast<T>(b)), \
              emu::Greatest(static_cast<T>(a), static_cast<T>(b)))
#define EMU_MIN_MAX_INTEGERS(T)                            \
  EMU_MIN_MAX_INTEGER(T, T, T)                             \
  EMU_MIN_MAX_INTEGER(unsigned T, unsigned T, unsigned T)  \
  EMU_MIN_MAX_INTEGER(unsigned T, T, unsigned T)           \
  EMU_MIN_MAX_INTEGER(unsigned T, unsigned T, T)
EMU_MIN_MAX_INTEGERS(int)
EMU_MIN_MAX_INTEGERS(long)
EMU_MIN_MAX_INTEGERS(long long)
EMU_MIN_MAX(float, float, float, fminf(a, b), fmaxf(a, b))
EMU_MIN_MAX(double, double, double, fmin(a, b), fmax(a, b))
EMU_MIN_MAX(double, float, double, fmin(a, b), fmax(a, b))
EMU_MIN_MAX(double, double, float, fmin(a, b), fmax(a, b))
#undef EMU_MIN_MAX_INTEGERS
#undef EMU_MIN_MAX_INTEGER
#undef EMU_MIN_MAX
// clang-format on
