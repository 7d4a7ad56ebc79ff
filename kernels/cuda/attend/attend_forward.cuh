// Flash attention forward (Dao et al. 2022): a block of four warps for 64 query slots of one head,
// a warp for 16, or for twice as many of both (kTiles 2). Keys and values pass through two buffers
// of shared memory, values while scores are computed and the next keys while weights are; scores,
// weights and sums stay in registers.
//
// Bound: of 16-bit elements shared memory, from which each warp reads all keys and values for its
// rows, of float32 the tensor cores (tests/bench/README.md counts both, and instructions). The
// tensor cores alone would take 4 x 64 x 64 x D FLOPs a tile of 16-bit elements, three times that
// at half of the rate with float32. Few queries on many keys: the bytes of k and v.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attend/forward_block.cuh"
#include "kernels/cuda/attend/forward_output.cuh"
#include "kernels/cuda/attend/forward_scores.cuh"

namespace attnd::cuda {

// Rows of q that stand in no slot.
SIMT_FN void StoreUnplaced(const AttendData& p, const AttendHead& head, const ForwardPlace& place) {
  if (head.query_rows == nullptr || place.part != 0 || place.value_part != 0) return;
  const int64_t slot_tiles = (head.queries + kTile - 1) / kTile;
  if (place.rank < slot_tiles) return;
  const float sink = p.is_softmax() ? SinkOf(p, head.b, head.h) : -INFINITY;
  for (int i = threadIdx.x / 32; i < kTile; i += kAttendThreads / 32) {
    const int64_t row = (place.rank - slot_tiles) * kTile + i;
    if (row >= p.Nq) return;
    const PatternData& pattern = *head.pattern;
    if (row < pattern.placed_rows && pattern.slot_of_query[row] >= 0) continue;
    const int64_t at = p.out.Head(head.b, head.h) + row * p.out.row;
    for (int c = threadIdx.x % 32; c < p.Dv; c += 32) {
      StoreFloat(p.out.data, p.out.dtype, at + c, 0.0f);
    }
    if (p.is_softmax() && threadIdx.x % 32 == 0) {
      static_cast<float*>(p.lse.data)[p.lse.Head(head.b, head.h) + row * p.lse.row] =
          row < head.nq ? sink : -INFINITY;
    }
  }
}

// Blocks of a processor at once, whose registers they share.
template <class T, int kWidth, bool kStreams, bool kTerms, int kTiles>
constexpr int kBlocksAtOnce =
    kTiles == 1 && kWidth == 64 && !kStreams && !std::is_same_v<T, float> ? 3 : 2;

template <class T, int kWidth, bool kStreams, bool kTerms, int kTiles>
__global__ void __launch_bounds__(kAttendThreads,
                                  kBlocksAtOnce<T, kWidth, kStreams, kTerms, kTiles>)
    AttendForward(const __grid_constant__ Problems<ForwardData> problems) {
  const auto found = FindPlace(problems);
  const ForwardData& data = found.problem;
  simt::SharedTiles shared;
  auto* constants = shared.Take<ForwardConstants<kTiles>>(1);
  bool has_tile = false;
  if (threadIdx.x == 0) has_tile = constants->template Set<T>(data, found.block);
  if (!__syncthreads_or(has_tile)) {
    if (kTiles == 1) StoreUnplaced(data.p, constants->head, constants->place);
    return;
  }
  ForwardBlock<T, kWidth, kStreams, kTerms, kTiles>(data, *constants, shared).Run();
}

template <class T, int kWidth, bool kStreams, bool kTerms, int kTiles>
ForwardForm NewForm(bool has_relative) {
  return {AttendForward<T, kWidth, kStreams, kTerms, kTiles>,
          ForwardShape<T, kWidth, kStreams, kTerms, kTiles>::SharedBytes(has_relative)};
}

template <class T>
ForwardForm FormOf(int width, bool has_terms, bool has_relative) {
  // Streamed problems are few: one kernel serves them.
  if (width == 0) return NewForm<T, 64, true, true, 1>(has_relative);
  if (width == 64) {
    return has_terms ? NewForm<T, 64, false, true, 1>(false)
                     : NewForm<T, 64, false, false, 1>(false);
  }
  return has_terms ? NewForm<T, 128, false, true, 1>(false)
                   : NewForm<T, 128, false, false, 1>(false);
}

template <class T>
ForwardForm PairsOf(int width) {
  return width == 64 ? NewForm<T, 64, false, false, 2>(false)
                     : NewForm<T, 128, false, false, 2>(false);
}

}  // namespace attnd::cuda
