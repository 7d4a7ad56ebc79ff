// Which attention cuDNN computes, how much memory it is planned with, and what happens where it is
// absent, fails or is wrong: with the emulator's stand-in.
#include "kernels/cuda/cudnn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/cuda/attend/attend_library.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/engine/devices.h"
#include "tests/cuda/emulator/cudnn.h"
#include "tests/cuda/emulator/runtime.h"
#include "tests/cuda/large_attention.h"
#include "tests/cuda/with_stand_in.h"

namespace attnd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Cudnn : public WithStandIn<emu::cudnn> {
 protected:
  // Each launch of a self-test is several calls, and none is left to own kernels.
  static constexpr int64_t kSelfTestCalls =
      2 * (16 + 32 + 16 + 16) + 2 * (32 + 16 + 24 + 24) + 2 * (16 + 20 + 24 + 26);

  ~Cudnn() override { emu::cudnn_version = emu::kNewCudnn; }
};

// Without memory: what is decided.
class CudnnTakes : public Cudnn {
 protected:
  bool Takes(const AttendProblem& problem, AttendParams params = {.scale = 0.125}) {
    const AttendArgs args{.params = params, .problems = {problem}};
    Stream stream(*device, &device->memory());
    const auto problems = cuda::LibraryProblemsOf(args);
    return !cuda::LibraryAttention(*device, stream, params, problems).empty();
  }
  bool Takes(const AttentionSizes& sizes) {
    AttendProblem p = LargeAttention(sizes).problem();
    for (View* view : {&p.q, &p.k, &p.v, &p.out, &p.lse}) view->data = nullptr;
    return Takes(p);
  }
  static AttendProblem Plain() {
    AttendProblem p = LargeAttention({}).problem();
    for (View* view : {&p.q, &p.k, &p.v, &p.out, &p.lse}) view->data = nullptr;
    return p;
  }

  const std::unique_ptr<OnHost> on_host = NewDevice(emu::Cudnn::kRight);
  cuda::CudaDevice* const device = static_cast<cuda::CudaDevice*>(&on_host->inner());
};

TEST_F(CudnnTakes, LargeSequencesOf16Bits) {
  EXPECT_TRUE(Takes(AttentionSizes{}));
  EXPECT_TRUE(Takes({.dtype = DType::kBF16}));
  EXPECT_FALSE(Takes({.dtype = DType::kF32}));
  // 2^30 multiply-adds, and no less.
  EXPECT_FALSE(Takes({.Dv = 56}));
  EXPECT_TRUE(Takes({.D = 72, .Dv = 56}));
  // Columns are multiples of 8, more than 32 of values.
  EXPECT_FALSE(Takes({.D = 100, .Dv = 64}));
  EXPECT_FALSE(Takes({.D = 128, .Dv = 32}));
  // Lengths are multiples of 256, more than that.
  EXPECT_FALSE(Takes({.Nk = 520, .lengths = {{512, 520}}}));
  EXPECT_FALSE(Takes({.H = 64, .Hkv = 64, .Nq = 256, .Nk = 1024, .lengths = {{256, 1024}}}));
  EXPECT_TRUE(Takes({.Nq = 600, .Nk = 600}));
}

TEST_F(CudnnTakes, BandsOfWhichEveryQuerySeesAKey) {
  EXPECT_TRUE(Takes(CausalSizes(DType::kF16)));
  AttentionSizes band = {.H = 64, .Hkv = 64, .Nq = 768, .Nk = 768, .lengths = {{768, 768}}};
  for (const auto& [lo, hi, takes] : {std::tuple{-300, 0, true},
                                      {-400, 100, true},
                                      {1, 700, false},       // the last one sees none
                                      {-700, -1, false}}) {  // the first one does not
    band.lo = lo, band.hi = hi;
    EXPECT_EQ(Takes(band), takes) << lo << " " << hi;
  }
  // More queries than keys: causal, but no window.
  band.Nk = 512, band.lengths = {{768, 512}};
  for (const auto& [lo, takes] : {std::pair{kUnbounded, true}, {int64_t{-600}, false}}) {
    band.lo = lo, band.hi = 0;
    EXPECT_EQ(Takes(band), takes) << lo;
  }
  // Of another kind.
  AttendProblem p = Plain();
  p.seqs[0].pattern = std::make_shared<const Pattern>();
  EXPECT_FALSE(Takes(p));
  p = Plain();
  p.seqs[0].gathers = true;
  EXPECT_FALSE(Takes(p));
  p = Plain();
  p.seqs[0].head_patterns.resize(32);
  EXPECT_FALSE(Takes(p));
}

