// The CUDA device apart from its kernels: copies in any pieces, memory in stream order, errors.
#include "kernels/cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/core/run_control.h"
#include "kernels/cuda/cuda.h"
#include "kernels/device/stream.h"

namespace attnd::testing {
namespace {

using Bytes = std::vector<std::byte>;

std::unique_ptr<Device> NewDevice() {
  CudaDevices found = NewCudaDevices({.retain_bytes = 1 << 20, .poison_memory = true});
  EXPECT_EQ(found.why_not, "");
  return std::move(found.devices.at(0));
}

Bytes RandomBytes(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  Bytes data(bytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

// It was that of float32, which 16-bit work went beyond: shares of it were above 1.
TEST(CudaDevice, ItsPeakIsThatOfItsTensorCores) {
  const auto device = NewDevice();
  const cuda::Cuda& cuda = static_cast<cuda::CudaDevice&>(*device).cuda();
  EXPECT_GT(cuda.tensor_flops, cuda.flops);
  EXPECT_GE(device->info().peak_flops, cuda.tensor_flops);
}

TEST(CudaDevice, CopiesPiecesOfAnySize) {
  const auto device = NewDevice();
  Stream stream(*device, &device->memory());
  // More than both slots of pinned memory hold.
  const Bytes data = RandomBytes((size_t{11} << 20) + 13, 1);
  for (const size_t piece : {data.size(), size_t{4} << 20, size_t{1000003}}) {
    std::vector<std::span<const std::byte>> pieces;
    for (size_t at = 0; at < data.size(); at += piece) {
      pieces.push_back(std::span(data).subspan(at, std::min(piece, data.size() - at)));
      pieces.push_back({});
    }
    const auto buffer = device->memory().Allocate(data.size(), stream.queue());
    ASSERT_TRUE(device->Upload(stream, buffer->data(), pieces, nullptr).ok());
    Bytes back(data.size());
    ASSERT_TRUE(device->Download(stream, buffer->data(), back).ok());
    ASSERT_TRUE(stream.Wait().ok());
    EXPECT_EQ(back, data);
  }
}

TEST(CudaDevice, ManySmallCopiesPassThroughTheSlotsInOrder) {
  const auto device = NewDevice();
  Stream stream(*device, &device->memory());
  // Each begins within the one before it, and the bytes of all are there in the end.
  constexpr size_t kBytes = size_t{1} << 20, kStep = kBytes - 4096;
  constexpr unsigned kCopies = 40;
  Bytes want(kCopies * kStep + kBytes);
  const auto buffer = device->memory().Allocate(want.size(), stream.queue());
  for (unsigned i = 0; i <= kCopies; ++i) {
    const Bytes data = RandomBytes(kBytes, i);
    std::copy(data.begin(), data.end(), want.begin() + static_cast<std::ptrdiff_t>(i * kStep));
    const std::span<const std::byte> pieces[] = {data};
    auto* const to = static_cast<std::byte*>(buffer->data()) + i * kStep;
    ASSERT_TRUE(device->Upload(stream, to, pieces, nullptr).ok());
  }
  Bytes back(want.size());
  ASSERT_TRUE(device->Download(stream, buffer->data(), back).ok());
  ASSERT_TRUE(stream.Wait().ok());
  EXPECT_EQ(back, want);
}

TEST(CudaDevice, AFreedBufferServesItsOwnStreamAtOnceAndOthersOncePassed) {
  const auto device = NewDevice();
  Stream first(*device, &device->memory()), second(*device, &device->memory());
  const Bytes data = RandomBytes(4096, 1);
  const std::span<const std::byte> pieces[] = {data};
  auto buffer = device->memory().Allocate(4096, first.queue());
  void* const address = buffer->data();
  ASSERT_TRUE(device->Upload(first, address, pieces, nullptr).ok());
  buffer = nullptr;
#ifndef ATTND_TESTS_ON_DEVICE  // which may have passed it by now
  EXPECT_NE(device->memory().Allocate(4096, second.queue())->data(), address);
#endif
  EXPECT_EQ(device->memory().Allocate(4096, first.queue())->data(), address);
  ASSERT_TRUE(first.Wait().ok());
  EXPECT_EQ(device->memory().Allocate(4096, second.queue())->data(), address);
}

TEST(CudaDevice, AStoppedRunCopiesNothingMore) {
  const auto device = NewDevice();
  RunControl control;
  Stream stream(*device, &device->memory(), &control);
  const auto buffer = device->memory().Allocate(4096, stream.queue());
  control.Cancel();
  const Bytes data(4096);
  const std::span<const std::byte> pieces[] = {data};
  EXPECT_EQ(device->Upload(stream, buffer->data(), pieces, nullptr).code(),
            DeviceStatus::Code::kStopped);
  Bytes back(4096);
  EXPECT_EQ(device->Download(stream, buffer->data(), back).code(), DeviceStatus::Code::kStopped);
}

TEST(CudaDevice, MemoryBeyondItsBudgetIsRefused) {
  CudaDevices found = NewCudaDevices({.memory_bytes = 1 << 20});
  BufferPool& memory = found.devices.at(0)->memory();
  const auto most = memory.Allocate(1 << 20);
  ASSERT_NE(most, nullptr);
  EXPECT_EQ(memory.Allocate(1), nullptr);
}

TEST(CudaDevice, TellsWhyADeviceIsMissing) {
  const CudaDevices found = NewCudaDevices({.devices = {0, 99, -1}});
  EXPECT_EQ(found.devices.size(), 1u);
  // A machine may have several.
  EXPECT_THAT(found.why_not,
              ::testing::MatchesRegex(
                  "cuda: device must be one of cuda:0 to cuda:[0-9]+, got cuda:99; cuda: "
                  "device must be one of cuda:0 to cuda:[0-9]+, got cuda:-1"));
  EXPECT_TRUE(found.unusable.empty());
}

}  // namespace
}  // namespace attnd::testing
