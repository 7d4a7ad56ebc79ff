// Which transforms cuFFT computes, how much memory they are planned with, and what happens where it
// is absent, fails or is wrong: with the emulator's stand-in.
#include "kernels/cuda/cufft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/fft/fft_library.h"
#include "kernels/engine/devices.h"
#include "tests/cuda/emulator/cufft_stand_in.h"
#include "tests/cuda/emulator/runtime.h"
#include "tests/cuda/large_transforms.h"
#include "tests/cuda/with_stand_in.h"

namespace attnd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Cufft : public WithStandIn<emu::cufft> {
 protected:
  static cuda::CudaDevice& InnerOf(OnHost& device) {
    return static_cast<cuda::CudaDevice&>(device.inner());
  }

  const Shape odd{LargeTransform::kOdd[0], LargeTransform::kOdd[1]};
};

// What is decided of a plan, without memory.
TEST_F(Cufft, TakesLargeTransformsWithoutLargePrimes) {
  const auto device = NewDevice(emu::Cufft::kRight);
  Stream dry(InnerOf(*device), nullptr);
  const int before = emu::cufft_alive;
  const auto takes = [&](const Shape& shape, DType dtype = DType::kF32) {
    const View view = DenseView(nullptr, dtype, shape);
    const FftProblem problem{.x = view, .out = view};
    return cuda::LibraryFfts(InnerOf(*device), dry).Take(problem);
  };
  EXPECT_TRUE(takes({4125, 513}));
  EXPECT_TRUE(takes({3, 2, 4125, 513}, DType::kBF16));
  EXPECT_TRUE(takes({513, 4125}, DType::kF16));
  EXPECT_FALSE(takes({0, 4125, 513}));
  // 2^21 elements of a matrix and no less, 2^27 and no more.
  EXPECT_TRUE(takes({8192, 256}));
  EXPECT_FALSE(takes({8192, 255}));
  EXPECT_FALSE(takes({64, 8192, 255}));
  EXPECT_TRUE(takes({8192, 16384}));
  EXPECT_FALSE(takes({8192, 16385}));
  EXPECT_TRUE(takes({2, 1 << 20}));
  EXPECT_FALSE(takes({1, 1 << 21}));
  // One pass a side of own kernels.
  EXPECT_FALSE(takes({4096, 4096}));
  EXPECT_TRUE(takes({4096, 53 * 64}));
  // Prime factors to 127.
  EXPECT_TRUE(takes({127 * 66, 256}));
  EXPECT_FALSE(takes({131 * 66, 256}));
  EXPECT_FALSE(takes({256, 131 * 66}));
  // The library has been asked for nothing.
  EXPECT_EQ(emu::cufft_alive, before);
}

TEST_F(Cufft, KeepsAFewPlans) {
  const int before = emu::cufft_alive;
  {
    const auto device = NewDevice(emu::Cufft::kRight);
    cuda::Cufft& library = *InnerOf(*device).cufft();
    const int made = emu::cufft_made;
    const auto first = library.PlanOf(2048, 1), again = library.PlanOf(2048, 1);
    EXPECT_EQ(first, again);
    EXPECT_EQ(emu::cufft_made, made + 1);
    const int most = cuda::Cufft::kMostPlans;
    for (int n = 1; n <= 2 * most; ++n) {
      EXPECT_NE(library.PlanOf(4096, n), nullptr);
      // In use all the time.
      EXPECT_EQ(library.PlanOf(2048, 1), first);
    }
    EXPECT_EQ(emu::cufft_alive - before, most);
    // 16 bytes an element of a side: four of these at most.
    for (int64_t n = 1; n <= 8; ++n) EXPECT_NE(library.PlanOf(1 << 20, n), nullptr);
    EXPECT_LE(emu::cufft_alive - before, 5);
    EXPECT_GE(emu::cufft_alive - before, 3);
  }
  EXPECT_EQ(emu::cufft_alive, before);
}

