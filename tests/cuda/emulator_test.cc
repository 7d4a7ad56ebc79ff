// The emulator's threads: collectives, barriers, atomics, shared memory, late copies. What these
// tests expect holds on a device too.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cuda/simt.h"
#include "tests/cuda/run_kernel.h"

namespace attnd::testing {
namespace {

using simt::SharedBytes;
using simt::SharedTiles;

__global__ void Shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int* o = out + lane * 8;
  o[0] = __shfl_xor_sync(~0u, lane, 5);
  o[1] = __shfl_up_sync(~0u, lane, 3, 8);
  o[2] = __shfl_down_sync(~0u, lane, 3, 16);
  o[3] = __shfl_sync(~0u, lane, 2, 4);
  o[4] = static_cast<int>(__ballot_sync(~0u, lane % 3 == 0));
  // Two halves of the warp in different branches.
  if (lane < 16) {
    o[5] = __shfl_xor_sync(0xffffu, lane * 2, 1);
  } else {
    o[5] = __shfl_xor_sync(0xffff0000u, lane * 3, 1);
  }
  o[6] = static_cast<int>(__match_any_sync(~0u, lane % 8));
  o[7] = __any_sync(~0u, lane == 7) * 2 + __all_sync(~0u, lane == 7);
}

TEST(Emulator, Shuffles) {
  InEveryOrder([] {
    const DeviceArray<int> out(std::vector<int>(32 * 8));
    RunKernel({}, Shuffles, out.data());
    const std::vector<int> all = out.Get();
    for (int i = 0; i < 32; ++i) {
      const int* o = &all[static_cast<size_t>(i) * 8];
      EXPECT_EQ(o[0], i ^ 5);
      EXPECT_EQ(o[1], i % 8 >= 3 ? i - 3 : i);
      EXPECT_EQ(o[2], i % 16 < 13 ? i + 3 : i);
      EXPECT_EQ(o[3], i / 4 * 4 + 2);
      EXPECT_EQ(o[4], 0x49249249);
      EXPECT_EQ(o[5], i < 16 ? (i ^ 1) * 2 : (i ^ 1) * 3);
      EXPECT_EQ(o[6], 0x01010101 << i % 8);
      EXPECT_EQ(o[7], 2);
    }
  });
}

__global__ void Reductions(unsigned* out) {
  const int lane = static_cast<int>(threadIdx.x);
  unsigned* o = out + lane * 6;
  o[0] = static_cast<unsigned>(__reduce_add_sync(~0u, lane - 20));
  o[1] = static_cast<unsigned>(__reduce_min_sync(~0u, lane - 20));
  o[2] = __reduce_max_sync(~0u, static_cast<unsigned>(lane));
  o[3] = __reduce_and_sync(~0u, 0xf0u | static_cast<unsigned>(lane));
  o[4] = __reduce_or_sync(~0u, 1u << lane);
  o[5] = __reduce_xor_sync(~0u, static_cast<unsigned>(lane == 3 ? 5 : 0));
}

TEST(Emulator, Reductions) {
  InEveryOrder([] {
    const DeviceArray<unsigned> out(std::vector<unsigned>(32 * 6));
    RunKernel({}, Reductions, out.data());
    const std::vector<unsigned> all = out.Get();
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(std::vector<unsigned>(&all[i * 6], &all[i * 6] + 6),
                (std::vector<unsigned>{static_cast<unsigned>(-144), static_cast<unsigned>(-20), 31,
                                       0xf0, 0xffffffff, 5}));
    }
  });
}

__global__ void Votes(int* out) {
  const bool vote = threadIdx.x < 40;
  int* o = out + threadIdx.x * 3;
  o[0] = __syncthreads_count(vote);
  o[1] = __syncthreads_or(threadIdx.x == 99);
  o[2] = __syncthreads_and(threadIdx.x != 99);
}

