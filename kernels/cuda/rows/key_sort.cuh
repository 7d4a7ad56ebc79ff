// Merge sort. A block sorts a tile of keys, eight in the registers of each thread, which are merged
// by pairs through shared memory; then every pass over memory merges pairs of sorted runs. Where M
// of the keys are wanted, no run keeps more. Bound by instructions: some 20 a key and round of
// merging, 11 rounds in a tile and one in a pass; a pass also moves 16 bytes a key.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows/key_rank.cuh"
#include "kernels/cuda/rows/quads.h"

namespace attnd::cuda {

constexpr int kSortThreads = 256, kSortEach = 8;
static_assert(kSortThreads * kSortEach == kSortTile);
constexpr uint64_t kNoKey = ~uint64_t{0};  // above all keys

// Gaps, so that threads that read eight keys each meet in no bank.
SIMT_FN int Spread(int i) { return i + (i >> 3); }
constexpr int kSortSlots = kSortTile + kSortTile / kSortEach;

// Of the first `count` keys of the merged lists a and b, how many are of a.
template <class A, class B, class Int>
SIMT_FN Int SplitMerge(const A& a, Int a_size, const B& b, Int b_size, Int count) {
  Int low = count > b_size ? count - b_size : 0, high = min(count, a_size);
  while (low < high) {
    const Int middle = (low + high) / 2;
    if (a(middle) <= b(count - 1 - middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Keys [count, count + 8) of the merged lists tile[a, a + a_size) and tile[b, b + b_size).
SIMT_FN void MergeEight(const uint64_t* tile, int a, int a_size, int b, int b_size, int count,
                        uint64_t (&keys)[kSortEach]) {
  const auto at_a = [&](int i) { return tile[Spread(a + i)]; };
  const auto at_b = [&](int i) { return tile[Spread(b + i)]; };
  int i = SplitMerge(at_a, a_size, at_b, b_size, count), j = count - i;
  uint64_t next_a = i < a_size ? at_a(i) : kNoKey, next_b = j < b_size ? at_b(j) : kNoKey;
#pragma unroll
  for (int k = 0; k < kSortEach; ++k) {
    const bool is_a = next_a <= next_b;
    keys[k] = is_a ? next_a : next_b;
    if (is_a) {
      ++i;
      next_a = i < a_size ? at_a(i) : kNoKey;
    } else {
      ++j;
      next_b = j < b_size ? at_b(j) : kNoKey;
    }
  }
}

SIMT_FN void Order(uint64_t& low, uint64_t& high) {
  const uint64_t a = low, b = high;
  low = a < b ? a : b;
  high = a < b ? b : a;
}

// Batcher's odd-even merge sort.
SIMT_FN void SortEight(uint64_t (&x)[kSortEach]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) Order(x[i], x[i + 1]);
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    Order(x[i], x[i + 2]);
    Order(x[i + 1], x[i + 3]);
    Order(x[i + 1], x[i + 2]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) Order(x[i], x[i + 4]);
  Order(x[2], x[4]);
  Order(x[3], x[5]);
  Order(x[1], x[2]);
  Order(x[3], x[4]);
  Order(x[5], x[6]);
}

// Rows of up to kSortTile keys, several a block, or tiles of longer ones.
struct SortTilesOver {
  View x;
  const int32_t* chosen;  // of the first row
  int64_t first_row, rows;
  int64_t keys, M;  // of a row
  int64_t tiles;    // of a row; 1: lanes = 2^lanes_log2 threads sort a row
  KeyOrder order;
  bool by_index;
  uint8_t lanes_log2;
  int64_t kept, pitch;  // of `to`: keys of a tile, of a row
  uint64_t* to;         // null: to indices
  int32_t* indices;     // of the first row
};

constexpr size_t kSortTilesShared =
    simt::SharedBytes<uint64_t>(kSortSlots) + simt::SharedBytes<int64_t>(kSortThreads);

// Every thread's eight keys, in order within rows of `width` slots.
SIMT_FN void SortTile(uint64_t* tile, int width, uint64_t (&keys)[kSortEach]) {
  const int own = static_cast<int>(threadIdx.x) * kSortEach;
  SortEight(keys);
  for (int run = kSortEach; run < width; run *= 2) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kSortEach; ++k) tile[Spread(own + k)] = keys[k];
    __syncthreads();
    const int first = own & -(2 * run);
    MergeEight(tile, first, run, first + run, run, own - first, keys);
  }
}

__global__ void __launch_bounds__(kSortThreads)
    SortTilesKernel(const __grid_constant__ Problems<SortTilesOver> problems) {
  const Place<SortTilesOver> place = FindPlace(problems);
  const SortTilesOver& p = place.problem;
  simt::SharedTiles shared;
  uint64_t* tile = shared.Take<uint64_t>(kSortSlots);
  int64_t* row_at = shared.Take<int64_t>(kSortThreads);

  const int thread = static_cast<int>(threadIdx.x), own = thread * kSortEach;
  const int slots_log2 = p.lanes_log2 + 3, width = 1 << slots_log2;  // of a row
  const int rows_at_once = kSortThreads >> p.lanes_log2;
  const int64_t group = place.block / p.tiles, tile_index = place.block - group * p.tiles;
  const int64_t first_row = group * rows_at_once, first_key = tile_index * kSortTile;
  const int count = static_cast<int>(min(p.keys - first_key, int64_t{width}));
  const int64_t rows = p.rows - first_row;

  if (thread < rows_at_once && thread < rows) {
    const int rank = p.x.shape.rank - 1;
    row_at[thread] =
        LeadOffset(p.x, rank, LeadIndexOf(p.x.shape, rank, p.first_row + first_row + thread));
  }
  __syncthreads();
  const int64_t stride = p.x.stride[p.x.shape.rank - 1];
#pragma unroll
  for (int i = 0; i < kSortEach; ++i) {
    const int slot = thread + i * kSortThreads, row = slot >> slots_log2, at = slot & (width - 1);
    uint64_t key = kNoKey;
    if (row < rows && at < count) {
      int64_t index = first_key + at;
      if (p.chosen != nullptr) index = p.chosen[(first_row + row) * p.keys + index];
      const uint32_t rank = RankAt(p.order, p.x.data, row_at[row] + index * stride);
      key = static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(index);
    }
    tile[Spread(slot)] = key;
  }
  __syncthreads();
  uint64_t keys[kSortEach];
#pragma unroll
  for (int k = 0; k < kSortEach; ++k) keys[k] = tile[Spread(own + k)];
  SortTile(tile, width, keys);
  if (p.by_index) {
#pragma unroll
    for (int k = 0; k < kSortEach; ++k) {
      const bool is_wanted = ((own + k) & (width - 1)) < p.M;
      keys[k] = is_wanted ? keys[k] & 0xffffffffu : kNoKey;
    }
    SortTile(tile, width, keys);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kSortEach; ++k) tile[Spread(own + k)] = keys[k];
  __syncthreads();
  const int kept = static_cast<int>(min(int64_t{count}, p.M));
#pragma unroll
  for (int i = 0; i < kSortEach; ++i) {
    const int slot = thread + i * kSortThreads, row = slot >> slots_log2, at = slot & (width - 1);
    if (row >= rows || at >= kept) continue;
    const uint64_t key = tile[Spread(slot)];
    if (p.to != nullptr) {
      p.to[(first_row + row) * p.pitch + tile_index * p.kept + at] = key;
    } else {
      p.indices[(first_row + row) * p.M + at] = static_cast<int32_t>(key);
    }
  }
}

// Sorted runs of `span` keys of a row, of which the first M are there, become runs of twice as
// many. A run lies min(M, span) behind the one before it.
struct MergeRunsOver {
  const uint64_t* from;
  uint64_t* to;            // null: to indices, the last pass
  int32_t* indices;        // of the first row
  int64_t keys, M, pitch;  // of a row
  int64_t span;
  int64_t pairs, tiles;  // of a row, of a pair

  SIMT_FN int64_t Kept(int64_t run) const {
    return max(int64_t{0}, min(M, min(span, keys - run * span)));
  }
};

constexpr size_t kMergeRunsShared =
    simt::SharedBytes<uint64_t>(kSortSlots) + simt::SharedBytes<int64_t>(2);

__global__ void __launch_bounds__(kSortThreads)
    MergeRunsKernel(const __grid_constant__ Problems<MergeRunsOver> problems) {
  const Place<MergeRunsOver> place = FindPlace(problems);
  const MergeRunsOver& p = place.problem;
  simt::SharedTiles shared;
  uint64_t* tile = shared.Take<uint64_t>(kSortSlots);
  int64_t* splits = shared.Take<int64_t>(2);

  const int64_t all = place.block / p.tiles, first = (place.block - all * p.tiles) * kSortTile;
  const int64_t row = all / p.pairs, pair = all - row * p.pairs;
  const uint64_t* a = p.from + row * p.pitch + 2 * pair * min(p.M, p.span);
  const uint64_t* b = a + min(p.M, p.span);
  const int64_t a_size = p.Kept(2 * pair), b_size = p.Kept(2 * pair + 1);
  const int64_t kept = min(p.M, a_size + b_size);
  if (first >= kept) return;  // of a last pair that is shorter
  const int count = static_cast<int>(min(kept - first, int64_t{kSortTile}));
  const int thread = static_cast<int>(threadIdx.x), own = thread * kSortEach;
  if (thread < 2) {
    splits[thread] = SplitMerge([&](int64_t i) { return a[i]; }, a_size,
                                [&](int64_t i) { return b[i]; }, b_size, first + thread * count);
  }
  __syncthreads();
  const int64_t a_first = splits[0], b_first = first - a_first;
  const int a_count = static_cast<int>(splits[1] - a_first);
  for (int i = thread; i < count; i += kSortThreads) {
    tile[Spread(i)] = i < a_count ? a[a_first + i] : b[b_first + i - a_count];
  }
  __syncthreads();
  uint64_t keys[kSortEach];
  MergeEight(tile, 0, a_count, a_count, count - a_count, min(own, count), keys);
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kSortEach; ++k) tile[Spread(own + k)] = keys[k];
  __syncthreads();
  for (int i = thread; i < count; i += kSortThreads) {
    const uint64_t key = tile[Spread(i)];
    if (p.to != nullptr) {
      p.to[row * p.pitch + pair * min(p.M, 2 * p.span) + first + i] = key;
    } else {
      p.indices[row * p.M + first + i] = static_cast<int32_t>(key);
    }
  }
}

}  // namespace attnd::cuda
