// Launches of scan's passes, each over all problems that need it.
#pragma once

#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/scan/scan_passes.h"
#include "kernels/cuda/scan/scan_work.h"

namespace attnd::cuda {

using ScanWorks = std::vector<const ScanWork*>;

// Whether there are kernels for a problem.
bool FitsScan(const ScanWork& work, bool with_gradients);
// Blocks of a walk that share a problem's columns of v, or its features.
int64_t ScanSlices(const ScanWork& work, bool over_features);

// Those of works that go by chunks (GoesByChunks): states of segments alone, and WalkForward over
// columns from states before segments.
DeviceStatus FindChunkStates(CudaDevice& device, Stream& stream, const ScanWorks& works,
                             const ChunkStatesPass& pass);
DeviceStatus WalkChunks(CudaDevice& device, Stream& stream, const ScanWorks& works,
                        const ForwardPass& pass);
// Of those whose gradients do, too (GradsGoByChunks).
DeviceStatus FindChunkGrads(CudaDevice& device, Stream& stream, const ScanWorks& works,
                            const ChunkGradPass& pass);
DeviceStatus WalkForward(CudaDevice& device, Stream& stream, const ScanWorks& works,
                         bool over_features, const ForwardPass& pass);
DeviceStatus WalkBackward(CudaDevice& device, Stream& stream, const ScanWorks& works,
                          bool over_features, const BackwardPass& pass);
DeviceStatus FindScanShifts(CudaDevice& device, Stream& stream, const ScanWorks& works);
DeviceStatus FindScanDecays(CudaDevice& device, Stream& stream, const ScanWorks& works);
DeviceStatus CombineScanStates(CudaDevice& device, Stream& stream, const ScanWorks& works,
                               const CombinePass& pass);
DeviceStatus FindScanFactors(CudaDevice& device, Stream& stream, const ScanWorks& works);
DeviceStatus FindScanTopLifts(CudaDevice& device, Stream& stream, const ScanWorks& works);
DeviceStatus SumScanSlices(CudaDevice& device, Stream& stream, const ScanWorks& works,
                           bool of_beta);
// Zeros, in lse -inf, in rows of outputs that no walk writes.
DeviceStatus FillScanBlanks(CudaDevice& device, Stream& stream, const ScanWorks& works);

}  // namespace attnd::cuda
