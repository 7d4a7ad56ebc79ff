// The forward of scan, built once per instruction set.
#include "kernels/cpu/scan/scan_item.h"
#include "kernels/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/scan/scan_forward.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/scan/scan_forward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

void RunForward(const ScanItem& item, float* scratch) { ScanForward(item, scratch).Run(); }

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

ScanKernel* ScanForwardOf(Isa isa) {
  return Choose(isa, HWY_CHOOSE_SSE4(RunForward), HWY_CHOOSE_AVX2(RunForward),
                HWY_CHOOSE_AVX3(RunForward));
}

}  // namespace attnd
#endif
