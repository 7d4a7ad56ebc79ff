// What CpuBackend calls, one function for each of Backend: implemented in the files of their names.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace attnd {

class CpuBackend;

[[nodiscard]] absl::Status CpuMerge(CpuBackend& backend, Stream& stream, const MergeArgs& args);
[[nodiscard]] absl::Status CpuMergeGrad(CpuBackend& backend, Stream& stream,
                                        const MergeGradArgs& args);
[[nodiscard]] absl::Status CpuMatMul(CpuBackend& backend, Stream& stream, const MatMulArgs& args);
[[nodiscard]] absl::Status CpuElementwise(CpuBackend& backend, Stream& stream,
                                          const ElementwiseArgs& args);
[[nodiscard]] absl::Status CpuReduce(CpuBackend& backend, Stream& stream, const ReduceArgs& args);
[[nodiscard]] absl::Status CpuSoftmax(CpuBackend& backend, Stream& stream, const SoftmaxArgs& args);
[[nodiscard]] absl::Status CpuCumulative(CpuBackend& backend, Stream& stream,
                                         const CumulativeArgs& args);
[[nodiscard]] absl::Status CpuLayerNorm(CpuBackend& backend, Stream& stream,
                                        const LayerNormArgs& args);
[[nodiscard]] absl::Status CpuPool(CpuBackend& backend, Stream& stream, const PoolArgs& args);
[[nodiscard]] absl::Status CpuDepthwiseConv(CpuBackend& backend, Stream& stream,
                                            const DepthwiseConvArgs& args);
[[nodiscard]] absl::Status CpuDepthwiseConvGrad(CpuBackend& backend, Stream& stream,
                                                const DepthwiseConvGradArgs& args);
[[nodiscard]] absl::Status CpuGatherRows(CpuBackend& backend, Stream& stream,
                                         const GatherRowsArgs& args);
[[nodiscard]] absl::Status CpuScatterRows(CpuBackend& backend, Stream& stream,
                                          const ScatterRowsArgs& args);
[[nodiscard]] absl::Status CpuSort(CpuBackend& backend, Stream& stream, const SortArgs& args);
[[nodiscard]] absl::Status CpuRealFft2(CpuBackend& backend, Stream& stream, const FftArgs& args);
[[nodiscard]] absl::Status CpuUpload(CpuBackend& backend, Stream& stream, void* destination,
                                     std::span<const std::span<const std::byte>> spans);

}  // namespace attnd
