#include "kernels/cuda/scan/scan_chunks.cuh"

#include "kernels/cuda/scan/scan_chunk_launch.h"

namespace attnd::cuda {

DeviceStatus FindChunkStates(CudaDevice& device, Stream& stream, const ScanWorks& works,
                             const ChunkStatesPass& pass) {
  DeviceStatus status = LaunchChunks<64>(device, stream, works, true, &ScanChunkStates<64>, pass);
  if (!status.ok()) return status;
  return LaunchChunks<kChunkMostWidth>(device, stream, works, true,
                                       &ScanChunkStates<kChunkMostWidth>, pass);
}

DeviceStatus WalkChunks(CudaDevice& device, Stream& stream, const ScanWorks& works,
                        const ForwardPass& pass) {
  DeviceStatus status = LaunchChunks<64>(device, stream, works, false, &ScanChunkRows<64>, pass);
  if (!status.ok()) return status;
  return LaunchChunks<kChunkMostWidth>(device, stream, works, false,
                                       &ScanChunkRows<kChunkMostWidth>, pass);
}

}  // namespace attnd::cuda