// Until the device was waited for, a plan lives, though others have taken its place.
TEST_F(Cufft, APlanOutlivesItsWork) {
  const int before = emu::cufft_alive, most = cuda::Cufft::kMostPlans;
  const auto device = NewDevice(emu::Cufft::kRight);
  cuda::CudaDevice& inner = InnerOf(*device);
  Stream stream(inner, &inner.memory());
  const auto x = inner.memory().Allocate(odd.size() * 4, stream.queue()),
             out = inner.memory().Allocate(odd.size() * 4, stream.queue());
  const FftProblem problem{.x = DenseView(x->data(), DType::kF32, odd),
                           .out = DenseView(out->data(), DType::kF32, odd)};
  ASSERT_TRUE(inner.Run(stream, FftArgs{.problems = {problem}}).ok());
  EXPECT_EQ(CufftOf(*device).calls, 1);
  for (int n = 1; n <= most; ++n) EXPECT_NE(inner.cufft()->PlanOf(4096, n), nullptr);
  EXPECT_EQ(emu::cufft_alive - before, most + 1);
  EXPECT_TRUE(stream.Wait().ok());
  EXPECT_EQ(emu::cufft_alive - before, most);
}

TEST_F(Cufft, LanesShareAPlan) {
  const auto device = NewDevice(emu::Cufft::kRight);
  std::vector<std::thread> lanes;
  std::vector<LargeTransform> transforms;
  for (int lane = 0; lane < 2; ++lane) transforms.emplace_back(DType::kF32, DType::kF32, odd);
  for (LargeTransform& transform : transforms) {
    lanes.emplace_back([&] { RunTransforms(*device, {&transform}); });
  }
  for (std::thread& lane : lanes) lane.join();
  for (const LargeTransform& transform : transforms) transform.Expect();
  EXPECT_EQ(CufftOf(*device).calls, 2);
}

// The clock is read whenever the run could end: later and later, until the library was asked.
TEST_F(Cufft, ARunEndsBetweenTwoMatrices) {
  using Time = RunControl::Clock::time_point;
  const auto device = NewDevice(emu::Cufft::kRight);
  const int64_t matrices = 4;
  LargeTransform batch(DType::kBF16, DType::kBF16, {matrices, odd[0], odd[1]});
  const FftArgs args{.problems = {batch.problem()}};
  static int reads;
  for (int last = 16; CufftOf(*device).calls == 0; last *= 2) {
    reads = 0;
    RunControl control(0, 0, [] { return Time(std::chrono::hours(++reads)); });
    control.StopAt(Time(std::chrono::hours(last)));
    Stream stream(*device, &device->memory(), &control);
    const DeviceStatus status = device->Run(stream, args);
    ASSERT_EQ(status.code(), DeviceStatus::Code::kStopped) << last;
  }
  EXPECT_LT(CufftOf(*device).calls, matrices);
}

TEST_F(Cufft, OwnKernelsServeWhereItIsAbsentOrStartsNot) {
  EXPECT_EQ(CufftOf(*NewDevice(emu::Cufft::kNoHandle)).why_not,
            "cuFFT does not start: CUFFT_SETUP_FAILED: own kernels serve all transforms");
  const auto device = NewDevice(emu::Cufft::kAbsent);
  EXPECT_EQ(CufftOf(*device).name, "");
  EXPECT_EQ(CufftOf(*device).why_not,
            "cuFFT (libcufft.so.12) is not installed: own kernels serve all transforms");
  LargeTransform transform(DType::kF16, DType::kF16, odd);
  RunTransforms(*device, {&transform});
  transform.Expect();
}

TEST_F(Cufft, OwnKernelsServeWhereItHasNoPlanThatFits) {
  for (const emu::Cufft how : {emu::Cufft::kNoPlan, emu::Cufft::kGreedy}) {
    const auto device = NewDevice(how);
    LargeTransform transform(DType::kF32, DType::kF32, odd);
    RunTransforms(*device, {&transform});
    transform.Expect();
    EXPECT_EQ(CufftOf(*device).calls, 0);
    EXPECT_EQ(CufftOf(*device).why_not, "");
  }
}

