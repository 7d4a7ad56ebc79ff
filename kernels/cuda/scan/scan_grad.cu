// Gradients of attention through a state on a CUDA device (R7 of the specification).
//
// Walks over columns of v and over features, forward with S and backward with its gradient R, one
// for each kind of result; rows' normalisers and their gradients come first. Prefix states run
// forward, R runs backward; no key is ever subtracted from a state to walk back. All sums are in
// order: those over the query heads of a group within a block, those over slices of columns or
// features in a pass of their own. Walks go by chunks on tensor cores where they can
// (scan_chunks.cuh, scan_chunk_grad.cuh).
#include "kernels/cuda/primitives.h"
#include "kernels/cuda/scan/scan_plan.h"
#include "kernels/cuda/scan/scan_shapes.cuh"

namespace attnd::cuda {
namespace {

// What depends on what, of one problem.
struct Needs {
  bool dq, dk, dlog, features_forward, features_backward, columns_backward, rows;
};
Needs NeedsOf(const ScanWork& w) {
  Needs needs = {.dq = w.dq.given, .dk = w.dk.given, .dlog = w.dlog_decay.given};
  needs.features_backward = needs.dk || needs.dlog;
  needs.features_forward = needs.dq || needs.dlog || (w.delta && needs.dk);
  needs.columns_backward = w.dv.given || w.dbeta.given || w.ds0.given || w.dz0.given ||
                           (w.delta && needs.features_forward);
  needs.rows = w.den != ScanDen::kOne || w.dlse.given || w.delta;
  return needs;
}

void AddProblem(const ScanGradProblem& p, ScanPlan* plan) {
  plan->Add(p.forward, WantsFinal(p));
  ScanWork& w = plan->works().back();
  w.dout = ScanViewOf(p.dout);
  w.dlse = ScanViewOf(p.dlse);
  w.ds_out = ScanViewOf(p.ds_out);
  w.dz_out = ScanViewOf(p.dz_out);
  w.dq = ScanViewOf(p.dq);
  w.dk = ScanViewOf(p.dk);
  w.dv = ScanViewOf(p.dv);
  w.dlog_decay = ScanViewOf(p.dlog_decay);
  w.dbeta = ScanViewOf(p.dbeta);
  w.ds0 = ScanViewOf(p.ds0);
  w.dz0 = ScanViewOf(p.dz0);
  w.has_z = w.den != ScanDen::kOne || w.dlse.given || w.dz_out.given || w.dz0.given;
}

void WantScratch(size_t i, ScanPlan* plan) {
  ScanWork& w = plan->works()[i];
  const Needs needs = NeedsOf(w);
  const int64_t queries = w.B * w.H * w.Nq, keys = w.B * w.Hkv * w.Nk;
  const bool is_cut = w.most_segments > 1, is_exp = w.map == FeatureMap::kExp;
  const int64_t states = (w.segments + w.B) * w.Hkv * w.state_floats();
  // Chunks leave gradients of the first state to those who combine adjoints.
  const bool has_adjoints = is_cut || (GradsGoByChunks(w) && (w.ds0.given || w.dz0.given));
  if (is_cut || needs.dlog) plan->Want(&w.states, states);
  if (has_adjoints) plan->Want(&w.adjoints, states);
  if ((has_adjoints || needs.dlog) && (w.key_decays || w.feature_decays) && !w.delta) {
    plan->Want(&w.decays, w.segments * w.Hkv * w.decay_width());
  }
  if (is_exp) {
    plan->Want(&w.k_shift, keys);
    plan->Want(&w.q_shift, queries);
  }
  if (needs.rows) plan->Want(&w.row_d, queries);
  if (w.den != ScanDen::kOne && w.dout.given) {
    plan->Want(&w.dots, queries * DotSlices(w));
  }
  plan->Want(&w.to_num, queries);
  plan->Want(&w.to_d, queries);
  if (is_exp && w.den == ScanDen::kOne) {
    plan->Want(&w.lift, queries);
    plan->Want(&w.top_lift, w.B * w.Hkv * (w.Nq + w.Nk));
  }
  if (w.delta) {
    plan->Want(&w.errors, keys * w.Dv);
    plan->Want(&w.dwrites, keys * w.Dv);
    if (needs.features_forward) plan->Want(&w.stored, keys * w.D);
  }
  if (needs.dlog) plan->Want(&w.flow, w.B * w.Hkv * w.Nq * w.D);
  if (w.dbeta.given) plan->Want(&w.dbetas, keys * ScanSlices(w, false));
  if (needs.dlog && !w.feature_decays) plan->Want(&w.dlogs, keys * ScanSlices(w, true));
}

DeviceStatus RunPasses(CudaDevice& device, Stream& stream, const ScanPlan& plan,
                       const ScanParams& params) {
  const bool delta = params.rule == ScanRule::kDelta;
  DeviceStatus status;
  // Runs a pass over those that need it, unless one before has failed.
  const auto over = [&](const auto& who, const auto& pass) {
    const ScanWorks works = plan.Those(who);
    if (!status.ok() || works.empty()) return;
    DeviceStatus next = pass(works);
    std::swap(status, next);
  };
  const auto all = [](const ScanWork&) { return true; };
  const auto has_states = [&](const ScanWork& w) { return w.states != nullptr && !delta; };
  const auto has_adjoints = [&](const ScanWork& w) { return w.adjoints != nullptr && !delta; };
  bool wants_last = false, wants_first = false;
  for (const ScanWork* w : plan.Those(all)) {
    wants_last = wants_last || (w->dlog_decay.given && (w->ds_out.given || w->dz_out.given));
    wants_first = wants_first || w->ds0.given || w->dz0.given;
  }
  over([](const ScanWork& w) { return w.k_shift != nullptr; },
       [&](const ScanWorks& works) { return FindScanShifts(device, stream, works); });
  over([](const ScanWork& w) { return w.decays != nullptr; },
       [&](const ScanWorks& works) { return FindScanDecays(device, stream, works); });
  over(has_states, [&](const ScanWorks& works) {
    return WalkForward(device, stream, works, false, {.local = true, .last = wants_last});
  });
  over(has_states, [&](const ScanWorks& works) {
    return CombineScanStates(device, stream, works, {.final = wants_last});
  });
  over([](const ScanWork& w) { return NeedsOf(w).rows; },
       [&](const ScanWorks& works) {
         return WalkForward(device, stream, works, false, {.whole_lines = delta, .for_rows = true});
       });
  over(all, [&](const ScanWorks& works) { return FindScanFactors(device, stream, works); });
  over([](const ScanWork& w) { return w.top_lift != nullptr; },
       [&](const ScanWorks& works) { return FindScanTopLifts(device, stream, works); });
  over(has_adjoints, [&](const ScanWorks& works) {
    return WalkBackward(device, stream, works, false, {.local = true, .first = wants_first});
  });
  over(has_adjoints, [&](const ScanWorks& works) {
    return CombineScanStates(device, stream, works, {.backward = true, .final = wants_first});
  });
  over([](const ScanWork& w) { return NeedsOf(w).columns_backward; },
       [&](const ScanWorks& works) {
         return WalkBackward(device, stream, works, false, {.whole_lines = delta});
       });
  over([](const ScanWork& w) { return NeedsOf(w).features_forward; },
       [&](const ScanWorks& works) { return WalkForward(device, stream, works, true, {}); });
  over([](const ScanWork& w) { return NeedsOf(w).features_backward; },
       [&](const ScanWorks& works) { return WalkBackward(device, stream, works, true, {}); });
  over([](const ScanWork& w) { return w.dbetas != nullptr; },
       [&](const ScanWorks& works) { return SumScanSlices(device, stream, works, true); });
  over([](const ScanWork& w) { return w.dlogs != nullptr; },
       [&](const ScanWorks& works) { return SumScanSlices(device, stream, works, false); });
  over(all, [&](const ScanWorks& works) { return FillScanBlanks(device, stream, works); });
  return status;
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const ScanGradArgs& args) {
  ScanPlan plan(args.params, stream);
  for (const ScanGradProblem& p : args.problems) {
    if (!Writes(p)) continue;
    AddProblem(p, &plan);
    plan.works().back().has_wide_chunks = CudaOf(device).shared_bytes >= kWideChunkBytes;
    if (!FitsScan(plan.works().back(), true)) {
      return {DeviceStatus::Code::kDeclined, "cuda: wide state"};
    }
  }
  if (plan.works().empty()) return {};
  for (size_t i = 0; i < plan.works().size(); ++i) WantScratch(i, &plan);
  DeviceStatus status = plan.Take();
  return status.ok() ? RunPasses(device, stream, plan, args.params) : status;
}

}  // namespace attnd::cuda
