// Which gradients cuDNN computes, and what happens where it fails, is wrong or is stopped: with the
// emulator's stand-in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attend/attend_library.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/engine/devices.h"
#include "kernels/engine/library_test.h"
#include "tests/cuda/described_device.h"
#include "tests/cuda/emulator/cudnn.h"
#include "tests/cuda/large_gradient.h"
#include "tests/cuda/with_stand_in.h"

namespace attnd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CudnnGrad : public WithStandIn<emu::cudnn> {
 protected:
  int64_t CallsOf(Device& device, LargeGradient& gradient) {
    const int64_t before = AttentionLibraryOf(device).calls;
    RunGradients(device, {&gradient});
    return AttentionLibraryOf(device).calls - before;
  }
};

// Without memory: what is decided.
class CudnnGradTakes : public CudnnGrad {
 protected:
  static AttendGradProblem Plain(const AttentionSizes& sizes = GradientSizes()) {
    AttendGradProblem p = LargeGradient(sizes).problem();
    // Not null, which is a gradient that nobody wants.
    const auto each = [](View& view) { view.data = reinterpret_cast<void*>(16); };
    for (View* view : {&p.forward.q, &p.forward.k, &p.forward.v, &p.forward.out, &p.forward.lse,
                       &p.dout, &p.dq, &p.dk, &p.dv}) {
      each(*view);
    }
    return p;
  }
  bool Takes(const AttendGradProblem& problem, AttendParams params = {.scale = 0.125}) {
    const AttendGradArgs args{.params = params, .problems = {problem}};
    Stream stream(*device, &device->memory());
    const auto problems = cuda::LibraryProblemsOf(args);
    return !cuda::LibraryAttention(*device, stream, params, problems).empty();
  }

  const std::unique_ptr<OnHost> on_host = NewDevice(emu::Cudnn::kRight);
  cuda::CudaDevice* const device = static_cast<cuda::CudaDevice*>(&on_host->inner());
};

TEST_F(CudnnGradTakes, LargeSequencesOfAsManyHeadsOfKeysAsOfQueries) {
  EXPECT_TRUE(Takes(Plain()));
  EXPECT_TRUE(Takes(Plain(CausalGradientSizes(DType::kBF16))));
  EXPECT_FALSE(Takes(Plain(), {.scale = 0.125, .softcap = 30}));
  const auto takes = [&](const std::function<void(AttentionSizes&)>& change) {
    AttentionSizes sizes = WindowGradientSizes(DType::kF16, 0);
    sizes.H = sizes.Hkv = 80;
    change(sizes);
    return Takes(Plain(sizes));
  };
  EXPECT_TRUE(takes([](AttentionSizes&) {}));
  EXPECT_FALSE(takes([](AttentionSizes& s) { s.dtype = DType::kF32; }));
  EXPECT_FALSE(takes([](AttentionSizes& s) { s.Hkv = 40; }));
  // 2^30 multiply-adds, and no less.
  EXPECT_FALSE(takes([](AttentionSizes& s) { s.H = s.Hkv = 70; }));
  // 33 to 128 columns.
  EXPECT_TRUE(takes([](AttentionSizes& s) { s.D = 128, s.Dv = 40; }));
  EXPECT_FALSE(takes([](AttentionSizes& s) { s.D = 136; }));
  EXPECT_FALSE(takes([](AttentionSizes& s) { s.D = 32, s.Dv = 128; }));
  EXPECT_FALSE(takes([](AttentionSizes& s) { s.D = 128, s.Dv = 32; }));
  EXPECT_FALSE(takes([](AttentionSizes& s) { s.Nk = 520, s.lengths = {{512, 520}}; }));
}

TEST_F(CudnnGradTakes, AllThreeGradientsOf16BitsFromThatOfOutAlone) {
  const AttendGradProblem plain = Plain();
  AttendGradProblem p = plain;
  for (View AttendGradProblem::*view : {&AttendGradProblem::dout, &AttendGradProblem::dq,
                                        &AttendGradProblem::dk, &AttendGradProblem::dv}) {
    p = plain;
    p.*view = View();
    EXPECT_FALSE(Takes(p));
    p = plain;
    (p.*view).dtype = DType::kF32;
    EXPECT_FALSE(Takes(p));
    p = plain;
    (p.*view).stride[2] = 68;
    EXPECT_FALSE(Takes(p));
    p = plain;
    (p.*view).data = reinterpret_cast<void*>(8);
    EXPECT_FALSE(Takes(p));
  }
  p = plain;
  p.dlse = p.forward.lse;
  EXPECT_FALSE(Takes(p));
}

TEST_F(CudnnGrad, AnEngineThatVariesServesWhatMayVary) {
  const auto device = NewDevice(emu::Cudnn::kRight);
  LargeGradient gradient(GradientSizes(DType::kBF16));
  EXPECT_GT(CallsOf(*device, gradient), 0);
  const std::vector<double> once = gradient.Gradients();
  bool varies = false;
  for (int n = 0; n < 2 && !varies; ++n) {
    EXPECT_GT(CallsOf(*device, gradient), 0);
    gradient.Expect();
    varies = gradient.Gradients() != once;
  }
  EXPECT_TRUE(varies);
}

TEST_F(CudnnGrad, OwnKernelsServeWhereItHasNoEngine) {
  const auto device = NewDevice(emu::Cudnn::kNoEngine);
  LargeGradient gradient(CausalGradientSizes(DType::kF16));
  EXPECT_EQ(CallsOf(*device, gradient), 0);
  gradient.Expect();
}