TEST_F(CudnnTakes, PlainScoresOnly) {
  EXPECT_TRUE(Takes(Plain()));
  EXPECT_FALSE(Takes(Plain(), {.scale = 0.125, .softcap = 30}));
  EXPECT_FALSE(Takes(Plain(), {.scale = -0.125}));
  EXPECT_FALSE(Takes(Plain(), {.scale = 0.125, .weighting = Weighting::kRelu}));
  AttendProblem p = Plain();
  p.terms.sinks = DenseView(nullptr, DType::kF32, {1, 32});
  EXPECT_FALSE(Takes(p));
  p = Plain();
  p.terms.bias = DenseView(nullptr, DType::kF16, {1, 32, 512, 512});
  EXPECT_FALSE(Takes(p));
  p = Plain();
  p.out.dtype = DType::kF32;
  EXPECT_FALSE(Takes(p));
}

TEST_F(CudnnTakes, RowsThatAreAligned) {
  EXPECT_TRUE(Takes({.layout = Layout::kBNHD}));
  for (View AttendProblem::*view : {&AttendProblem::q, &AttendProblem::k, &AttendProblem::out}) {
    AttendProblem p = Plain();
    (p.*view).stride[1] += 4;
    EXPECT_FALSE(Takes(p));
    p = Plain();
    (p.*view).stride[2] = 68;
    EXPECT_FALSE(Takes(p));
    p = Plain();
    (p.*view).data = reinterpret_cast<void*>(8);
    EXPECT_FALSE(Takes(p));
  }
}

// The emulated device is slow: two kv heads of 16 take a slice and more.
TEST_F(CudnnTakes, CallsOfHeadsThatTakeASlice) {
  LargeAttention attention({});
  RunAttention(*on_host, {&attention});
  EXPECT_EQ(AttentionLibraryOf(*on_host).calls, 16);
  attention.Expect();
  // A group of more heads would take many: own kernels can be stopped.
  EXPECT_FALSE(Takes({.Hkv = 2}));
}

TEST_F(Cudnn, OwnKernelsServeWhereItIsAbsentOrStartsNot) {
  EXPECT_EQ(AttentionLibraryOf(*NewDevice(emu::Cudnn::kNoHandle)).why_not,
            "cuDNN does not start: CUDNN_STATUS_NOT_INITIALIZED: own kernels serve all attention");
  const auto device = NewDevice(emu::Cudnn::kAbsent);
  EXPECT_EQ(AttentionLibraryOf(*device).name, "");
  EXPECT_EQ(AttentionLibraryOf(*device).why_not,
            "cuDNN (libcudnn.so.9) is not installed: own kernels serve all attention");
  LargeAttention attention({});
  RunAttention(*device, {&attention});
  attention.Expect();
}

TEST_F(Cudnn, OwnKernelsServeWhereItsVersionIsWrong) {
  for (const auto& [version, text] : {std::pair{91001, "9.10.1"}, {91400, "9.14.0"}}) {
    emu::cudnn_version = version;
    EXPECT_EQ(
        AttentionLibraryOf(*NewDevice(emu::Cudnn::kRight)).why_not,
        std::string("cuDNN does not start: it must be 9.10.2 or later, but not 9.14.0, got ") +
            text + ": own kernels serve all attention");
  }
  for (const auto& [version, name] : {std::pair{91002, "cuDNN 9.10.2"}, {91900, "cuDNN 9.19.0"}}) {
    emu::cudnn_version = version;
    EXPECT_EQ(AttentionLibraryOf(*NewDevice(emu::Cudnn::kRight)).name, name);
  }
}

