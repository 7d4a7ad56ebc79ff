// The delta rule (Yang et al. 2024, eq. 1) on a state X [rows, lanes].
#if defined(ATTND_CPU_SCAN_DELTA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_DELTA_INL_H_
#undef ATTND_CPU_SCAN_DELTA_INL_H_
#else
#define ATTND_CPU_SCAN_DELTA_INL_H_
#endif

#include "kernels/cpu/scan/scan_delta_group-inl.h"
#include "kernels/cpu/scan/scan_delta_token-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

namespace recur_internal {

// Runs whole groups of tokens, if the recurrence is one of those that need no decay and at most one
// query head; returns their number.
inline int64_t RecurGroups(const DeltaRecurrence& r) {
  const int64_t groups = r.tokens / kGroup;
  if (groups == 0 || r.reads + r.updates > 1) return 0;
  if (r.reads > 0) return RecurGroupsWith<Other::kReads>(r, groups);
  if (r.updates > 0) return RecurGroupsWith<Other::kAdds>(r, groups);
  return RecurGroupsWith<Other::kNone>(r, groups);
}

}  // namespace recur_internal

// REQUIRES: lanes is a multiple of 16; decay is kNone, kRowsFirst or kRowsLast; rows of key and
// left end in zeros up to whole vectors; at most kScanBlock tokens.
HWY_NOINLINE HWY_MAYBE_UNUSED static void RecurDelta(Decay decay, const DeltaRecurrence& r) {
  using recur_internal::RecurDeltaWith, recur_internal::RecurGroups, recur_internal::kGroup;
  if (decay == Decay::kRowsFirst) return RecurDeltaWith<Decay::kRowsFirst>(r);
  if (decay == Decay::kRowsLast) return RecurDeltaWith<Decay::kRowsLast>(r);
  const int64_t done = RecurGroups(r) * kGroup;
  if (done < r.tokens) RecurDeltaWith<Decay::kNone>(r.From(done));
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
