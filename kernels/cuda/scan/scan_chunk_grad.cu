#include "kernels/cuda/scan/scan_chunk_grad.cuh"

#include "kernels/cuda/scan/scan_chunk_launch.h"

namespace attnd::cuda {

DeviceStatus FindChunkGrads(CudaDevice& device, Stream& stream, const ScanWorks& works,
                            const ChunkGradPass& pass) {
  DeviceStatus status = LaunchChunks<64>(device, stream, works, false, &ScanChunkGrad<64>, pass);
  if (!status.ok()) return status;
  return LaunchChunks<kChunkMostWidth>(device, stream, works, false,
                                       &ScanChunkGrad<kChunkMostWidth>, pass);
}

}  // namespace attnd::cuda
