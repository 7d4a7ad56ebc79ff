#include "kernels/cuda/scan/scan_forward_walk.cuh"

#include "kernels/cuda/scan/scan_walk_launch.h"

namespace attnd::cuda {

DeviceStatus WalkForward(CudaDevice& device, Stream& stream, const ScanWorks& works,
                         bool over_features, const ForwardPass& pass) {
  ScanWorks by_chunks, by_keys;
  for (const ScanWork* w : works) {
    const bool goes = over_features ? GradsGoByChunks(*w) : GoesByChunks(*w);
    (goes ? by_chunks : by_keys).push_back(w);
  }
  DeviceStatus status;
  if (over_features) {
    status = FindChunkGrads(device, stream, by_chunks, {ChunkGradPass::kQueries});
  } else if (pass.local) {
    status = FindChunkStates(device, stream, by_chunks, {.all = pass.last});
  } else {
    status = WalkChunks(device, stream, by_chunks, pass);
  }
  if (!status.ok()) return status;
  return LaunchWalks(device, stream, by_keys, over_features, pass,
                     [&](int number, ProblemList<ScanWork>& list, const LaunchShape& shape,
                         const ForwardPass& part) {
                       return WithWalkShape(number, [&](auto walk) {
                         using S = decltype(walk);
                         auto* kernel = &ScanForward<S, false, false>;
                         if (pass.whole_lines) kernel = &ScanForward<S, false, true>;
                         if (over_features) kernel = &ScanForward<S, true, false>;
                         return LaunchOver(device, stream, shape, kernel, list, part);
                       });
                     });
}

}  // namespace attnd::cuda
