// Launches without a kernel: ops composes those that it can.
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

DeviceStatus Declined() { return {DeviceStatus::Code::kDeclined, "cuda: no such kernel"}; }

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const CumulativeArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const LayerNormArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const LayerNormGradArgs&) {
  return Declined();
}

}  // namespace attnd::cuda
