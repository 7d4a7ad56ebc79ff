// The scan kernels, built once per instruction set.
#include "kernels/cpu/scan_item.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/scan_kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/scan_forward-inl.h"
#include "kernels/cpu/scan_grad-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

void ScanItemForward(const ScanItem& item, float* scratch) { ScanForward(item, scratch).Run(); }
void ScanItemBackward(const ScanItem& item, float* scratch) { ScanGrad(item, scratch).Run(); }

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

ScanKernels ScanKernelsOf(Isa isa) {
  return {.forward = Choose(isa, HWY_CHOOSE_SSE4(ScanItemForward), HWY_CHOOSE_AVX2(ScanItemForward),
                            HWY_CHOOSE_AVX3(ScanItemForward)),
          .backward = Choose(isa, HWY_CHOOSE_SSE4(ScanItemBackward),
                             HWY_CHOOSE_AVX2(ScanItemBackward), HWY_CHOOSE_AVX3(ScanItemBackward))};
}

}  // namespace attnd
#endif
