// Launches of kernels of chunks.
#pragma once

#include <algorithm>

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
  double flops = 0, bytes = 0, block_flops = 0, block_bytes = 0;
  for (const ScanWork* w : works) {
    if (ChunkWidth(*w) != kWidth) continue;
    const int64_t blocks = w->segments * w->Hkv;
    list.Add(*w, blocks);
    const auto keys = static_cast<double>(w->B * w->Hkv * w->Nk);
    const double queries = of_states ? 0 : static_cast<double>(w->B * w->H * w->Nq);
    const double state = 2.0 * kWidth * kWidth, chunk = 2.0 * kChunk * 2 * kWidth * 5 / 8;
    const double own_flops = keys * state + queries * (state + chunk);
    double own_bytes =
        static_cast<double>(w->D + w->Dv) * (keys * static_cast<double>(SizeOf(w->k.dtype)) +
                                             queries * static_cast<double>(SizeOf(w->q.dtype)));
    own_bytes += 4 * static_cast<double>(blocks * w->state_floats());
    flops += own_flops;
    bytes += own_bytes;
    block_flops = std::max(block_flops, own_flops / static_cast<double>(blocks));
    block_bytes = std::max(block_bytes, own_bytes / static_cast<double>(blocks));
  }
  LaunchShape shape;
  shape.threads = ChunkShape<kWidth>::kThreads;
  shape.shared_bytes = of_states ? ChunkShape<kWidth>::kKeysBytes : ChunkShape<kWidth>::kRowsBytes;
  const Cuda& cuda = CudaOf(device);
  const double as_flops = cuda.flops / (kShare * cuda.tensor_flops);
  shape.seconds = cuda.Seconds(flops * as_flops, bytes, block_flops * as_flops, block_bytes);
  return LaunchOver(device, stream, shape, kernel, list, pass);
}

}  // namespace attnd::cuda
