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
#include "kernels/cuda/attend/forward_plain.cuh"
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
      StoreLse(p, head.b, head.h, row, {row < head.nq ? sink : -INFINITY, 0});
    }
  }
}

// Blocks of a processor at once, whose registers they share. kTiles: of queries, of each.
template <class T, int kWidth, bool kStreams, int kTiles>
constexpr int kBlocksAtOnce =
    kTiles == 1 && kWidth == 64 && !kStreams && !std::is_same_v<T, float> ? 3 : 2;

template <class T, int kWidth, bool kStreams, bool kTerms>
__global__ void __launch_bounds__(kAttendThreads, kBlocksAtOnce<T, kWidth, kStreams, 1>)
    AttendForward(const __grid_constant__ Problems<ForwardData> problems) {
  using Shape = ForwardShape<T, kWidth, kStreams, kTerms>;
  const auto found = FindPlace(problems);
  const ForwardData& data = found.problem;
  simt::SharedTiles shared;
  auto* constants = shared.Take<ForwardConstants>(1);
  const ForwardTiles<T> tiles = Shape::TakeTiles(shared, 1);
  bool has_tile = false;
  if (threadIdx.x == 0) {
    const ForwardPlace place = ForwardPlace::Of(data, found.block);
    has_tile = constants->template Set<T>(data, place, place.rank, false);
  }
  if (!__syncthreads_or(has_tile)) {
    StoreUnplaced(data.p, constants->head, constants->place);
    return;
  }
  ForwardBlock<T, kWidth, kStreams, kTerms>(data, *constants, tiles, shared).Run();
}

// A tile of queries of a block that ForwardPlain did not compute.
template <class T, int kWidth>
__device__ __noinline__ void ComputeAgain(const ForwardData& data, const ForwardPlace& place,
                                          int64_t rank, bool in_pairs, ForwardConstants* constants,
                                          const ForwardTiles<T>& tiles, simt::SharedTiles& shared) {
  // No thread reads the tile before.
  __syncthreads();
  bool has_tile = false;
  if (threadIdx.x == 0) has_tile = constants->template Set<T>(data, place, rank, in_pairs);
  if (__syncthreads_or(has_tile)) {
    ForwardBlock<T, kWidth, false, false>(data, *constants, tiles, shared).Run();
  }
}

template <class T, int kWidth, int kTiles>
__global__ void __launch_bounds__(kAttendThreads, kBlocksAtOnce<T, kWidth, false, kTiles>)
    AttendPlain(const __grid_constant__ Problems<ForwardData> problems) {
  using Shape = ForwardShape<T, kWidth, false, false>;
  const auto found = FindPlace(problems);
  const ForwardData& data = found.problem;
  simt::SharedTiles shared;
  auto* plain = shared.Take<PlainConstants<T, kTiles>>(1);
  auto* constants = shared.Take<ForwardConstants>(1);
  const ForwardTiles<T> tiles = Shape::TakeTiles(shared, kTiles);
  bool has_tile = false;
  if (threadIdx.x == 0) has_tile = plain->Set(data, found.block);
  if (!__syncthreads_or(has_tile)) return;
  if (ForwardPlain<T, kWidth, kTiles>(data, *plain, tiles).Run()) return;
#pragma unroll 1
  for (int t = 0; t < kTiles; ++t) {
    ComputeAgain<T, kWidth>(data, plain->place, plain->place.rank * kTiles + t, kTiles > 1,
                            constants, tiles, shared);
  }
}

template <class T, int kWidth, bool kStreams, bool kTerms>
ForwardForm NewForm(bool has_relative) {
  return {AttendForward<T, kWidth, kStreams, kTerms>,
          ForwardShape<T, kWidth, kStreams, kTerms>::SharedBytesOfBlock(has_relative)};
}

template <class T>
ForwardForm FormOf(int width, bool has_terms, bool has_relative) {
  // Streamed problems are few: one kernel serves them.
  if (width == 0) return NewForm<T, 64, true, true>(has_relative);
  if (width == 64) {
    return has_terms ? NewForm<T, 64, false, true>(false) : NewForm<T, 64, false, false>(false);
  }
  return has_terms ? NewForm<T, 128, false, true>(false) : NewForm<T, 128, false, false>(false);
}

template <class T, int kWidth, int kTiles>
ForwardForm NewPlainForm() {
  return {AttendPlain<T, kWidth, kTiles>,
          ForwardShape<T, kWidth, false, false>::SharedBytes(kTiles) +
              simt::SharedBytes<PlainConstants<T, kTiles>>(1)};
}

template <class T>
ForwardForm PlainFormOf(int width, bool in_pairs) {
  if constexpr (std::is_same_v<T, float>) {
    return width == 64 ? NewPlainForm<T, 64, 1>() : NewPlainForm<T, 128, 1>();
  } else if (width == 64) {
    return in_pairs ? NewPlainForm<T, 64, 2>() : NewPlainForm<T, 64, 1>();
  } else {
    return in_pairs ? NewPlainForm<T, 128, 2>() : NewPlainForm<T, 128, 1>();
  }
}

}  // namespace attnd::cuda
