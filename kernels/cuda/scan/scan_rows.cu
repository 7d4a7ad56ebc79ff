#include "kernels/cuda/scan/scan_rows.cuh"

#include <algorithm>
#include <limits>

#include "kernels/cuda/launch_parts.h"
#include "kernels/cuda/scan/scan_launch.h"

namespace attnd::cuda {
namespace {

struct Rows {
  ProblemList<ScanWork> list;
  LaunchShape shape;
};

// blocks(work) blocks of each work that move bytes(work).
template <class Blocks, class Bytes>
Rows RowsOver(const CudaDevice& device, const ScanWorks& works, const Blocks& blocks,
              const Bytes& bytes) {
  Rows rows;
  double moved = 0, block_moved = 0;
  for (const ScanWork* w : works) {
    rows.list.Add(*w, blocks(*w));
    const auto own = static_cast<double>(bytes(*w));
    moved += own;
    if (blocks(*w) > 0) block_moved = std::max(block_moved, own / static_cast<double>(blocks(*w)));
  }
  rows.shape.threads = kScanThreads;
  rows.shape.shared_bytes = simt::SharedBytes<float>(kScanWarps);
  rows.shape.seconds = CudaOf(device).Seconds(0, moved, 0, block_moved);
  return rows;
}

template <class Blocks, class Bytes, class... A>
DeviceStatus LaunchRows(CudaDevice& device, Stream& stream, const ScanWorks& works,
                        const Blocks& blocks, const Bytes& bytes,
                        void (*kernel)(Problems<ScanWork>, A...),
                        const std::type_identity_t<A>&... args) {
  Rows rows = RowsOver(device, works, blocks, bytes);
  return LaunchOver(device, stream, rows.shape, kernel, rows.list, args...);
}

int64_t RowsOf(const ScanWork& w) { return w.B * (w.Hkv * w.Nk + w.H * w.Nq); }
int64_t LinesOf(const ScanWork& w) { return w.B * w.Hkv; }

// Of a block of each line, in launches of kLinePart positions.
DeviceStatus LaunchLines(CudaDevice& device, Stream& stream, const ScanWorks& works,
                         void (*kernel)(Problems<ScanWork>, int64_t)) {
  int64_t most = 1;
  for (const ScanWork* w : works) most = std::max(most, w->most_segments * kScanSegment);
  Rows rows = RowsOver(device, works, LinesOf, [](const ScanWork& w) { return 8 * RowsOf(w); });
  return LaunchParts(
      stream, rows.shape, DivideUp(most, kLinePart), [&](const LaunchShape& shape, int64_t part) {
        return LaunchOver(device, stream, shape, kernel, rows.list, part * kLinePart);
      });
}

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
  return LaunchLines(device, stream, works, &ScanKeyShifts);
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
  return LaunchLines(device, stream, works, &ScanTopLifts);
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
