// Kernels and hosts with a fault each: who notices it, and with what words. Some faults are for a
// sanitizer alone.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "kernels/cuda/simt.h"
#include "tests/cuda/run_kernel.h"

namespace attnd::testing {
namespace {

using simt::SharedTiles;

// Runs `kernel` with 64 threads a block; the death tests run it in a process of their own.
void RunBlocks(void (*kernel)(float*), unsigned blocks = 1) {
  emu::options.workers = 2;
  const DeviceArray<float> out(std::vector<float>(64));
  RunKernel({.grid = blocks, .block = 64, .shared_bytes = 512}, kernel, out.data());
}

// The thread sanitizer ends a process that had a race with this code.
[[maybe_unused]] void RunToTheEnd(void (*kernel)(float*), unsigned blocks = 1) {
  RunBlocks(kernel, blocks);
  std::exit(0);
}

__global__ void OtherBarrier(float* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 0;
}
__global__ void WarpWithoutBarrier(float* out) {
  if (threadIdx.x < 32) __syncthreads();
  out[threadIdx.x] = 0;
}
__global__ void EarlyExit(float* out) {
  if (threadIdx.x == 5) return;
  __syncthreads();
  out[threadIdx.x] = 0;
}
__global__ void LaneWithoutShuffle(float* out) {
  if (threadIdx.x % 32 != 5) out[threadIdx.x] = __shfl_xor_sync(~0u, 1.f, 1);
}
__global__ void TwoShuffles(float* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(~0u, 1.f, 1);
  } else {
    out[threadIdx.x] = __shfl_xor_sync(~0u, 1.f, 1);
  }
}
__global__ void LaneOutsideItsMask(float* out) { out[threadIdx.x] = __shfl_xor_sync(1u, 1.f, 0); }
__global__ void ReadsLaneOutsideMask(float* out) {
  if (threadIdx.x % 32 < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.f, 16);
}
__global__ void Trap(float*) { __trap(); }

TEST(EmulatorFaultDeathTest, Divergence) {
  EXPECT_DEATH(RunBlocks(OtherBarrier),
               "emulator_fault_test.cc:.*divergence: thread .* waits in the "
               "__syncthreads at .*emulator_fault_test.cc");
  EXPECT_DEATH(RunBlocks(WarpWithoutBarrier),
               "threads 0 to 31 wait in __syncthreads at .*\n.*threads 32 to 63 exited");
  EXPECT_DEATH(RunBlocks(EarlyExit), "threads 5 to 5 exited");
  EXPECT_DEATH(RunBlocks(LaneWithoutShuffle), "__shfl_xor_sync waits for threads that never come");
  EXPECT_DEATH(RunBlocks(TwoShuffles), "divergence: __shfl_xor_sync, mask ffffffff, meets lane");
  EXPECT_DEATH(RunBlocks(LaneOutsideItsMask), "mask 00000001 leaves the calling lane");
  EXPECT_DEATH(RunBlocks(ReadsLaneOutsideMask), "reads lane .*, outside the mask");
  EXPECT_DEATH(RunBlocks(Trap), "__trap");
}

__global__ void TilesBeyondTheLaunch(float* out) {
  SharedTiles shared;
  float* tile = shared.Take<float>(64);
  tile[threadIdx.x] = 0;
  tile = shared.Take<float>(65);
  out[threadIdx.x] = 0;
}
__global__ void DifferentTiles(float*) {
  SharedTiles shared;
  shared.Take<float>(threadIdx.x == 3 ? 32 : 64);
}
__global__ void CopyOfMisaligned(float* out) {
  SharedTiles shared;
  simt::CopyAsync<16>(shared.Take<float>(64) + 1, out, true);
}
__global__ void CopyFromMisaligned(float* out) {
  SharedTiles shared;
  simt::CopyAsync<8>(shared.Take<float>(64), out + 1, true);
}
__global__ void CopyBeyondTheTile(float* out) {
  SharedTiles shared;
  simt::CopyAsync<16>(shared.Take<float>(64) + 64, out, true);
}
__global__ void CopyToStaticMemory(float* out) {
  __shared__ float4 tile[1];
  simt::CopyAsync<16>(tile, out, true);
}
__global__ void LdMatrixBeyondTheTile(float*) {
  SharedTiles shared;
  uint16_t* tile = shared.Take<uint16_t>(31 * 8);
  uint32_t r[4];
  simt::LdMatrixX4(r, tile + threadIdx.x % 32 * 8);
}

TEST(EmulatorFaultDeathTest, SharedMemory) {
  EXPECT_DEATH(RunBlocks(TilesBeyondTheLaunch), "tiles need 516 bytes, the launch gave 512");
  EXPECT_DEATH(RunBlocks(DifferentTiles), "threads disagree on tile 0");
  EXPECT_DEATH(RunBlocks(CopyOfMisaligned), "cp.async: address not aligned to 16 bytes");
  EXPECT_DEATH(RunBlocks(CopyFromMisaligned), "cp.async: source not aligned to 8 bytes");
  EXPECT_DEATH(RunBlocks(CopyBeyondTheTile), "cp.async: address outside every shared tile");
  EXPECT_DEATH(RunBlocks(CopyToStaticMemory), "cp.async: address outside every shared tile");
  EXPECT_DEATH(RunBlocks(LdMatrixBeyondTheTile), "ldmatrix: address outside every shared tile");
}

__global__ void WritesOut(float* out) { out[threadIdx.x] = 1; }

TEST(EmulatorFaultDeathTest, Host) {
  const DeviceArray<float> x({1, 2});
  EXPECT_DEATH(*x.data() = 3, "the host touches device memory");
  EXPECT_DEATH(std::exit(x.data()[1] == 2), "the host touches device memory");
  EXPECT_DEATH(static_cast<void>(LaunchKernel(nullptr, {}, WritesOut, x.data())),
               "a launch on the null stream");
  EXPECT_DEATH(cudaMemsetAsync(x.data(), 0, 4, nullptr), "cudaMemsetAsync on the null stream");
  EXPECT_DEATH(cudaDeviceSynchronize(), "cudaDeviceSynchronize waits for other streams");
  float value;
  EXPECT_DEATH(cudaMemcpy(&value, x.data(), 4, cudaMemcpyDeviceToHost), "cudaMemcpy waits");
  EXPECT_DEATH(
      {
        static_cast<void>(cudaMemsetAsync(x.data(), 0, 4, TestStream()));
        cudaFree(x.data());
      },
      "cudaFree waits for the work of other streams");
  // Host functions are host code.
  EXPECT_DEATH(
      {
        cudaLaunchHostFunc(
            TestStream(), [](void* p) { *static_cast<float*>(p) = 1; }, x.data());
        cudaStreamSynchronize(TestStream());
      },
      "the host touches device memory");
}

TEST(EmulatorFaultDeathTest, FreedMemory) {
  EXPECT_DEATH(
      {
        float* data = nullptr;
        {
          const DeviceArray<float> x(std::vector<float>(64));
          data = x.data();
        }
        RunKernel({}, WritesOut, data);
      },
      "touches memory that is not allocated|use-after-poison");
}

#if defined(__SANITIZE_ADDRESS__)

__global__ void LeavesItsTile(float* out) {
  SharedTiles shared;
  float* row = shared.Take<float>(64);
  row[threadIdx.x + 1] = 1;
  __syncthreads();
  out[threadIdx.x] = row[threadIdx.x];
}
__global__ void LeavesStaticMemory(float* out) {
  __shared__ float row[64];
  row[threadIdx.x + 1] = 1;
  __syncthreads();
  out[threadIdx.x] = row[threadIdx.x];
}
__global__ void LeavesAnAllocation(float* out) { out[threadIdx.x + 1] = 1; }
__global__ void Misaligned(float* out) {
  if (threadIdx.x < 15) *reinterpret_cast<float4*>(out + threadIdx.x * 4 + 1) = {1, 1, 1, 1};
}

TEST(EmulatorFaultDeathTest, AddressSanitizer) {
  EXPECT_DEATH(RunBlocks(LeavesItsTile), "heap-buffer-overflow");
  EXPECT_DEATH(RunBlocks(LeavesStaticMemory), "index 64 out of bounds|overflow");
  EXPECT_DEATH(RunBlocks(LeavesAnAllocation), "use-after-poison");
  EXPECT_DEATH(RunBlocks(Misaligned), "misaligned address");
}

#elif defined(__SANITIZE_THREAD__)

__global__ void NoSyncWarp(float* out) {
  SharedTiles shared;
  float* row = shared.Take<float>(64);
  row[threadIdx.x] = static_cast<float>(threadIdx.x);
  out[threadIdx.x] = row[threadIdx.x ^ 1];
}
// Between the accesses stands a shuffle: it makes the lanes meet, but orders no memory.
__global__ void ShuffleIsNoSync(float* out) {
  SharedTiles shared;
  float* row = shared.Take<float>(64);
  row[threadIdx.x] = static_cast<float>(threadIdx.x);
  const float x = __shfl_xor_sync(~0u, 1.f, 1);
  out[threadIdx.x] = row[threadIdx.x ^ 1] + x;
}
__global__ void NoBarrier(float* out) {
  __shared__ float row[64];
  row[threadIdx.x] = 1;
  __syncwarp();
  out[threadIdx.x] = row[63 - threadIdx.x];
}
__global__ void LostUpdate(float* out) { out[0] += 1; }
__global__ void BlocksCollide(float* out) {
  if (threadIdx.x == 0) out[0] = 1;
}
// Only one of the two waits for what was copied.
__global__ void NoBarrierAfterCopy(float* out) {
  SharedTiles shared;
  float* row = shared.Take<float>(64);
  simt::CopyAsync<4>(row + threadIdx.x, out + threadIdx.x, true);
  simt::CopyCommit();
  simt::CopyWait<0>();
  __syncwarp();
  const float x = row[63 - threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = x;
}

TEST(EmulatorFaultDeathTest, ThreadSanitizer) {
  const ::testing::ExitedWithCode raced(66);
  EXPECT_EXIT(RunToTheEnd(NoSyncWarp), raced, "data race");
  EXPECT_EXIT(RunToTheEnd(ShuffleIsNoSync), raced, "data race");
  EXPECT_EXIT(RunToTheEnd(NoBarrier), raced, "data race");
  EXPECT_EXIT(RunToTheEnd(LostUpdate), raced, "data race");
  EXPECT_EXIT(RunToTheEnd(BlocksCollide, 2), raced, "data race");
  EXPECT_EXIT(RunToTheEnd(NoBarrierAfterCopy), raced, "data race");
}

#endif

}  // namespace
}  // namespace attnd::testing
