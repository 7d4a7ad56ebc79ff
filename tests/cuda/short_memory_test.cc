// What the CUDA device does where the driver has no memory for one call. The call says so, and what
// is asked for later is as if it had not been.
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/device/device.h"
#include "kernels/device/stream.h"
#include "tests/cuda/emulator/runtime.h"
#include "tests/cuda/emulator/streams.h"

namespace attnd::testing {
namespace {

using Bytes = std::vector<std::byte>;

class ShortMemory : public ::testing::Test {
 protected:
  ~ShortMemory() override { emu::ForgetErrors(); }

  std::shared_ptr<Buffer> NewBuffer(Stream& stream) {
    return device_->memory().Allocate(kBytes, stream.queue());
  }
  DeviceStatus Upload(Stream& stream, const Buffer& to, const Bytes& bytes) {
    const std::span<const std::byte> pieces[] = {bytes};
    return device_->Upload(stream, to.data(), pieces, nullptr);
  }

  static constexpr int64_t kBytes = 4096;
  const std::unique_ptr<Device> device_ = std::move(NewCudaDevices({}).devices.at(0));
};

// Symptom: a launch failed for what the call before it on the same thread had told.
TEST_F(ShortMemory, ALaunchHasNotTheErrorOfAnEarlierCall) {
  Stream stream(*device_, &device_->memory());
  const auto from = NewBuffer(stream), to = NewBuffer(stream);
  emu::faults.alloc = 1;  // of pinned memory
  const DeviceStatus uploaded = Upload(stream, *from, Bytes(kBytes));
  ASSERT_EQ(uploaded.code(), DeviceStatus::Code::kNoMemory) << uploaded.text();

  const Shape shape = {kBytes / 4};
  const DeviceStatus copied = device_->Run(
      stream, ElementwiseArgs{.problems = {{.a = DenseView(from->data(), DType::kF32, shape),
                                            .out = DenseView(to->data(), DType::kF32, shape)}}});
  EXPECT_TRUE(copied.ok()) << copied.text();
  EXPECT_TRUE(stream.Wait().ok());
}

// Symptom: attend answered that the device had failed, without the reason.
TEST_F(ShortMemory, ATableOfAttendThatFindsNoneSaysSo) {
  Stream stream(*device_, &device_->memory());
  const auto rows = NewBuffer(stream);
  const View view = DenseView(rows->data(), DType::kF32, {1, 1, 4, 8});
  const AttendProblem problem = {.q = view,
                                 .k = view,
                                 .v = view,
                                 .out = view,
                                 .lse = DenseView(rows->data(), DType::kF32, {1, 1, 4}),
                                 .seqs = {{.nq = 4, .nk = 4}}};
  emu::faults.alloc = 2;  // the table's memory, then pinned memory
  const DeviceStatus status = device_->Run(stream, AttendArgs{.problems = {problem}});
  EXPECT_EQ(status.code(), DeviceStatus::Code::kNoMemory);
  EXPECT_EQ(status.text(), "cuda: copy of a table: out of memory (cudaErrorMemoryAllocation)");
}

// Symptom: memory served another stream while a copy to it was under way, and the stream of that
// copy was told of an unknown error.
TEST_F(ShortMemory, WithoutAnEventABufferServesOthersOnceItsWorkHasPassed) {
  Stream first(*device_, &device_->memory()), second(*device_, &device_->memory());
  auto buffer = NewBuffer(first);
  void* const address = buffer->data();
  const Bytes data(kBytes, std::byte{7});
  ASSERT_TRUE(Upload(first, *buffer, data).ok());
  emu::stream_options.faulty_event = 1;
  buffer = nullptr;

  // It may not have passed.
  const auto other = NewBuffer(second);
  EXPECT_NE(other->data(), address);
  EXPECT_TRUE(first.Wait().ok());
  const auto next = NewBuffer(second);
  EXPECT_EQ(next->data(), address);
  Bytes seen(kBytes);
  ASSERT_TRUE(device_->Download(second, address, seen).ok());
  ASSERT_TRUE(second.Wait().ok());
  EXPECT_EQ(seen, data);
}

}  // namespace
}  // namespace attnd::testing
