// The instruction sets that CPU kernels are compiled for. The only place that configures Highway:
// include it before "hwy/foreach_target.h". A kernel file reads
//
//   #include "kernels/cpu/simd/targets.h"
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "kernels/cpu/attend/attend.cc"
//   #include "hwy/foreach_target.h"
//   #include "hwy/highway.h"
//   ... HWY_BEFORE_NAMESPACE(); namespace attnd::HWY_NAMESPACE { void Kernel(...) {} } ...
//   #if HWY_ONCE
//   namespace attnd {
//   auto* kernel = Choose(isa, HWY_CHOOSE_SSE4(Kernel), HWY_CHOOSE_AVX2(Kernel),
//                         HWY_CHOOSE_AVX3(Kernel));
//
// so that each device has its instruction set, not the process (HWY_DYNAMIC_DISPATCH is not used).
#pragma once

#include <cstdint>
#include <type_traits>

// SSE4 is the least that a kernel needs; files without Highway stay plain x86-64. NewCpuDevice
// refuses machines without it. AVX3_DL adds nothing to float32 code.
// ATTND_NO_AVX512 leaves out the target that compiles longest; a device refuses it then.
#define HWY_BASELINE_TARGETS HWY_SSE4
#ifdef ATTND_NO_AVX512
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif

namespace attnd {

enum class Isa : uint8_t { kSse4, kAvx2, kAvx512 };

// The one of three builds of a function that `isa` asks for; null where it was left out.
template <class F>
F* Choose(Isa isa, F* sse4, F* avx2, std::type_identity_t<F>* avx512) {
  return isa == Isa::kAvx512 ? avx512 : isa == Isa::kAvx2 ? avx2 : sse4;
}

}  // namespace attnd