// RunOn compares memory with the plan, which knows of no failure.
TEST_F(Cufft, OwnKernelsServeOnceItHasFailed) {
  const auto device = NewDevice(emu::Cufft::kRight);
  EXPECT_EQ(CufftOf(*device).name, "cuFFT 12.0.0");
  // Of which own kernels take memory at once, the library one after the other.
  LargeTransform first(DType::kF32, DType::kF32, {2, odd[0], odd[1]});
  LargeTransform small(DType::kF32, DType::kF32, {63, 65});
  RunTransforms(*device, {&first});
  EXPECT_EQ(CufftOf(*device).calls, 2);
  emu::cufft = emu::Cufft::kFails;
  RunTransforms(*device, {&small, &first});
  first.Expect();
  EXPECT_EQ(CufftOf(*device).why_not, "cufftExecR2C: CUFFT_EXEC_FAILED");
  EXPECT_THAT(warnings, ElementsAre("cuda:0: cuFFT has failed: cufftExecR2C: CUFFT_EXEC_FAILED: "
                                    "own kernels serve all transforms"));
  // For good.
  emu::cufft = emu::Cufft::kRight;
  RunTransforms(*device, {&first});
  EXPECT_EQ(CufftOf(*device).calls, 2);
  EXPECT_EQ(warnings.size(), 1u);
}

TEST_F(Cufft, ALostContextIsAFailureOfTheStream) {
  const auto device = NewDevice(emu::Cufft::kRight);
  LargeTransform transform(DType::kF32, DType::kF32, odd);
  const FftArgs args{.problems = {transform.problem()}};
  Stream stream(*device, &device->memory());
  emu::faults.launch = 2;
  const DeviceStatus status = device->Run(stream, args);
  EXPECT_EQ(status.code(), DeviceStatus::Code::kFailed);
  EXPECT_THAT(status.text(), HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_EQ(CufftOf(*device).why_not, "");
  emu::ForgetErrors();
}

TEST_F(Cufft, ALibraryThatIsWrongIsSwitchedOff) {
  emu::cufft = emu::Cufft::kWrong;
  const Devices devices = NewServerDevices();
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuFFT").name, "");
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuFFT").why_not, "");
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuBLASLt").name, "cuBLASLt 13.1.0");
  EXPECT_THAT(devices.note,
              AllOf(HasSubstr("cuda:0: fft (cuFFT) of float32 is switched off: differs"),
                    HasSubstr("cuda:0: fft (cuFFT) of float16 is switched off: differs"),
                    HasSubstr("cuda:0: fft (cuFFT) of bfloat16 is switched off: differs")));
  EXPECT_THAT(devices.self_tests.at(0).failed, IsEmpty());
  EXPECT_THAT(devices.self_tests.at(0).failed_libraries, ElementsAre("cuFFT"));
}

TEST_F(Cufft, ALibraryWithoutPlansIsSwitchedOff) {
  emu::cufft = emu::Cufft::kNoPlan;
  const Devices devices = NewServerDevices();
  EXPECT_THAT(devices.note, HasSubstr("cuda:0: fft (cuFFT) of float32 is switched off: the "
                                      "library computes nothing of the test"));
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuFFT").name, "");
}

TEST_F(Cufft, ALibraryThatIsRightIsProven) {
  const Devices devices = NewServerDevices();
  EXPECT_EQ(devices.note, "");
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuFFT").calls, 4);
  std::vector<std::string> rows;
  for (const SelfTestRow& row : devices.self_tests.at(0).rows) {
    if (row.primitive != "fft (cuFFT)") continue;
    rows.push_back(row.dtype);
    EXPECT_EQ(row.failure, "");
    EXPECT_EQ(row.launches, row.dtype == "float32" ? 2 : 1);
  }
  EXPECT_THAT(rows, ElementsAre("bfloat16", "float16", "float32"));
}

}  // namespace
}  // namespace attnd::testing
