// Launches of walks: a list for each shape, and of whole lines some segments at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/launch_parts.h"
#include "kernels/cuda/scan/scan_launch.h"
#include "kernels/cuda/scan/scan_walk.cuh"

namespace attnd::cuda {

// The walks of one shape.
struct Walks {
  ProblemList<ScanWork> list;
  LaunchShape shape;
  int64_t segments = 1;                                           // of the longest line
  double flops = 0, bytes = 0, block_flops = 0, block_bytes = 0;  // the last two: of the longest
  int warps = 0;

  void Add(const ScanWork& w, bool over_features, bool whole_lines) {
    const WalkPlan plan(w, over_features);
    const int64_t blocks = (whole_lines ? w.B : w.segments) * w.Hkv * plan.slices;
    list.Add(w, blocks);
    warps = std::max(warps, plan.warps + (plan.pitch > plan.columns ? 1 : 0));
    shape.shared_bytes = std::max(shape.shared_bytes, WalkSharedBytes(plan));
    segments = std::max(segments, w.most_segments);
    // Lanes beyond K and N work, too.
    const double rows = static_cast<double>(w.B) * static_cast<double>(w.Hkv * w.Nk + w.H * w.Nq);
    const double elements =
        static_cast<double>(SizeOfWalk(plan.shape).k) * plan.pitch * plan.slices;
    // A twelfth of FMA, as an H200 measured it: sums over lanes, and waits.
    const double own_flops = 12 * 2 * elements * rows * (w.delta ? 1.5 : 1);
    const double own_bytes = 4.0 * rows * (plan.K * plan.slices + 2 * plan.N);
    flops += own_flops;
    bytes += own_bytes;
    if (blocks == 0) return;
    block_flops = std::max(block_flops, own_flops / static_cast<double>(blocks));
    block_bytes = std::max(block_bytes, own_bytes / static_cast<double>(blocks));
  }
};

// How many segments of whole lines a launch takes: as many as a slice of a launch may.
inline int64_t SegmentsOfCut(double seconds, int64_t segments) {
  const double launches = std::ceil(seconds / kSliceSeconds);
  if (launches >= static_cast<double>(segments)) return 1;
  return DivideUp(segments, std::max<int64_t>(1, static_cast<int64_t>(launches)));
}

// Calls launch(list, shape, pass) over the segments of whole lines, in cuts one after the other.
template <class Pass, class F>
DeviceStatus LaunchCuts(Stream& stream, Walks& walks, Pass pass, const F& launch) {
  const int64_t each = SegmentsOfCut(walks.shape.seconds, walks.segments);
  const int64_t launches = DivideUp(walks.segments, each);
  return LaunchParts(stream, walks.shape, launches, [&](const LaunchShape& shape, int64_t i) {
    if (stream.is_dry()) return launch(walks.list, shape, pass);
    const int64_t number = std::is_same_v<Pass, BackwardPass> ? launches - 1 - i : i;
    pass.cut = {.begin = number * each, .end = (number + 1) * each, .is_odd = i % 2 != 0};
    return launch(walks.list, shape, pass);
  });
}

// Calls launch(shape number, list, shape, pass) for works of each shape of walks, and those of
// whole lines for each cut.
template <class Pass, class F>
DeviceStatus LaunchWalks(CudaDevice& device, Stream& stream, const ScanWorks& works,
                         bool over_features, const Pass& pass, const F& launch) {
  std::array<Walks, kWalkShapes> all;
  for (const ScanWork* w : works) {
    Walks& walks = all[static_cast<size_t>(WalkPlan(*w, over_features).shape)];
    walks.Add(*w, over_features, pass.whole_lines);
  }
  for (int number = 0; number < kWalkShapes; ++number) {
    Walks& walks = all[static_cast<size_t>(number)];
    if (walks.list.empty()) continue;
    walks.shape.threads = walks.warps * simt::kWarp;
    walks.shape.seconds =
        CudaOf(device).Seconds(walks.flops, walks.bytes, walks.block_flops, walks.block_bytes);
    const auto one = [&](ProblemList<ScanWork>& list, const LaunchShape& shape, const Pass& part) {
      return launch(number, list, shape, part);
    };
    DeviceStatus status = pass.whole_lines ? LaunchCuts(stream, walks, pass, one)
                                           : one(walks.list, walks.shape, pass);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace attnd::cuda
