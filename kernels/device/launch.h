// A launch: one primitive with its arguments, over a list of problems.
#pragma once

#include <variant>

#include "kernels/device/attend.h"
#include "kernels/device/depthwise_conv.h"
#include "kernels/device/elementwise.h"
#include "kernels/device/feature_rows.h"
#include "kernels/device/fft.h"
#include "kernels/device/gather.h"
#include "kernels/device/matmul.h"
#include "kernels/device/merge.h"
#include "kernels/device/pool.h"
#include "kernels/device/random_features.h"
#include "kernels/device/reduce.h"
#include "kernels/device/scan.h"

namespace attnd {

// It owns everything but the device memory that its views point to, so that a device may keep it
// and run it later. A new primitive is one more alternative.
using Launch =
    std::variant<AttendArgs, AttendGradArgs, MergeArgs, MergeGradArgs, ScanArgs, ScanGradArgs,
                 MatMulArgs, ElementwiseArgs, FeatureRowsArgs, RandomFeaturesArgs,
                 RandomFeaturesGradArgs, ReduceArgs, SoftmaxArgs, CumulativeArgs, LayerNormArgs,
                 LayerNormGradArgs, PoolArgs, DepthwiseConvArgs, DepthwiseConvGradArgs,
                 GatherRowsArgs, ScatterRowsArgs, SortArgs, FftArgs>;

// Calls f(view) for every view of every problem, those not given() included: for devices that check
// or translate addresses.
template <class F>
void ForEachView(const Launch& launch, const F& f) {
  std::visit(
      [&](const auto& args) {
        for (const auto& problem : args.problems) ForEachView(problem, f);
      },
      launch);
}

}  // namespace attnd
