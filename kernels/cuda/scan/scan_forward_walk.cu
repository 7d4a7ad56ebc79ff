#include "kernels/cuda/scan/scan_forward_walk.cuh"

#include "kernels/cuda/scan/scan_walk_launch.h"

namespace attnd::cuda {

DeviceStatus WalkForward(CudaDevice& device, Stream& stream, const ScanWorks& works,
                         bool over_features, const ForwardPass& pass) {
  return LaunchWalks(device, works, over_features, pass.whole_lines,
                     [&](int number, ProblemList<ScanWork>& list, const LaunchShape& shape) {
                       return WithWalkShape(number, [&](auto walk) {
                         using S = decltype(walk);
                         const auto kernel =
                             over_features ? &ScanForward<S, true> : &ScanForward<S, false>;
                         return LaunchOver(device, stream, shape, kernel, list, pass);
                       });
                     });
}

}  // namespace attnd::cuda
