// The gradients of scan, built once per instruction set.
#include "kernels/cpu/scan/scan_item.h"
#include "kernels/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/scan/scan_grad.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/scan/scan_grad-inl.h"
#include "kernels/cpu/scan/scan_grad_features-inl.h"
#include "kernels/cpu/scan/scan_grad_full-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

void RunJob(const ScanItem& item, float* scratch) {
  switch (item.job) {
    case ScanJob::kRows:
      return ScanGradRows(item, scratch).Run();
    case ScanJob::kErrors:
      return ScanGradErrors(item, scratch).Run();
    case ScanJob::kColumns:
      return ScanGradColumns(item, scratch).Run();
    case ScanJob::kDots:
    case ScanJob::kFeatures:
      return ScanGradFeatures(item, scratch).Run();
    case ScanJob::kForward:
    case ScanJob::kBackward:
      break;
  }
}

void RunJobs(const ScanItem& item, float* scratch) {
  if (item.job != ScanJob::kBackward) return RunJob(item, scratch);
  if (!item.params->causal) return ScanGradFull(item, scratch).Run();
  ScanItem part = item;
  if (item.params->rule == ScanRule::kSum) {
    part.end = item.problem->q.shape[3];
    return ScanGradFeatures(part, scratch).Run();
  }
  for (const ScanJob job :
       {ScanJob::kRows, ScanJob::kErrors, ScanJob::kColumns, ScanJob::kFeatures}) {
    part.job = job;
    part.end = job == ScanJob::kFeatures ? item.problem->q.shape[3] : item.problem->v.shape[3];
    if (IsNeeded(part)) RunJob(part, scratch);
  }
}

void RunBackward(const ScanItem& item, float* scratch) {
  RunJobs(item, scratch);
  hwy::FlushStream();
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

ScanKernel* ScanBackwardOf(Isa isa) {
  return Choose(isa, HWY_CHOOSE_SSE4(RunBackward), HWY_CHOOSE_AVX2(RunBackward),
                HWY_CHOOSE_AVX3(RunBackward));
}

}  // namespace attnd
#endif
