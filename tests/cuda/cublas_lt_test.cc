// Which products cuBLASLt computes, how much memory they are planned with, and what happens where
// it is absent, fails or is wrong: with the emulator's stand-in.
#include "kernels/cuda/cublas_lt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/matmul/matmul_library.h"
#include "kernels/engine/devices.h"
#include "tests/cuda/emulator/cublas_lt.h"
#include "tests/cuda/emulator/runtime.h"
#include "tests/cuda/large_products.h"
#include "tests/cuda/with_stand_in.h"

namespace attnd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CublasLt : public WithStandIn<emu::cublas_lt> {};

// Without memory: what is decided of a plan.
class CublasLtTakes : public CublasLt {
 protected:
  bool Takes(const MatMulProblem& problem, const cuda::MatMulFinish& finish = {}) {
    Stream dry(*device, nullptr);
    return cuda::LibraryProducts(*device, dry, finish).Take(problem);
  }
  static MatMulProblem Dense(int64_t M, int64_t N, int64_t K, DType dtype = DType::kF16) {
    return {.a = DenseView(nullptr, dtype, {1, M, K}),
            .b = DenseView(nullptr, dtype, {1, K, N}),
            .out = DenseView(nullptr, dtype, {1, M, N})};
  }

  const std::unique_ptr<OnHost> on_host = NewDevice(emu::CublasLt::kRight);
  cuda::CudaDevice* const device = static_cast<cuda::CudaDevice*>(&on_host->inner());
};

TEST_F(CublasLtTakes, LargeProductsOf16Bits) {
  EXPECT_TRUE(Takes(Dense(1024, 1024, 1024)));
  EXPECT_TRUE(Takes(Dense(1024, 1024, 1024, DType::kBF16)));
  EXPECT_FALSE(Takes(Dense(1024, 1024, 1024, DType::kF32)));
  // 2^30 products, and no less.
  EXPECT_FALSE(Takes(Dense(1024, 1024, 1016)));
  // Thin ones.
  EXPECT_TRUE(Takes(Dense(128, 8192, 1024)));
  EXPECT_FALSE(Takes(Dense(120, 16384, 1024)));
  EXPECT_FALSE(Takes(Dense(16384, 1024, 120)));
  // Few tiles: own kernels cut the sums.
  EXPECT_FALSE(Takes(Dense(512, 512, 8192)));
  MatMulProblem mixed = Dense(1024, 1024, 1024);
  mixed.b.dtype = DType::kBF16;
  EXPECT_FALSE(Takes(mixed));
  mixed = Dense(1024, 1024, 1024);
  mixed.out.dtype = DType::kBF16;
  EXPECT_FALSE(Takes(mixed));
  mixed.out.dtype = DType::kF32;
  EXPECT_TRUE(Takes(mixed));
}

TEST_F(CublasLtTakes, NothingThatFollowsTheSum) {
  const MatMulProblem plain = Dense(1024, 1024, 1024);
  EXPECT_TRUE(Takes(plain, {.alpha = 0.25}));
  EXPECT_FALSE(Takes(plain, {.scale = 2}));
  EXPECT_FALSE(Takes(plain, {.term = 1}));
  EXPECT_FALSE(Takes(plain, {.activates = true}));
  EXPECT_FALSE(Takes(plain, {.waves = cuda::MatMulFinish::Waves::kSinCos}));
  MatMulProblem other = plain;
  other.bias = DenseView(nullptr, DType::kF16, {1, 1, 1024});
  EXPECT_FALSE(Takes(other));
  other = plain;
  other.multiply = DenseView(nullptr, DType::kF16, {1, 1024, 1024});
  EXPECT_FALSE(Takes(other));
}

