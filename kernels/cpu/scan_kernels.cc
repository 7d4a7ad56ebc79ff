// The scan kernels, built once per instruction set.
#include "kernels/cpu/scan_item.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/scan_kernels.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/scan_forward-inl.h"
#include "kernels/cpu/scan_grad_features-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

void RunScan(const ScanItem& item, float* scratch) {
  switch (item.job) {
    case ScanJob::kForward:
      return ScanForward(item, scratch).Run();
    case ScanJob::kRows:
      return ScanGradRows(item, scratch).Run();
    case ScanJob::kErrors:
      return ScanGradErrors(item, scratch).Run();
    case ScanJob::kColumns:
      return ScanGradColumns(item, scratch).Run();
    case ScanJob::kFeatures:
      return ScanGradFeatures(item, scratch).Run();
    case ScanJob::kBackward:
      break;
  }
  for (const ScanJob job : {ScanJob::kRows, ScanJob::kErrors, ScanJob::kColumns, ScanJob::kFeatures}) {
    ScanItem part = item;
    part.job = job;
    part.end = job == ScanJob::kFeatures ? item.problem->q.shape[3] : item.problem->v.shape[3];
    if (IsNeeded(part)) RunScan(part, scratch);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

ScanKernel* ScanKernelOf(Isa isa) {
  return Choose(isa, HWY_CHOOSE_SSE4(RunScan), HWY_CHOOSE_AVX2(RunScan), HWY_CHOOSE_AVX3(RunScan));
}

}  // namespace attnd
#endif
