#include "kernels/cuda/scan/scan_rows.cuh"

#include <limits>

#include "kernels/cuda/scan/scan_launch.h"

namespace attnd::cuda {
namespace {

// A launch over `works`, of blocks(work) blocks that move bytes(work).
template <class Blocks, class Bytes, class... A>
DeviceStatus LaunchRows(CudaDevice& device, Stream& stream, const ScanWorks& works,
                        const Blocks& blocks, const Bytes& bytes,
                        void (*kernel)(Problems<ScanWork>, A...),
                        const std::type_identity_t<A>&... args) {
  ProblemList<ScanWork> list;
  double moved = 0;
  for (const ScanWork* w : works) {
    list.Add(*w, blocks(*w));
    moved += static_cast<double>(bytes(*w));
  }
  LaunchShape shape;
  shape.threads = kScanThreads;
  shape.shared_bytes = simt::SharedBytes<float>(kScanWarps);
  shape.seconds = CudaOf(device).Seconds(0, moved);
  return LaunchOver(device, stream, shape, kernel, list, args...);
}

int64_t RowsOf(const ScanWork& w) { return w.B * (w.Hkv * w.Nk + w.H * w.Nq); }
int64_t LinesOf(const ScanWork& w) { return w.B * w.Hkv; }

}  // namespace

bool FitsScan(const ScanWork& work, bool with_gradients) {
  return WalkPlan(work, false).rows > 0 && (!with_gradients || WalkPlan(work, true).rows > 0);
}

int64_t ScanSlices(const ScanWork& work, bool over_features) {
  return WalkPlan(work, over_features).slices;
}

DeviceStatus FindScanShifts(CudaDevice& device, Stream& stream, const ScanWorks& works) {
  DeviceStatus status = LaunchRows(
      device, stream, works, [](const ScanWork& w) { return DivideUp(RowsOf(w), kScanWarps); },
      [](const ScanWork& w) { return 4 * RowsOf(w) * w.D; }, &ScanRowMaxima);
  if (!status.ok()) return status;
  return LaunchRows(
      device, stream, works, LinesOf, [](const ScanWork& w) { return 8 * RowsOf(w); },
      &ScanKeyShifts);
}

DeviceStatus FindScanDecays(CudaDevice& device, Stream& stream, const ScanWorks& works) {
  return LaunchRows(
      device, stream, works, [](const ScanWork& w) { return w.segments * w.Hkv; },
      [](const ScanWork& w) { return 4 * LinesOf(w) * w.Nk * w.decay_width(); }, &ScanDecays);
}

DeviceStatus CombineScanStates(CudaDevice& device, Stream& stream, const ScanWorks& works,
                               const CombinePass& pass) {
  return LaunchRows(
      device, stream, works,
      [](const ScanWork& w) { return LinesOf(w) * DivideUp(w.state_floats(), kScanThreads); },
      [](const ScanWork& w) { return 8 * w.segments * w.Hkv * w.state_floats(); }, &ScanCombine,
      pass);
}

DeviceStatus FindScanFactors(CudaDevice& device, Stream& stream, const ScanWorks& works) {
  return LaunchRows(
      device, stream, works,
      [](const ScanWork& w) { return DivideUp(w.B * w.H * w.Nq, kScanWarps); },
      [](const ScanWork& w) { return 24 * RowsOf(w); }, &ScanRowFactors);
}

DeviceStatus FindScanTopLifts(CudaDevice& device, Stream& stream, const ScanWorks& works) {
  return LaunchRows(
      device, stream, works, LinesOf, [](const ScanWork& w) { return 8 * RowsOf(w); },
      &ScanTopLifts);
}

DeviceStatus SumScanSlices(CudaDevice& device, Stream& stream, const ScanWorks& works,
                           bool of_beta) {
  return LaunchRows(
      device, stream, works,
      [](const ScanWork& w) { return DivideUp(LinesOf(w) * w.Nk, kScanThreads); },
      [](const ScanWork& w) { return 8 * LinesOf(w) * w.Nk; }, &ScanSumSlices, of_beta);
}

DeviceStatus FillScanBlanks(CudaDevice& device, Stream& stream, const ScanWorks& works) {
  ProblemList<ScanBlank> list;
  const auto add = [&](const ScanWork& w, const ScanView& to, bool of_queries, int width,
                       float value) {
    if (!to.given) return;
    const ScanBlank blank = {.to = to,
                             .lines = w.lines,
                             .heads = of_queries ? w.H : w.Hkv,
                             .N = of_queries ? w.Nq : w.Nk,
                             .width = width,
                             .of_queries = of_queries,
                             .value = value};
    list.Add(blank, w.B * blank.heads * DivideUp(blank.N, kBlankRows));
  };
  for (const ScanWork* w : works) {
    if (w->has_blank_queries) {
      add(*w, w->out, true, w->Dv, 0);
      add(*w, w->lse, true, 1, -std::numeric_limits<float>::infinity());
      add(*w, w->dq, true, w->D, 0);
    }
    if (w->has_blank_keys) {
      add(*w, w->dk, false, w->D, 0);
      add(*w, w->dv, false, w->Dv, 0);
      if (w->feature_decays) add(*w, w->dlog_decay, false, w->D, 0);
    }
  }
  LaunchShape shape;
  shape.threads = kScanThreads;
  shape.seconds = CudaOf(device).Seconds(0, static_cast<double>(list.blocks()) * 64);
  return LaunchOver(device, stream, shape, &ScanFillBlanks, list);
}

}  // namespace attnd::cuda