TEST(Emulator, VotesOfTheBlock) {
  InEveryOrder([] {
    const DeviceArray<int> out(std::vector<int>(100 * 3));
    RunKernel({.block = 100}, Votes, out.data());
    const std::vector<int> all = out.Get();
    for (size_t i = 0; i < 300; i += 3) {
      EXPECT_EQ(std::vector<int>(&all[i], &all[i] + 3), (std::vector<int>{40, 1, 0}));
    }
  });
}

__global__ void Indices(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  atomicAdd(&out[block * blockDim.x * blockDim.y * blockDim.z + thread], 1);
}

TEST(Emulator, EveryThreadOfTheGridRunsOnce) {
  InEveryOrder([] {
    const DeviceArray<int> out(std::vector<int>(2 * 3 * 5 * 7 * 3 * 2));
    RunKernel({.grid = {2, 3, 5}, .block = {7, 3, 2}}, Indices, out.data());
    EXPECT_EQ(out.Get(), std::vector<int>(2 * 3 * 5 * 7 * 3 * 2, 1));
  });
}

__global__ void Transpose(const float* in, float* out, int n) {
  __shared__ float tile[32][33];
  const int x = static_cast<int>(threadIdx.x), bx = static_cast<int>(blockIdx.x) * 32,
            by = static_cast<int>(blockIdx.y) * 32;
  for (int r = static_cast<int>(threadIdx.y); r < 32; r += static_cast<int>(blockDim.y)) {
    tile[r][x] = in[(by + r) * n + bx + x];
  }
  __syncthreads();
  for (int r = static_cast<int>(threadIdx.y); r < 32; r += static_cast<int>(blockDim.y)) {
    out[(bx + r) * n + by + x] = tile[x][r];
  }
}

TEST(Emulator, StaticSharedMemoryOfManyBlocks) {
  InEveryOrder([] {
    std::vector<float> values(64 * 64);
    std::iota(values.begin(), values.end(), 0.f);
    const DeviceArray<float> in(values), out(values);
    RunKernel({.grid = {2, 2}, .block = {32, 8}}, Transpose, in.data(), out.data(), 64);
    const std::vector<float> all = out.Get();
    for (size_t i = 0; i < 64 * 64; ++i) ASSERT_EQ(all[i], values[i % 64 * 64 + i / 64]);
  });
}

struct Totals {
  int counts[4], most, least;
  unsigned bits;
  unsigned long long sum;
  float float_sum;
  double double_sum;
  int swapped;
};

__global__ void Atomics(const int* x, int n, Totals* t) {
  const int step = static_cast<int>(gridDim.x * blockDim.x);
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += step) {
    atomicAdd(&t->counts[x[i]], 1);
    atomicMax(&t->most, i);
    atomicMin(&t->least, -i);
    atomicOr(&t->bits, 1u << x[i]);
    atomicAdd(&t->sum, 1ull << 33);
    atomicAdd(&t->float_sum, 1.f);
    atomicAdd(&t->double_sum, 0.5);
    int seen = 0, old;
    do {
      old = seen;
      seen = atomicCAS(&t->swapped, old, old + 2);
    } while (seen != old);
  }
}

TEST(Emulator, Atomics) {
  InEveryOrder([] {
    std::vector<int> x(1000);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i % 4);
    const DeviceArray<int> in(x);
    const DeviceArray<Totals> out({Totals{}});
    RunKernel({.grid = 4, .block = 64}, Atomics, in.data(), 1000, out.data());
    const Totals t = out.Get()[0];
    for (const int count : t.counts) EXPECT_EQ(count, 250);
    EXPECT_EQ(t.most, 999);
    EXPECT_EQ(t.least, -999);
    EXPECT_EQ(t.bits, 15u);
    EXPECT_EQ(t.sum, 1000ull << 33);
    EXPECT_EQ(t.float_sum, 1000);
    EXPECT_EQ(t.double_sum, 500);
    EXPECT_EQ(t.swapped, 2000);
  });
}