TEST_F(Cudnn, OwnKernelsServeWhereItHasNoEngine) {
  const auto device = NewDevice(emu::Cudnn::kNoEngine);
  LargeAttention attention(CausalSizes(DType::kBF16));
  RunAttention(*device, {&attention});
  attention.Expect();
  EXPECT_EQ(AttentionLibraryOf(*device).calls, 0);
  EXPECT_EQ(AttentionLibraryOf(*device).why_not, "");
}

TEST_F(Cudnn, OwnKernelsServeOnceItHasFailed) {
  const auto device = NewDevice(emu::Cudnn::kRight);
  EXPECT_EQ(AttentionLibraryOf(*device).name, "cuDNN 9.28.1");
  LargeAttention attention({.Nq = 600, .Nk = 600});
  RunAttention(*device, {&attention});
  const int64_t calls = AttentionLibraryOf(*device).calls;
  EXPECT_GT(calls, 0);
  emu::cudnn = emu::Cudnn::kFails;
  RunAttention(*device, {&attention});
  attention.Expect();
  EXPECT_EQ(AttentionLibraryOf(*device).why_not,
            "cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED");
  EXPECT_THAT(warnings, ElementsAre("cuda:0: cuDNN has failed: cudnnBackendExecute: "
                                    "CUDNN_STATUS_EXECUTION_FAILED: own kernels serve all "
                                    "attention"));
  // For good.
  emu::cudnn = emu::Cudnn::kRight;
  RunAttention(*device, {&attention});
  EXPECT_EQ(AttentionLibraryOf(*device).calls, calls);
  EXPECT_EQ(warnings.size(), 1u);
}