TEST_F(CublasLtTakes, LinesThatAreAligned) {
  // 16 bytes are 8 elements.
  EXPECT_TRUE(Takes(Dense(1000, 1096, 1000)));
  EXPECT_FALSE(Takes(Dense(1000, 1100, 1000)));
  MatMulProblem strided = Dense(1024, 1024, 1024);
  strided.a.stride[1] = 1032;
  EXPECT_TRUE(Takes(strided));
  strided.a.stride[1] = 1028;
  EXPECT_FALSE(Takes(strided));
  // Lines that repeat, overlap, or have gaps between elements.
  for (const int64_t row : {int64_t{0}, int64_t{512}, int64_t{-1024}}) {
    strided.a.stride[1] = row;
    EXPECT_FALSE(Takes(strided)) << row;
  }
  strided.a.stride[1] = 2048;
  strided.a.stride[2] = 2;
  EXPECT_FALSE(Takes(strided));
  // A batch whose second matrix is not aligned, and one that is summed.
  MatMulProblem batch = Dense(1024, 1024, 1024);
  for (View* view : {&batch.a, &batch.out}) view->shape.dims[0] = 2;
  EXPECT_TRUE(Takes(batch));
  batch.a.stride[0] += 4;
  EXPECT_FALSE(Takes(batch));
  batch = Dense(1024, 1024, 1024);
  batch.a.shape.dims[0] = batch.b.shape.dims[0] = 2;
  EXPECT_FALSE(Takes(batch));
}

// RunOn compares with the plan: the workspace that the stand-in asks for is part of it.
TEST_F(CublasLtTakes, PiecesOfRowsThatTakeASlice) {
  LargeProduct product(DType::kF16, DType::kF16);
  RunProducts(*on_host, 1, {&product});
  // The emulated device is slow: 256 rows take more than a slice, and the last piece has 232.
  EXPECT_EQ(LibraryOf(*on_host).calls, 4);
  product.Expect(1);
}

// It is planned as if the library computed it: a plan knows no addresses.
TEST_F(CublasLtTakes, WhatIsNotAlignedIsComputedByOwnKernels) {
  LargeProduct product(DType::kF16, DType::kF16);
  MatMulProblem p = product.problem();
  Stream stream(*device, &device->memory());
  const auto bytes = [](const View& view) { return view.bytes() + 2; };
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (View* view : {&p.a, &p.b, &p.out}) {
    buffers.push_back(device->memory().Allocate(bytes(*view), stream.queue()));
    const std::span<const std::byte> host[] = {
        {view->As<std::byte>(), static_cast<size_t>(view->bytes())}};
    view->data = static_cast<std::byte*>(buffers.back()->data()) + 2;
    ASSERT_TRUE(device->Upload(stream, view->data, host, nullptr).ok());
  }
  const MatMulArgs args{.problems = {p}};
  Stream dry(*device, nullptr);
  ASSERT_TRUE(device->Run(dry, args).ok());
  ASSERT_TRUE(device->Run(stream, args).ok());
  std::span<std::byte> to{product.out.view().As<std::byte>(), static_cast<size_t>(p.out.bytes())};
  ASSERT_TRUE(device->Download(stream, p.out.data, to).ok());
  ASSERT_TRUE(stream.Wait().ok());
  EXPECT_EQ(device->AboutLibrary("cuBLASLt").calls, 0);
  EXPECT_LE(stream.workspace().peak_bytes(), dry.workspace().peak_bytes());
  product.Expect(1);
}

TEST_F(CublasLt, OwnKernelsServeWhereItIsAbsentOrStartsNot) {
  EXPECT_THAT(LibraryOf(*NewDevice(emu::CublasLt::kNoHandle)).why_not,
              HasSubstr("cuBLASLt does not start: CUBLAS_STATUS_NOT_INITIALIZED"));
  const auto device = NewDevice(emu::CublasLt::kAbsent);
  EXPECT_EQ(LibraryOf(*device).name, "");
  EXPECT_EQ(LibraryOf(*device).why_not,
            "cuBLASLt (libcublasLt.so.13) is not installed: own kernels serve all products");
  LargeProduct product(DType::kF16, DType::kF16);
  RunProducts(*device, 1, {&product});
  product.Expect(1);
}

TEST_F(CublasLt, OwnKernelsServeWhereItHasNoAlgorithm) {
  const auto device = NewDevice(emu::CublasLt::kNoAlgorithm);
  LargeProduct product(DType::kBF16, DType::kF32);
  RunProducts(*device, 1, {&product});
  product.Expect(1);
  EXPECT_EQ(LibraryOf(*device).calls, 0);
  EXPECT_EQ(LibraryOf(*device).why_not, "");
}