// Copies of every size, also in part and of nothing, in three groups; out: what the tile holds when
// the groups but one have been waited for, then all.
__global__ void LateCopies(const int* in, int* out) {
  SharedTiles shared;
  int* tile = shared.Take<int>(32 * 8);
  const int lane = static_cast<int>(threadIdx.x);
  int* own = tile + lane * 8;
  in += lane * 8;
  simt::CopyAsync<16>(own, in, true);
  simt::CopyCommit();
  simt::CopyAsync<8>(own + 4, in + 4, true);
  simt::CopyAsync<4>(own + 6, in + 6, lane % 2 == 0);
  simt::CopyAsync<4>(own + 7, in, false);
  simt::CopyCommit();
  simt::CopyWait<1>();
  for (int i = 0; i < 4; ++i) out[lane * 12 + i] = own[i];
  simt::CopyWait<0>();
  __syncwarp();
  const int* other = tile + (lane ^ 1) * 8;
  for (int i = 0; i < 8; ++i) out[lane * 12 + 4 + i] = other[i];
}

TEST(Emulator, LateCopies) {
  InEveryOrder([] {
    std::vector<int> values(32 * 8);
    std::iota(values.begin(), values.end(), 1000);
    const DeviceArray<int> in(values), out(std::vector<int>(32 * 12));
    RunKernel({.shared_bytes = SharedBytes<int>(32 * 8)}, LateCopies, in.data(), out.data());
    const std::vector<int> all = out.Get();
    for (int lane = 0; lane < 32; ++lane) {
      const int* o = &all[static_cast<size_t>(lane) * 12];
      const int own = 1000 + lane * 8, other = 1000 + (lane ^ 1) * 8;
      for (int i = 0; i < 4; ++i) EXPECT_EQ(o[i], own + i);
      for (int i = 0; i < 6; ++i) EXPECT_EQ(o[4 + i], other + i);
      EXPECT_EQ(o[10], lane % 2 == 1 ? other + 6 : 0);
      EXPECT_EQ(o[11], 0);
    }
  });
}

#ifndef __CUDACC__

// Bits of what is read where nothing has been written, or a copy has not been waited for.
__global__ void TooEarly(const float* in, float* out) {
  SharedTiles shared;
  float* tile = shared.Take<float>(8);
  out += blockIdx.x * 3;
  out[0] = tile[5];
  simt::CopyAsync<16>(tile, in, true);
  simt::CopyCommit();
  out[1] = tile[0];
  simt::CopyWait<0>();
  out[2] = tile[0];
}

TEST(Emulator, WhatIsReadTooEarlyIsNaN) {
  const DeviceArray<float> in({7, 7, 7, 7}), out(std::vector<float>(6));
  // The second block gets the memory of the first.
  RunKernel({.grid = 2, .block = 1, .shared_bytes = 128}, TooEarly, in.data(), out.data());
  const std::vector<float> all = out.Get();
  for (size_t block = 0; block < 2; ++block) {
    EXPECT_TRUE(std::isnan(all[block * 3]));
    EXPECT_TRUE(std::isnan(all[block * 3 + 1]));
    EXPECT_EQ(all[block * 3 + 2], 7);
  }
}

TEST(Emulator, Counters) {
  const DeviceArray<float> in({7, 7, 7, 7}), out(std::vector<float>(6));
  static_cast<void>(emu::TakeCounters());
  RunKernel({.grid = 2, .block = 1, .shared_bytes = 128}, TooEarly, in.data(), out.data());
  const DeviceArray<int> votes(std::vector<int>(100 * 3));
  RunKernel({.block = 100}, Votes, votes.data());
  const emu::Counters counters = emu::TakeCounters();
  EXPECT_EQ(counters.launches, 2);
  EXPECT_EQ(counters.blocks, 3);
  EXPECT_EQ(counters.barriers, 3);
  EXPECT_EQ(counters.async_bytes, 32);
  EXPECT_EQ(counters.copied_bytes, 1200);
}

#endif

}  // namespace
}  // namespace attnd::testing
