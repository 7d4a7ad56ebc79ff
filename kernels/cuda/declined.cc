// Launches without a kernel: ops composes those that it can.
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

DeviceStatus Declined() { return {DeviceStatus::Code::kDeclined, "cuda: no such kernel"}; }

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const AttendArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const AttendGradArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const MergeArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const MergeGradArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const ScanArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const ScanGradArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const MatMulArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const ElementwiseArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const FeatureRowsArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const RandomFeaturesArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const RandomFeaturesGradArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const ReduceArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const SoftmaxArgs&) {
  return Declined();
}

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

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const PoolArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const DepthwiseConvArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const DepthwiseConvGradArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const GatherRowsArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const ScatterRowsArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const SortArgs&) {
  return Declined();
}

template <>
DeviceStatus RunOnCuda(CudaDevice&, Stream&, const FftArgs&) {
  return Declined();
}

}  // namespace attnd::cuda