TEST_F(CublasLt, OwnKernelsServeOnceItHasFailed) {
  const auto device = NewDevice(emu::CublasLt::kRight);
  EXPECT_EQ(LibraryOf(*device).name, "cuBLASLt 13.1.0");
  LargeProduct first(DType::kF16, DType::kF16), second(DType::kF16, DType::kF32);
  RunProducts(*device, 1, {&first});
  const int64_t products = LibraryOf(*device).calls;
  EXPECT_GT(products, 0);
  emu::cublas_lt = emu::CublasLt::kFails;
  RunProducts(*device, 1, {&first, &second});
  first.Expect(1);
  second.Expect(1);
  EXPECT_EQ(LibraryOf(*device).why_not, "cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED");
  EXPECT_THAT(warnings, ElementsAre("cuda:0: cuBLASLt has failed: cublasLtMatmul: "
                                    "CUBLAS_STATUS_EXECUTION_FAILED: own kernels serve all "
                                    "products"));
  // For good.
  emu::cublas_lt = emu::CublasLt::kRight;
  RunProducts(*device, 1, {&first});
  EXPECT_EQ(LibraryOf(*device).calls, products);
  EXPECT_EQ(warnings.size(), 1u);
}

TEST_F(CublasLt, ALostContextIsAFailureOfTheStream) {
  const auto device = NewDevice(emu::CublasLt::kRight);
  LargeProduct product(DType::kF16, DType::kF16);
  const MatMulArgs args{.problems = {product.problem()}};
  Stream stream(*device, &device->memory());
  emu::faults.launch = 1;
  const DeviceStatus status = device->Run(stream, args);
  EXPECT_EQ(status.code(), DeviceStatus::Code::kFailed);
  EXPECT_THAT(status.text(), HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_GT(LibraryOf(*device).calls, 0);
  emu::ForgetErrors();
}

TEST_F(CublasLt, ALibraryThatIsWrongIsSwitchedOff) {
  emu::cublas_lt = emu::CublasLt::kWrong;
  const Devices devices = NewServerDevices();
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuBLASLt").name, "");
  EXPECT_EQ(CudaLibraryOf(*devices.list.at(0), "cuBLASLt").why_not, "");
  EXPECT_THAT(devices.note,
              AllOf(HasSubstr("cuda:0: matmul (cuBLASLt) of float16 is switched off: differs"),
                    HasSubstr("cuda:0: matmul (cuBLASLt) of bfloat16 is switched off: differs")));
  EXPECT_THAT(devices.self_tests.at(0).failed, IsEmpty());
  EXPECT_THAT(devices.self_tests.at(0).failed_libraries, ElementsAre("cuBLASLt"));
}

TEST_F(CublasLt, ALibraryThatIsRightIsProven) {
  const Devices devices = NewServerDevices();
  EXPECT_EQ(devices.note, "");
  EXPECT_GE(CudaLibraryOf(*devices.list.at(0), "cuBLASLt").calls, 8);
  std::vector<std::string> rows;
  for (const SelfTestRow& row : devices.self_tests.at(0).rows) {
    if (row.primitive != "matmul (cuBLASLt)") continue;
    rows.push_back(row.dtype);
    EXPECT_EQ(row.failure, "");
    EXPECT_EQ(row.launches, 4);
  }
  EXPECT_THAT(rows, ElementsAre("bfloat16", "float16"));
}

TEST_F(CublasLt, WhatNothingHasProvenIsNotUsed) {
  const auto devices = NewDevices({.kinds = DeviceOptions::Kinds::kCuda,
                                   .cpu = {.threads = 1},
                                   .proof = DeviceOptions::Proof::kNone});
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ(devices->note, "");
  for (const char* name : {"cuBLASLt", "cuDNN", "cuFFT"}) {
    EXPECT_EQ(CudaLibraryOf(*devices->list.at(0), name).name, "") << name;
  }
}

}  // namespace
}  // namespace attnd::testing
