// Launches of kernels of chunks.
#pragma once

#include "kernels/cuda/scan/scan_chunk_block.cuh"
#include "kernels/cuda/scan/scan_launch.h"

namespace attnd::cuda {

// Of the rate of tensor cores for 16-bit elements: three products of TF32, at half that rate, and
// what they share issue slots with.
constexpr double kShare = 0.1;

// What passes over works of a width have in common.
template <int kWidth, class Pass>
DeviceStatus LaunchChunks(CudaDevice& device, Stream& stream, const ScanWorks& works,
                          bool of_states, void (*kernel)(Problems<ScanWork>, Pass),
                          const Pass& pass) {
  ProblemList<ScanWork> list;
  double flops = 0, bytes = 0;
  for (const ScanWork* w : works) {
    if (ChunkWidth(*w) != kWidth) continue;
    list.Add(*w, w->segments * w->Hkv);
    const auto keys = static_cast<double>(w->B * w->Hkv * w->Nk);
    const double queries = of_states ? 0 : static_cast<double>(w->B * w->H * w->Nq);
    const double state = 2.0 * kWidth * kWidth, chunk = 2.0 * kChunk * 2 * kWidth * 5 / 8;
    flops += keys * state + queries * (state + chunk);
    bytes +=
        static_cast<double>(w->D + w->Dv) * (keys * static_cast<double>(SizeOf(w->k.dtype)) +
                                             queries * static_cast<double>(SizeOf(w->q.dtype)));
    bytes += 4 * static_cast<double>(w->segments * w->Hkv * w->state_floats());
  }
  LaunchShape shape;
  shape.threads = ChunkShape<kWidth>::kThreads;
  shape.shared_bytes = of_states ? ChunkShape<kWidth>::kKeysBytes : ChunkShape<kWidth>::kRowsBytes;
  const Cuda& cuda = CudaOf(device);
  shape.seconds = cuda.Seconds(flops * cuda.flops / (kShare * cuda.tensor_flops), bytes);
  return LaunchOver(device, stream, shape, kernel, list, pass);
}

}  // namespace attnd::cuda