TEST_F(Cudnn, ALostContextIsAFailureOfTheStream) {
  const auto device = NewDevice(emu::Cudnn::kRight);
  LargeAttention attention({});
  const AttendArgs args{.params = {.scale = 0.125}, .problems = {attention.problem()}};
  Stream stream(*device, &device->memory());
  emu::faults.launch = 1;
  const DeviceStatus status = device->Run(stream, args);
  EXPECT_EQ(status.code(), DeviceStatus::Code::kFailed);
  EXPECT_THAT(status.text(), HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_GT(AttentionLibraryOf(*device).calls, 0);
  emu::ForgetErrors();
}

// The devices of a server, which prove themselves first.
TEST_F(Cudnn, ALibraryThatIsWrongIsSwitchedOff) {
  emu::cudnn = emu::Cudnn::kWrong;
  const Devices devices = NewServerDevices();
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuDNN").name, "");
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuDNN").why_not, "");
  EXPECT_THAT(devices.note,
              AllOf(HasSubstr("cuda:0: attend (cuDNN) of float16 is switched off: differs"),
                    HasSubstr("cuda:0: attend (cuDNN) of bfloat16 is switched off: differs")));
  EXPECT_THAT(devices.self_tests.at(0).failed, IsEmpty());
  EXPECT_THAT(devices.self_tests.at(0).failed_libraries,
              ElementsAre("cuDNN", "cuDNN in bands", "cuDNN gradients"));
}

TEST_F(Cudnn, ALibraryThatIsWrongInBandsKeepsDenseAttention) {
  emu::cudnn = emu::Cudnn::kWrongBands;
  const Devices devices = NewServerDevices();
  EXPECT_THAT(devices.note,
              HasSubstr("cuda:0: attend in bands (cuDNN) of float16 is switched off: differs"));
  EXPECT_THAT(devices.note, Not(HasSubstr("attend (cuDNN)")));
  EXPECT_THAT(devices.self_tests.at(0).failed_libraries, ElementsAre("cuDNN in bands"));
  Device& device = *devices.list.at(0);
  EXPECT_EQ(CudaLibraryOf(device, "cuDNN").name, "cuDNN 9.28.1");
}

// Own kernels serve them then.
TEST_F(Cudnn, BandsMayBeLeftToOwnKernels) {
  CudaDevices found = NewCudaDevices({.unused_libraries = {"cuDNN in bands"}});
  OnHost device(std::move(found.devices.at(0)));
  LargeAttention dense({}), causal({.hi = 0});
  for (LargeAttention* attention : {&causal, &dense}) {
    const AttendArgs args{.params = {.scale = 0.125}, .problems = {attention->problem()}};
    Stream stream(device, &device.memory());
    EXPECT_TRUE(device.Run(stream, args).ok());
    EXPECT_TRUE(stream.Wait().ok());
    EXPECT_EQ(AttentionLibraryOf(device).calls > 0, attention == &dense);
  }
}

TEST_F(Cudnn, HeadsThatAreNotFiniteAreComputedAgain) {
  const auto device = NewDevice(emu::Cudnn::kSpreads);
  LargeAttention attention(CausalSizes(DType::kBF16));
  attention.MakeInfinite(0, 520);  // row 256 sees the first key of its tile alone
  RunAttention(*device, {&attention});
  attention.Expect();
}

TEST_F(Cudnn, HeadsThatAreFiniteAreTheLibrarys) {
  LargeAttention attention(CausalSizes(DType::kF16));
  RunAttention(*NewDevice(emu::Cudnn::kRight), {&attention});
  const std::vector<double> right = attention.ResultsOf(0);
  RunAttention(*NewDevice(emu::Cudnn::kWrongBands), {&attention});
  EXPECT_NE(attention.ResultsOf(0), right);
}

// One rounded lse would make other weights of the scores that a gradient computes again: own
// kernels compute both numbers.
TEST_F(Cudnn, HeadsOfALargeLseAreComputedAgain) {
  LargeAttention attention({});
  const TestArray low(DType::kF32, {1, 32, 512});
  const auto run = [&](Device& device, double scale) {
    attention.Clear();
    AttendProblem p = attention.problem();
    p.lse_low = low.view();
    const AttendArgs args{.params = {.scale = scale}, .problems = {p}};
    RunAsPlanned(device, args, args);
    std::vector<double> results = attention.ResultsOf(0);
    const PlainArray lows = low.Read();
    results.insert(results.end(), lows.values.begin(), lows.values.end());
    return results;
  };
  const auto right = NewDevice(emu::Cudnn::kRight), wrong = NewDevice(emu::Cudnn::kWrong),
             absent = NewDevice(emu::Cudnn::kAbsent);
  emu::cudnn = emu::Cudnn::kRight;
  run(*right, LargeAttention::kScale);
  attention.Expect();
  for (const double x : low.Read().values) ASSERT_EQ(x, 0);
  // What it computes is not used.
  emu::cudnn = emu::Cudnn::kWrong;
  EXPECT_TRUE(run(*wrong, 1e4) == run(*absent, 1e4));
  EXPECT_GT(AttentionLibraryOf(*wrong).calls, 0);
}

// As NVIDIA's engines do: own kernels compute heads again that are not finite.
TEST_F(Cudnn, ALibraryThatIsRightButForWhatIsInvisibleIsProven) {
  emu::cudnn = emu::Cudnn::kSpreads;
  const Devices devices = NewServerDevices();
  EXPECT_EQ(devices.note, "");
  std::vector<std::string> rows;
  for (const SelfTestRow& row : devices.self_tests.at(0).rows) {
    if (!absl::StrContains(row.primitive, "(cuDNN)")) continue;
    rows.push_back(row.dtype);
    EXPECT_EQ(row.failure, "");
    EXPECT_EQ(row.launches, 4);
  }
  EXPECT_THAT(rows,
              ElementsAre("bfloat16", "float16", "bfloat16", "float16", "bfloat16", "float16"));
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuDNN").calls, kSelfTestCalls);
}

}  // namespace
}  // namespace attnd::testing
