// Products on the CUDA device: thread orders, lists, sums that tensor cores cannot do, ways of
// copying tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <list>
#include <string>
#include <vector>

#include "tests/cuda/lists.h"
#include "tests/plain/plain_matmul.h"

namespace attnd::testing {
namespace {

// Products of a list with their arrays.
class Products {
 public:
  MatMulProblem& Add(DType a, DType b, DType out, const Shape& of_a, const Shape& of_b,
                     const Shape& of_out, Memory memory = Memory::kDense) {
    MatMulProblem p;
    p.a = Random(a, of_a, memory);
    p.b = Random(b, of_b, memory);
    p.out = outs_.emplace_back(out, of_out, memory).view();
    args.problems.push_back(p);
    return args.problems.back();
  }
  View Random(DType dtype, const Shape& shape, Memory memory = Memory::kDense) {
    const auto seed = static_cast<unsigned>(in_.size() + 1);
    return in_.emplace_back(TestArray::Random(seed, dtype, shape, memory)).view();
  }
  std::vector<TestArray*> outs() {
    std::vector<TestArray*> all;
    for (TestArray& out : outs_) all.push_back(&out);
    return all;
  }
  // Also: the results are those of plain loops to `relative` of their largest, and the guards
  // whole.
  void Expect(double relative) {
    ExpectOneResult(args, outs());
    Device& device = CpuOf("cuda", 1);
    RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
    size_t i = 0;
    for (TestArray& out : outs_) {
      SCOPED_TRACE(ToString(out.view().shape) + " number " + std::to_string(i));
      const PlainArray truth = MatMulIn<double>(args, args.problems[i++]);
      double largest = 0;
      for (double x : truth.values) largest = std::max(largest, std::fabs(x));
      ExpectNear(out.Read(), truth, 0, relative * largest);
      EXPECT_TRUE(out.GuardsIntact());
    }
  }

  MatMulArgs args;

 private:
  std::list<TestArray> in_, outs_;
};

TEST(MatMulCuda, ListsOfAllDtypesAndTiles) {
  Products list;
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    list.Add(dtype, dtype, DType::kF32, {70, 40}, {40, 33}, {70, 33});
    // A long sum, of four chunks, and summed matrices.
    list.Add(dtype, dtype, DType::kF32, {20, 5000}, {5000, 33}, {20, 33});
    list.Add(dtype, dtype, DType::kF32, {3, 2, 30, 40}, {3, 2, 40, 65}, {1, 2, 30, 65});
    list.Add(dtype, DType::kF32, DType::kF32, {2, 70, 40}, {1, 40, 48}, {2, 70, 48});
    // Large tiles.
    list.Add(dtype, dtype, DType::kF32, {12, 200, 48}, {12, 48, 600}, {12, 200, 600});
  }
  list.Expect(1e-6);
}

TEST(MatMulCuda, Halves) {
  Products list;
  list.args.alpha = 0.5;
  for (Memory memory : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      for (int64_t K : {64, 65, 72}) {
        MatMulProblem& p =
            list.Add(dtype, dtype, dtype, {2, 72, K}, {2, K, 80}, {2, 72, 80}, memory);
        p.bias = list.Random(dtype, {1, 1, 80});
        p.multiply = list.Random(dtype, {2, 72, 80}, memory);
      }
    }
  }
  list.Expect(1.0 / 256);
}

// Parts of TF32 of what is not finite are not numbers; the largest numbers round to infinity.
TEST(MatMulCuda, InfinitiesAndTheLargestNumbers) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double largest = std::numeric_limits<float>::max();
  for (int64_t K : {1, 40, 2000}) {
    for (double special : {infinity, -infinity, largest, -largest}) {
      TestArray a = TestArray::Random(1, DType::kF32, {70, K}, Memory::kDense, 0, 1);
      TestArray b = TestArray::Random(2, DType::kF32, {K, 66}, Memory::kDense, 0.25, 0.5);
      PlainArray values = a.Read();
      values.At({3, 0}) = special;
      a.Write(values);
      values = b.Read();
      values.At({K - 1, 65}) = special / 4;
      b.Write(values);
      TestArray out(DType::kF32, {70, 66});
      const MatMulArgs args = {.problems = {{.a = a.view(), .b = b.view(), .out = out.view()}}};
      ExpectOneResult(args, {&out});
      // Beyond float32 is an infinity.
      PlainArray truth = MatMulIn<double>({}, args.problems[0]);
      for (double& x : truth.values) {
        if (std::fabs(x) > 1.00001 * largest) x = x > 0 ? infinity : -infinity;
      }
      ExpectNear(out.Read(), truth, 1e-5, 1e-6);
    }
  }
}

// Chunks, tiles of all sizes and rows that are merged are finished alike.
TEST(MatMulCuda, FinishOfChunksAndLargeTiles) {
  for (bool is_large : {false, true}) {
    Products list;
    list.args = {.alpha = -0.25, .activation = ElementOp::kSilu, .problems = {}};
    const int64_t M = is_large ? 700 : 40, K = is_large ? 24 : 2500, N = is_large ? 2000 : 50;
    for (Memory memory : {Memory::kDense, Memory::kTransposed}) {
      MatMulProblem& p =
          list.Add(DType::kF32, DType::kF32, DType::kF32, {2, M, K}, {1, K, N}, {2, M, N}, memory);
      p.bias = list.Random(DType::kF32, {1, 1, N});
      p.multiply = list.Random(DType::kF32, {2, M, 1});
    }
    list.Expect(2e-6);
  }
}

// Chunks that threads share.
TEST(MatMulCuda, SumsOfManyChunks) {
  Products list;
  // 33 and 66 chunks: teams of two threads and of four.
  list.Add(DType::kF16, DType::kF16, DType::kF32, {2, 131'100}, {131'100, 3}, {2, 3},
           Memory::kTransposed);
  list.Add(DType::kBF16, DType::kBF16, DType::kF32, {1, 270'000}, {270'000, 1}, {1, 1});
  list.Expect(1e-5);
}

}  // namespace
}  // namespace attnd::testing
