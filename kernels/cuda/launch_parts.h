// Launches one after the other, each of which goes on with what the one before left: work of few
// long blocks, which nothing could end.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_rates.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda {

// Calls launch(shape, part) for parts [0, parts) until one fails. `shape`: of all parts together,
// with one launch; what is left to a call is its share. A plan counts all parts in one call: there
// may be many.
template <class F>
DeviceStatus LaunchParts(Stream& stream, LaunchShape shape, int64_t parts, const F& launch) {
  shape.seconds += static_cast<double>(parts - 1) * Cuda::kLaunchSeconds;
  if (stream.is_dry()) return launch(shape, int64_t{0});
  shape.seconds /= static_cast<double>(parts);
  shape.most_seconds /= static_cast<double>(parts);
  for (int64_t part = 0; part < parts; ++part) {
    if (DeviceStatus status = launch(shape, part); !status.ok()) return status;
  }
  return {};
}

}  // namespace attnd::cuda
