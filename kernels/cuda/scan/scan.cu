// Attention through a state on a CUDA device.
//
// A line (sequence, kv head) is cut into segments of 256 positions: states of segments alone, in
// parallel; states before segments, in order; then outputs of all segments, in parallel. The delta
// rule's segments have no states of their own (what a key writes depends on all before): a block
// walks a line from end to end, in launches of some segments each, between which a run can end.
// Short lines, too, are one segment. Where all features decay alike, a segment goes by chunks on
// tensor cores (scan_chunks.cuh), else key by key.
#include "kernels/cuda/primitives.h"
#include "kernels/cuda/scan/scan_plan.h"
#include "kernels/cuda/scan/scan_shapes.cuh"

namespace attnd::cuda {

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const ScanArgs& args) {
  ScanPlan plan(args.params, stream);
  for (const ScanProblem& p : args.problems) {
    if (!Writes(p)) continue;
    plan.Add(p, WantsFinal(p));
    ScanWork& w = plan.works().back();
    w.has_wide_chunks = CudaOf(device).shared_bytes >= kWideChunkBytes;
    w.out = ScanViewOf(p.out);
    w.lse = ScanViewOf(p.lse);
    w.s_out = ScanViewOf(p.s_out);
    w.z_out = ScanViewOf(p.z_out);
    w.has_z = w.den != ScanDen::kOne || w.lse.given || w.z_out.given;
    if (!FitsScan(w, false)) return {DeviceStatus::Code::kDeclined, "cuda: wide state"};
  }
  if (plan.works().empty()) return {};
  const bool delta = args.params.rule == ScanRule::kDelta;
  const bool is_exp = args.params.map == FeatureMap::kExp;
  for (ScanWork& w : plan.works()) {
    if (is_exp) {
      plan.Want(&w.k_shift, w.B * w.Hkv * w.Nk);
      plan.Want(&w.q_shift, w.B * w.H * w.Nq);
    }
    if (w.most_segments == 1) continue;
    if (delta) {
      plan.Want(&w.carries, 2 * w.B * w.Hkv * w.state_floats());
      continue;
    }
    plan.Want(&w.states, (w.segments + w.B) * w.Hkv * w.state_floats());
    if (w.key_decays || w.feature_decays) {
      plan.Want(&w.decays, w.segments * w.Hkv * w.decay_width());
    }
  }
  DeviceStatus status = plan.Take();
  const auto run = [&](DeviceStatus next) { std::swap(status, next); };
  const ScanWorks all = plan.Those([](const ScanWork&) { return true; });
  const ScanWorks cut = plan.Those([](const ScanWork& w) { return w.states != nullptr; });
  const ScanWorks decaying = plan.Those([](const ScanWork& w) { return w.decays != nullptr; });
  bool wants_final = false;
  for (const ScanWork* w : cut) {
    wants_final = wants_final || w->s_out.given || w->z_out.given;
  }
  if (status.ok() && is_exp) run(FindScanShifts(device, stream, all));
  if (status.ok()) run(FindScanDecays(device, stream, decaying));
  if (status.ok()) {
    run(WalkForward(device, stream, cut, false, {.local = true, .last = wants_final}));
  }
  if (status.ok()) run(CombineScanStates(device, stream, cut, {.final = wants_final}));
  if (status.ok()) run(WalkForward(device, stream, all, false, {.whole_lines = delta}));
  if (status.ok()) run(FillScanBlanks(device, stream, all));
  return status;
}

}  // namespace attnd::cuda
