// Large products of 16-bit matrices by cuBLASLt, on a device or the emulator's stand-in: right in
// every order of elements, and the same bits alone, in a batch and in a list.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/device/stream.h"
#include "tests/cuda/large_products.h"

namespace attnd::testing {
namespace {

class CublasLtCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (LibraryOf(device).name.empty()) GTEST_SKIP() << LibraryOf(device).why_not;
  }
  // How many products the library is asked for.
  template <class F>
  int64_t ServedBy(const F& run) {
    const int64_t before = LibraryOf(device).calls;
    run();
    return LibraryOf(device).calls - before;
  }

  Device& device = CpuOf("cuda", 1);
};

TEST_F(CublasLtCuda, EveryOrderOfElements) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const Memory a : {Memory::kDense, Memory::kTransposed}) {
      for (const Memory b : {Memory::kDense, Memory::kTransposed}) {
        const Memory out = a == b ? Memory::kDense : Memory::kTransposed;
        LargeProduct product(dtype, b == Memory::kDense ? DType::kF32 : dtype, {a, b, out});
        EXPECT_GT(ServedBy([&] { RunProducts(device, -0.5, {&product}); }), 0);
        product.Expect(-0.5);
      }
    }
  }
}

TEST_F(CublasLtCuda, BatchesAndListsHaveTheBitsOfTheirMatrices) {
  LargeProduct shared(DType::kF16, DType::kF32, {}, 2);
  LargeProduct paired(DType::kF16, DType::kF32, {.b = Memory::kTransposed}, 2, /*shares_b=*/false);
  EXPECT_GT(ServedBy([&] { RunProducts(device, 1, {&shared, &paired}); }), 0);
  for (const LargeProduct* batch : {&shared, &paired}) {
    batch->Expect(1);
    const std::vector<std::byte> all = batch->out.Bytes();
    const MatMulProblem of_batch = batch->problem();
    for (int64_t i = 0; i < 2; ++i) {
      MatMulProblem p = of_batch;
      for (View* view : {&p.a, &p.b, &p.out}) {
        const int64_t matrix = view->shape[0] == 1 ? 0 : i;
        view->data = view->As<std::byte>() + matrix * view->stride[0] * SizeOf(view->dtype);
        view->shape.dims[0] = 1;
      }
      TestArray alone(DType::kF32, p.out.shape);
      p.out = alone.view();
      const MatMulArgs args{.problems = {p}};
      RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
      const std::vector<std::byte> bytes = alone.Bytes();
      const auto begin = all.begin() + i * static_cast<int64_t>(bytes.size());
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), begin)) << "matrix " << i;
    }
  }
}

}  // namespace
}  // namespace attnd::testing
