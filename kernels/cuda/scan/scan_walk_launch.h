// Launches of walks: a list for each shape.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/cuda/scan/scan_launch.h"
#include "kernels/cuda/scan/scan_walk.cuh"

namespace attnd::cuda {

// Calls launch(shape, list, launch_shape) for problems of each shape of walks.
template <class F>
DeviceStatus LaunchWalks(CudaDevice& device, const ScanWorks& works, bool over_features,
                         bool whole_lines, const F& launch) {
  struct Walks {
    ProblemList<ScanWork> list;
    LaunchShape shape;
    double flops = 0, bytes = 0;
    int warps = 0;
  };
  std::array<Walks, kWalkShapes> all;
  for (const ScanWork* w : works) {
    const WalkPlan plan(*w, over_features);
    Walks& walks = all[static_cast<size_t>(plan.shape)];
    const int64_t units = whole_lines ? w->B : w->segments;
    walks.list.Add(*w, units * w->Hkv * plan.slices);
    walks.warps = std::max(walks.warps, plan.warps + (plan.pitch > plan.columns ? 1 : 0));
    walks.shape.shared_bytes = std::max(walks.shape.shared_bytes, WalkSharedBytes(plan));
    // Lanes beyond K and N work, too.
    const double rows =
        static_cast<double>(w->B) * static_cast<double>(w->Hkv * w->Nk + w->H * w->Nq);
    const double elements =
        static_cast<double>(SizeOfWalk(plan.shape).k) * plan.pitch * plan.slices;
    walks.flops += 2 * elements * rows * (w->delta ? 1.5 : 1);
    walks.bytes += 4.0 * rows * (plan.K * plan.slices + 2 * plan.N);
  }
  for (int shape = 0; shape < kWalkShapes; ++shape) {
    Walks& walks = all[static_cast<size_t>(shape)];
    if (walks.list.empty()) continue;
    walks.shape.threads = walks.warps * simt::kWarp;
    // A twelfth of FMA, as an H200 measured it: sums over lanes, and waits.
    walks.shape.seconds = CudaOf(device).Seconds(12 * walks.flops, walks.bytes);
    DeviceStatus status = launch(shape, walks.list, walks.shape);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace attnd::cuda
