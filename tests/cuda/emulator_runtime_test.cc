// The emulated CUDA runtime: late streams, events, memory.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda/emulator/streams.h"
#include "tests/cuda/emulator_runtime.h"

namespace attnd::testing {
namespace {

__global__ void Nothing() {}

TEST_F(EmulatorRuntime, StreamsRunWhenWaitedFor) {
  const cudaStream_t stream = NewStream();
  float* const x = NewFloats(4);
  float source[4] = {1, 2, 3, 4};
  std::vector<float> result(4, -1);
  ASSERT_EQ(cudaStreamQuery(stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(x, source, sizeof source, cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(Fetch(&result, x, stream), cudaSuccess);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // it is none
  EXPECT_EQ(result, std::vector<float>(4, -1));
  source[2] = 9;  // read when the work runs
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(result, (std::vector<float>{1, 2, 9, 4}));
  EXPECT_EQ(cudaFree(x), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(EmulatorRuntime, StreamsRunAtOtherPaces) {
  emu::Pace& pace = emu::stream_options.pace;
  const emu::Pace before = std::exchange(pace, emu::Pace::kAtOnce);
  const cudaStream_t stream = NewStream();
  float* const x = NewFloats(32);
  ASSERT_EQ(LaunchKernel(stream, {}, Set, x, 1.f), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  pace = emu::Pace::kRandom;
  int late = 0, ready = 0;
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(LaunchKernel(stream, {}, Set, x, 2.f), cudaSuccess);
    ++(cudaStreamQuery(stream) == cudaSuccess ? ready : late);
  }
  EXPECT_GT(late, 20);
  EXPECT_GT(ready, 20);
  pace = before;
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaFree(x), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(EmulatorRuntime, EventsOrderStreams) {
  const cudaStream_t a = NewStream(), b = NewStream();
  const cudaEvent_t event = NewEvent(), later = NewEvent();
  float* const x = NewFloats(32);
  std::vector<float> result(32);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // never recorded
  ASSERT_EQ(LaunchKernel(a, {}, Set, x, 1.f), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, event, 0), cudaSuccess);
  // Neither what a is asked for after the event nor a new meaning of it concerns b.
  ASSERT_EQ(LaunchKernel(a, {}, Set, x, 2.f), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, a), cudaSuccess);
  ASSERT_EQ(Fetch(&result, x, b), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(later, b), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(later), cudaErrorNotReady);
  ASSERT_EQ(cudaEventSynchronize(later), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(later), cudaSuccess);
  EXPECT_EQ(result, std::vector<float>(32, 1));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  ASSERT_EQ(Fetch(&result, x, a), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  EXPECT_EQ(result, std::vector<float>(32, 2));
  EXPECT_EQ(cudaStreamDestroy(a), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);  // outlives its stream
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(later), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(b), cudaSuccess);
  EXPECT_EQ(cudaFree(x), cudaSuccess);
}

TEST_F(EmulatorRuntime, ElapsedTime) {
  const cudaEvent_t start = NewEvent(cudaEventDefault), end = NewEvent(cudaEventDefault);
  float milliseconds = -1;
  ASSERT_EQ(cudaEventRecord(start, TestStream()), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(end, TestStream()), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorNotReady);
  ASSERT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventDestroy(start), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
}

// Every thread has a stream that waits for the one before.
TEST_F(EmulatorRuntime, StreamsOfSeveralThreads) {
  constexpr size_t kThreads = 4;
  constexpr int kRounds = 50;
  std::vector<cudaStream_t> streams;
  std::vector<float*> data;
  for (size_t i = 0; i < kThreads; ++i) {
    streams.push_back(NewStream());
    data.push_back(NewFloats(32));
    ASSERT_EQ(LaunchKernel(streams[i], {}, Set, data[i], i == 0 ? 1.f : 0.f), cudaSuccess);
  }
  cudaEvent_t event = NewEvent();
  ASSERT_EQ(cudaEventRecord(event, streams[0]), cudaSuccess);
  for (size_t i = 1; i < kThreads; ++i) {
    ASSERT_EQ(cudaStreamWaitEvent(streams[i], event, 0), cudaSuccess);
    for (int j = 0; j < kRounds; ++j) {
      ASSERT_EQ(LaunchKernel(streams[i], {}, Add, data[i], data[i - 1]), cudaSuccess);
    }
    ASSERT_EQ(cudaEventRecord(event, streams[i]), cudaSuccess);
  }
  std::vector<std::thread> threads;
  std::vector<std::vector<float>> results(kThreads, std::vector<float>(32));
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      EXPECT_EQ(Fetch(&results[i], data[i], streams[i]), cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(streams[i]), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
  float expected = 1;
  for (size_t i = 0; i < kThreads; ++i, expected *= kRounds) {
    EXPECT_EQ(results[i], std::vector<float>(32, expected));
    EXPECT_EQ(cudaStreamDestroy(streams[i]), cudaSuccess);
    EXPECT_EQ(cudaFree(data[i]), cudaSuccess);
  }
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(EmulatorRuntime, HostFunctionsMayNotCallTheRuntime) {
  struct Seen {
    cudaError_t error = cudaSuccess;
    int calls = 0;
  } seen;
  const auto function = [](void* data) {
    Seen& by = *static_cast<Seen*>(data);
    size_t free, total;
    by.error = cudaMemGetInfo(&free, &total);
    ++by.calls;
  };
  ASSERT_EQ(cudaLaunchHostFunc(TestStream(), function, &seen), cudaSuccess);
  EXPECT_EQ(seen.calls, 0);
  ASSERT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.error, cudaErrorNotPermitted);
}

TEST_F(EmulatorRuntime, FreshMemoryIsNaNAndNoNumberOfARow) {
  std::vector<float> result(1000);
  float* const x = NewFloats(1000);
  ASSERT_EQ(cudaMemsetAsync(x, 0, 4000, TestStream()), cudaSuccess);
  ASSERT_EQ(Fetch(&result, x, TestStream()), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
  EXPECT_EQ(result, std::vector<float>(1000));
  ASSERT_EQ(cudaFree(x), cudaSuccess);
  void* y = nullptr;
  ASSERT_EQ(cudaMallocAsync(&y, 4000, TestStream()), cudaSuccess);
  ASSERT_EQ(Fetch(&result, static_cast<float*>(y), TestStream()), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(y, TestStream()), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
  for (const float value : result) {
    EXPECT_TRUE(std::isnan(value));
    EXPECT_GT(std::bit_cast<int32_t>(value), 1 << 30);
  }
}

// Allocations that come and go, of sizes that do not fit each other's gaps.
void UseMemory(unsigned seed) {
  struct Piece {
    float* data;
    size_t floats;
    float value;
  };
  const cudaStream_t stream = NewStream();
  std::vector<Piece> pieces;
  std::mt19937 random(seed);
  for (int round = 0; round < 150; ++round) {
    if (pieces.size() < 20 || random() % 2 == 0) {
      const size_t floats = 1 + random() % (round % 10 == 0 ? 200'000 : 3000);
      void* data = nullptr;
      ASSERT_EQ(cudaMallocAsync(&data, floats * sizeof(float), stream), cudaSuccess);
      const std::vector<float> values(floats, static_cast<float>(round));
      ASSERT_EQ(
          cudaMemcpyAsync(data, values.data(), floats * sizeof(float), cudaMemcpyDefault, stream),
          cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      pieces.push_back({static_cast<float*>(data), floats, values[0]});
    } else {
      std::swap(pieces[random() % pieces.size()], pieces.back());
      const Piece piece = pieces.back();
      pieces.pop_back();
      std::vector<float> values(piece.floats);
      ASSERT_EQ(Fetch(&values, piece.data, stream), cudaSuccess);
      ASSERT_EQ(cudaFreeAsync(piece.data, stream), cudaSuccess);
      ASSERT_EQ(LaunchKernel(stream, {.grid = 20}, Nothing), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      ASSERT_EQ(values, std::vector<float>(piece.floats, piece.value)) << round;
    }
  }
  for (const Piece& piece : pieces) ASSERT_EQ(cudaFreeAsync(piece.data, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(EmulatorRuntime, MemoryKeepsItsContents) { UseMemory(/*seed=*/1); }

TEST_F(EmulatorRuntime, MemoryOfSeveralThreads) {
  std::vector<std::thread> threads;
  for (unsigned seed = 2; seed < 5; ++seed) threads.emplace_back(UseMemory, seed);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(EmulatorRuntime, CopiesStayInOneAllocation) {
  float* const x = NewFloats(1024);
  float* const y = NewFloats(1024);  // its neighbour
  std::vector<float> host(4096);
  const auto copy = [&](void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, TestStream());
  };
  EXPECT_EQ(copy(x, host.data(), 4096, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(copy(y, x, 4096, cudaMemcpyDeviceToDevice), cudaSuccess);
  EXPECT_EQ(copy(x, host.data(), 4097, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host.data(), x + 1, 4096, cudaMemcpyDefault), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host.data(), x, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(x, 0, 4097, TestStream()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(host.data(), 0, 4, TestStream()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(x, TestStream()), cudaSuccess);
  EXPECT_EQ(copy(x, host.data(), 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeAsync(x, TestStream()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamSynchronize(TestStream()), cudaSuccess);
  EXPECT_EQ(cudaFree(y), cudaSuccess);
}

TEST_F(EmulatorRuntime, MemoryEnds) {
  size_t before = 0, free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(data, nullptr);
  ASSERT_EQ(cudaMalloc(&data, 1 << 20), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, before - (1 << 20));
  EXPECT_EQ(cudaFree(data), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, before);
}

}  // namespace
}  // namespace attnd::testing
