// The primitives on the CPU: one overload for each alternative of Launch, in the file of its name.
// Contracts: kernels/device/<primitive>.h; what is common to all: CpuDevice::Run.
#pragma once

#include "kernels/device/launch.h"
#include "kernels/device/status.h"

namespace attnd {

class CpuDevice;
class Stream;

DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const AttendArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const AttendGradArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const MergeArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const MergeGradArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const ScanArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const ScanGradArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const MatMulArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const ElementwiseArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const ReduceArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const SoftmaxArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const CumulativeArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const LayerNormArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const PoolArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const DepthwiseConvArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const DepthwiseConvGradArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const GatherRowsArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const ScatterRowsArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const SortArgs& args);
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const FftArgs& args);

}  // namespace attnd