TEST_F(CudnnGrad, OwnKernelsServeOnceItHasFailed) {
  const auto device = NewDevice(emu::Cudnn::kRight);
  AttentionSizes sizes = GradientSizes(DType::kF16);
  sizes.Nq = sizes.Nk = 600;
  LargeGradient gradient(sizes);
  EXPECT_GT(CallsOf(*device, gradient), 0);
  emu::cudnn = emu::Cudnn::kFails;
  EXPECT_EQ(CallsOf(*device, gradient), 0);
  gradient.Expect();
  EXPECT_EQ(AttentionLibraryOf(*device).why_not,
            "cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED");
  EXPECT_EQ(warnings.size(), 1u);
}

TEST_F(CudnnGrad, WhatItSpreadsIsComputedAgain) {
  const auto device = NewDevice(emu::Cudnn::kSpreads);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    LargeGradient gradient(CausalGradientSizes(dtype));
    gradient.MakeInfinite(0, 720);  // in a tile that is seen, itself not
    EXPECT_GT(CallsOf(*device, gradient), 0);
    gradient.Expect();
  }
}

// One rounded lse and products in another order make other weights of large scores: what the
// library computes is not used.
TEST_F(CudnnGrad, WhatIsOfALargeLseIsComputedAgain) {
  const auto absent = NewDevice(emu::Cudnn::kAbsent),
             wrong = NewDevice(emu::Cudnn::kWrongGradients);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    LargeGradient gradient(GradientSizes(dtype));
    AttendGradProblem p = gradient.problem();
    const TestArray low(DType::kF32, p.forward.lse.shape);
    p.forward.lse_low = low.view();
    const AttendParams params{.scale = 1e6};
    const AttendArgs forward{.params = params, .problems = {p.forward}};
    RunAsPlanned(*absent, forward, forward);
    const AttendGradArgs args{.params = params, .problems = {p}, .is_deterministic = false};
    std::vector<double> gradients[2];
    const int64_t before = AttentionLibraryOf(*wrong).calls;
    for (OnHost* device : {absent.get(), wrong.get()}) {
      gradient.Clear();
      RunAsPlanned(*device, args, args);
      gradients[device == wrong.get()] = gradient.Gradients();
    }
    EXPECT_GT(AttentionLibraryOf(*wrong).calls, before);
    EXPECT_TRUE(gradients[0] == gradients[1]);
  }
}

// Rows that see so many keys that own kernels sum them in several launches, in scratch of which
// only the tiles that are not finite reach the result: those of the queries that see the last keys.
TEST_F(CudnnGrad, WhatItSpreadsInLongRowsIsComputedAgain) {
  emu::cudnn = emu::Cudnn::kSpreads;
  const auto device = NewDescribedDevice(2, /*speed=*/1000);
  constexpr int64_t kKeys = 64 * 260;
  AttentionSizes sizes = CausalGradientSizes(DType::kF16);
  sizes.H = sizes.Hkv = 2, sizes.Dv = 40;
  sizes.Nk = kKeys, sizes.hi = kKeys - 200, sizes.lengths = {{512, kKeys}};
  LargeGradient gradient(sizes);
  gradient.MakeInfinite(0, kKeys - 10);
  EXPECT_GT(CallsOf(*device, gradient), 0);
  gradient.Expect();
}

TEST_F(CudnnGrad, WhatIsFiniteIsTheLibrarys) {
  LargeGradient gradient(CausalGradientSizes(DType::kF16));
  RunGradients(*NewDevice(emu::Cudnn::kRight), {&gradient});
  const std::vector<double> right = gradient.Gradients();
  RunGradients(*NewDevice(emu::Cudnn::kWrongGradients), {&gradient});
  EXPECT_NE(gradient.Gradients(), right);
}

// The clock is read whenever the run could end: a read later and later, until the library was
// asked.
TEST_F(CudnnGrad, ARunEndsBetweenTwoCalls) {
  using Time = RunControl::Clock::time_point;
  const auto device = NewDevice(emu::Cudnn::kRight);
  LargeGradient gradient(GradientSizes());
  const int64_t whole = CallsOf(*device, gradient);
  ASSERT_GT(whole, 1);
  const AttendGradArgs args{.params = LargeGradient::params(),
                            .problems = {gradient.problem()},
                            .is_deterministic = false};
  static int reads;
  for (int last = 1; AttentionLibraryOf(*device).calls == whole; ++last) {
    reads = 0;
    RunControl control(0, 0, [] { return Time(std::chrono::hours(++reads)); });
    control.StopAt(Time(std::chrono::hours(last)));
    Stream stream(*device, &device->memory(), &control);
    ASSERT_EQ(device->Run(stream, args).code(), DeviceStatus::Code::kStopped) << last;
  }
  EXPECT_LT(AttentionLibraryOf(*device).calls, 2 * whole);
}

TEST_F(CudnnGrad, ALibraryWithWrongGradientsStillAttends) {
  emu::cudnn = emu::Cudnn::kWrongGradients;
  const Devices devices = NewServerDevices();
  EXPECT_THAT(devices.note,
              HasSubstr("cuda:0: attend_grad (cuDNN) of float16 is switched off: differs"));
  EXPECT_THAT(devices.self_tests.at(0).failed_libraries, ElementsAre("cuDNN gradients"));
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuDNN").name, "cuDNN 9.28.1");
}

// Own kernels serve them then.
TEST_F(CudnnGrad, GradientsMayBeLeftToOwnKernels) {
  CudaDevices found = NewCudaDevices({.unused_libraries = {"cuDNN gradients"}});
  OnHost device(std::move(found.devices.at(0)));
  LargeGradient gradient(GradientSizes());
  EXPECT_EQ(CallsOf(device, gradient), 0);
  gradient.Expect();
}

}  // namespace
}  // namespace attnd::testing
