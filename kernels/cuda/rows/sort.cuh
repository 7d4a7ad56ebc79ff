// The indices of the M lowest ranks of long rows, in ascending order, without sorting. A block
// passes over its row three times, each time fixing 11 bits (the last time 10) of the M-th lowest
// rank by counting, and once more to write what is below it and the first of those equal to it.
// Four reads of the keys, three of them from cache, whose latency bounds a block: some 30 us for
// each 10 000 keys (an ESTIMATE).
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows/key_rank.cuh"
#include "kernels/cuda/rows/quads.h"

namespace attnd::cuda {

struct SelectOver {
  View x;
  KeyOrder order;
  int64_t N, M;
  int32_t* indices;  // [rows][M]
};

constexpr int kSelectThreads = 512, kSelectBins = 2048, kSelectEach = 4;
constexpr int kSelectWarps = kSelectThreads / simt::kWarp;
static_assert(kSelectBins == kSelectThreads * kSelectEach);
constexpr size_t kSelectShared =
    simt::SharedBytes<int>(kSelectBins) + simt::SharedBytes<int>(2 * kSelectWarps + 2);

// Of one row; ranks are read anew in each pass.
struct SelectRow {
  const SelectOver& p;
  int64_t at, stride;
  SIMT_FN uint32_t Rank(int64_t n) const { return RankAt(p.order, p.x.data, at + n * stride); }
};

// The sum over the threads before this one. `sums` holds one number a warp.
SIMT_FN int SumBefore(int x, int* sums) {
  const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / simt::kWarp;
  int sum = x;
  for (int step = 1; step < simt::kWarp; step *= 2) {
    const int other = __shfl_up_sync(simt::kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == simt::kWarp - 1) sums[warp] = sum;
  __syncthreads();
  int before = sum - x;
  for (int w = 0; w < warp; ++w) before += sums[w];
  return before;
}

// The M-th lowest rank; *equal: how many equal to it are among the M lowest.
SIMT_FN uint32_t LastRank(const SelectRow& row, int* bins, int* sums, int* found, int* equal) {
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t rank = 0;
  int wanted = static_cast<int>(row.p.M);
  for (int high = 32; high > 0;) {
    const int low = max(high - 11, 0), count = 1 << (high - low);
#pragma unroll
    for (int i = 0; i < kSelectEach; ++i) bins[thread * kSelectEach + i] = 0;
    __syncthreads();
    for (int64_t n = thread; n < row.p.N; n += kSelectThreads) {
      const uint32_t x = row.Rank(n);
      const bool counts = high == 32 || x >> high == rank >> high;
      if (counts) atomicAdd(&bins[x >> low & static_cast<uint32_t>(count - 1)], 1);
    }
    __syncthreads();
    int own[kSelectEach], sum = 0;
#pragma unroll
    for (int i = 0; i < kSelectEach; ++i) sum += own[i] = bins[thread * kSelectEach + i];
    int before = SumBefore(sum, sums);
#pragma unroll
    for (int i = 0; i < kSelectEach; ++i) {
      if (before < wanted && wanted <= before + own[i]) {
        found[0] = thread * kSelectEach + i;
        found[1] = wanted - before;
      }
      before += own[i];
    }
    __syncthreads();
    rank |= static_cast<uint32_t>(found[0]) << low;
    wanted = found[1];
    high = low;
  }
  *equal = wanted;
  return rank;
}

__global__ void __launch_bounds__(kSelectThreads)
    SelectKernel(const __grid_constant__ Problems<SelectOver> problems) {
  const Place<SelectOver> place = FindPlace(problems);
  const SelectOver& p = place.problem;
  simt::SharedTiles shared;
  int* bins = shared.Take<int>(kSelectBins);
  int* sums = shared.Take<int>(2 * kSelectWarps + 2);
  const int rank = p.x.shape.rank - 1, thread = static_cast<int>(threadIdx.x);
  const SelectRow row = {p, LeadOffset(p.x, rank, LeadIndexOf(p.x.shape, rank, place.block)),
                         p.x.stride[rank]};
  int* const found = sums + 2 * kSelectWarps;
  int wanted_equal;
  const uint32_t last = LastRank(row, bins, sums, found, &wanted_equal);

  int32_t* const to = p.indices + place.block * p.M;
  const unsigned before_lane = (1u << thread % simt::kWarp) - 1;
  const int warp = thread / simt::kWarp;
  int below = 0, equal = 0;  // in the stretches before this one
  for (int64_t first = 0; first < p.N && below + min(equal, wanted_equal) < p.M;
       first += kSelectThreads) {
    const int64_t n = first + thread;
    const uint32_t x = n < p.N ? row.Rank(n) : 0;
    const bool is_below = n < p.N && x < last, is_equal = n < p.N && x == last;
    const unsigned all_below = __ballot_sync(simt::kAllLanes, is_below);
    const unsigned all_equal = __ballot_sync(simt::kAllLanes, is_equal);
    __syncthreads();
    if (thread % simt::kWarp == 0) {
      sums[2 * warp] = __popc(all_below);
      sums[2 * warp + 1] = __popc(all_equal);
    }
    __syncthreads();
    int own_below = below + __popc(all_below & before_lane);
    int own_equal = equal + __popc(all_equal & before_lane);
    for (int w = 0; w < kSelectWarps; ++w) {
      own_below += w < warp ? sums[2 * w] : 0;
      own_equal += w < warp ? sums[2 * w + 1] : 0;
      below += sums[2 * w];
      equal += sums[2 * w + 1];
    }
    if (is_below || (is_equal && own_equal < wanted_equal)) {
      to[own_below + min(own_equal, wanted_equal)] = static_cast<int32_t>(n);
    }
  }
}

}  // namespace attnd::cuda
