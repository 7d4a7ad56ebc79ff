// Large transforms by cuFFT, on a device or the emulator's stand-in: right for all types and orders
// of elements, and the same bits alone, in a batch and in a list.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/device/stream.h"
#include "tests/cuda/large_transforms.h"

namespace attnd::testing {
namespace {

class CufftCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CufftOf(device).name.empty()) GTEST_SKIP() << CufftOf(device).why_not;
  }
  // How many transforms the library is asked for.
  template <class F>
  int64_t ServedBy(const F& run) {
    const int64_t before = CufftOf(device).calls;
    run();
    return CufftOf(device).calls - before;
  }

  Device& device = CpuOf("cuda", 1);
  const Shape odd{LargeTransform::kOdd[0], LargeTransform::kOdd[1]};
  const Shape even{LargeTransform::kEven[0], LargeTransform::kEven[1]};
};

TEST_F(CufftCuda, EveryTypeAndOrderOfElements) {
  LargeTransform list[] = {
      {DType::kF32, DType::kF32, odd},
      {DType::kF32, DType::kF32, even, Memory::kPitched, Memory::kTransposed},
      {DType::kF16, DType::kF32, even, Memory::kTransposed, Memory::kPitched},
      {DType::kF32, DType::kF16, odd, Memory::kPitched, Memory::kPitched},
      {DType::kBF16, DType::kBF16, even},
  };
  for (LargeTransform& transform : list) {
    EXPECT_EQ(ServedBy([&] { RunTransforms(device, {&transform}); }), 1);
    transform.Expect();
  }
}

TEST_F(CufftCuda, BatchesAndListsHaveTheBitsOfTheirMatrices) {
  LargeTransform batch(DType::kF32, DType::kF32, {2, 1, odd[0], odd[1]}, Memory::kPitched);
  LargeTransform other(DType::kF16, DType::kF32, even);
  // Own kernels compute it in the same launch.
  LargeTransform small(DType::kF32, DType::kF32, {63, 1000});
  EXPECT_EQ(ServedBy([&] { RunTransforms(device, {&other, &small, &batch}); }), 3);
  const std::vector<std::byte> of_other = other.out.Bytes(), of_small = small.out.Bytes(),
                               all = batch.out.Bytes();
  small.Expect();
  batch.Expect();
  RunTransforms(device, {&other});
  EXPECT_TRUE(other.out.Bytes() == of_other);
  RunTransforms(device, {&small});
  EXPECT_TRUE(small.out.Bytes() == of_small);
  for (int64_t i = 0; i < 2; ++i) {
    TestArray alone(DType::kF32, odd);
    View x = batch.x.view();
    x.data = x.As<float>() + i * x.stride[0];
    x.shape = odd;
    x.stride = {x.stride[2], x.stride[3]};
    const FftArgs args{.problems = {{.x = x, .out = alone.view()}}};
    RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
    const std::vector<std::byte> bytes = alone.Bytes();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(),
                           all.begin() + i * static_cast<int64_t>(bytes.size())))
        << "matrix " << i;
  }
}

TEST_F(CufftCuda, OneElementThatIsNotFiniteReachesItsMatrixAlone) {
  LargeTransform batch(DType::kF32, DType::kF16, {3, odd[0], odd[1]});
  PlainArray values = batch.x.Read();
  const size_t size = static_cast<size_t>(odd.size());
  values.values[size + 1000] = -INFINITY;
  batch.x.Write(values);
  EXPECT_EQ(ServedBy([&] { RunTransforms(device, {&batch}); }), 3);
  const PlainArray read = batch.out.Read();
  for (size_t i = 0; i < read.values.size(); ++i) {
    ASSERT_EQ(std::isfinite(read.values[i]), i / size != 1) << i;
  }
}

}  // namespace
}  // namespace attnd::testing
