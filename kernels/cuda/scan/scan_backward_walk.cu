#include "kernels/cuda/scan/scan_backward_walk.cuh"

#include "kernels/cuda/scan/scan_walk_launch.h"

namespace attnd::cuda {

DeviceStatus WalkBackward(CudaDevice& device, Stream& stream, const ScanWorks& works,
                          bool over_features, const BackwardPass& pass) {
  ScanWorks by_chunks, by_keys;
  for (const ScanWork* w : works) {
    if (!GradsGoByChunks(*w)) {
      by_keys.push_back(w);
    } else if (pass.local || over_features || w->dv.given) {
      by_chunks.push_back(w);
    }
  }
  DeviceStatus status =
      pass.local ? FindChunkStates(device, stream, by_chunks, {.backward = true, .all = pass.first})
                 : FindChunkGrads(device, stream, by_chunks,
                                  {over_features ? ChunkGradPass::kKeys : ChunkGradPass::kValues});
  if (!status.ok()) return status;
  return LaunchWalks(device, stream, by_keys, over_features, pass,
                     [&](int number, ProblemList<ScanWork>& list, const LaunchShape& shape,
                         const BackwardPass& part) {
                       return WithWalkShape(number, [&](auto walk) {
                         using S = decltype(walk);
                         const auto kernel =
                             over_features ? &ScanBackward<S, true> : &ScanBackward<S, false>;
                         return LaunchOver(device, stream, shape, kernel, list, part);
                       });
                     });
}

}  // namespace attnd::cuda
