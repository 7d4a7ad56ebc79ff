#include "kernels/engine/library_test.h"

#include <algorithm>

#include "kernels/engine/comparing_device.h"
#include "kernels/engine/random_array.h"

namespace attnd {
namespace {

// matmul of 16-bit matrices in every order of their elements. 2^30 products; all extents differ, so
// that an exchange of two shows.
void LaunchLargeProducts(Device& device, Stream& stream) {
  constexpr int64_t M = 1024, N = 2048, K = 512;
  const auto stored = [](DType dtype, int64_t rows, int64_t columns, bool by_columns) {
    RandomArray array(dtype, {rows, columns}, static_cast<unsigned>(rows + columns));
    if (by_columns) array.view.stride[0] = 1, array.view.stride[1] = rows;
    return array;
  };
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const bool a_by_columns : {false, true}) {
      for (const bool b_by_columns : {false, true}) {
        const RandomArray a = stored(dtype, M, K, a_by_columns),
                          b = stored(dtype, K, N, b_by_columns);
        // Each order of the operands with one of the result, of either dtype.
        const RandomArray out =
            stored(a_by_columns ? dtype : DType::kF32, M, N, a_by_columns == b_by_columns);
        // Errors of the device are in its row; the processor's would be those of SelfTest.
        static_cast<void>(device.Run(
            stream,
            MatMulArgs{.alpha = 0.5, .problems = {{.a = a.view, .b = b.view, .out = out.view}}}));
      }
    }
  }
}

// fft of every dtype, odd and even, in rows and in columns, beyond what one pass of own kernels
// does: a long side, and one with a large prime factor.
void LaunchLargeTransforms(Device& device, Stream& stream) {
  const auto launch = [&](DType dtype, const Shape& shape, bool by_columns) {
    RandomArray x(dtype, shape, 1), out(dtype, shape, 2);
    if (by_columns) x.view.stride[0] = 1, x.view.stride[1] = shape[0];
    static_cast<void>(device.Run(stream, FftArgs{.problems = {{.x = x.view, .out = out.view}}}));
  };
  launch(DType::kF32, {4125, 513}, /*by_columns=*/false);
  launch(DType::kF32, {1000, 2120}, /*by_columns=*/true);
  launch(DType::kF16, {1000, 2120}, /*by_columns=*/false);
  launch(DType::kBF16, {4125, 513}, /*by_columns=*/true);
}

constexpr LibraryTest kTests[] = {
    {.library = "cuBLASLt", .row = "matmul (cuBLASLt)", .launch = LaunchLargeProducts},
    {.library = "cuFFT", .row = "fft (cuFFT)", .launch = LaunchLargeTransforms},
};

}  // namespace

std::span<const LibraryTest> LibraryTests() { return kTests; }

const LibraryTest* LibraryTestOf(absl::string_view row) {
  const auto found = std::ranges::find(kTests, row, &LibraryTest::row);
  return found == std::end(kTests) ? nullptr : found;
}

void RunLibraryTest(const LibraryTest& test, Device& device, Device& reference,
                    SelfTestReport* report) {
  ComparingDevice comparing(device, reference);
  {
    Stream stream(comparing, &reference.memory());
    test.launch(comparing, stream);
  }
  comparing.AddTo(report, test.row);
}

}  // namespace attnd
