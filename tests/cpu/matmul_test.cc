// MatMul against plain loops in double, and against itself in other orders and layouts.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/plain/plain_matmul.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

// One product: shapes, dtypes, layouts.
struct Case {
  Shape a, b, out;
  DType dtype = DType::kF32, out_dtype = DType::kF32;
  Memory a_memory = Memory::kDense, b_memory = Memory::kDense, out_memory = Memory::kDense;
  Shape bias = {}, multiply = {};
};

// A product with its arrays.
class Product {
 public:
  explicit Product(const Case& c, unsigned seed = 1)
      : a_(TestArray::Random(seed, c.dtype, c.a, c.a_memory)),
        b_(TestArray::Random(seed + 1, c.dtype, c.b, c.b_memory)),
        out_(c.out_dtype, c.out, c.out_memory) {
    problem_ = {.a = a_.view(), .b = b_.view(), .out = out_.view()};
    if (c.bias.rank > 0) {
      bias_ = TestArray::Random(seed + 2, c.dtype, c.bias);
      problem_.bias = bias_.view();
    }
    if (c.multiply.rank > 0) {
      multiply_ = TestArray::Random(seed + 3, c.dtype, c.multiply, c.b_memory);
      problem_.multiply = multiply_.view();
    }
  }

  const MatMulProblem& problem() const { return problem_; }
  TestArray& a() { return a_; }
  TestArray& b() { return b_; }
  TestArray& out() { return out_; }
  // Forgets the result.
  void Clear() { out_.Write(PlainArray(problem_.out.shape, NAN)); }

 private:
  TestArray a_, b_, out_, bias_, multiply_;
  MatMulProblem problem_;
};

std::string Text(const Case& c) {
  return ToString(c.a) + " x " + ToString(c.b) + " -> " + ToString(c.out);
}

void Multiply(Device& device, std::vector<Product*> products, MatMulArgs args = {}) {
  std::vector<MatMulProblem> problems;
  for (Product* product : products) problems.push_back(product->problem());
  args.problems = problems;
  const int64_t before = device.launches();
  RunOn(device, [&](Stream& stream) { return device.Run(stream, args); });
  EXPECT_EQ(device.launches(), before + 1);
}

// Half a unit in the last place of a half type: what rounding the result adds.
double Rounding(DType dtype) {
  return dtype == DType::kF32 ? 0 : dtype == DType::kF16 ? std::ldexp(1, -11) : std::ldexp(1, -8);
}

void ExpectRight(Device& device, const Case& c, MatMulArgs args = {}) {
  SCOPED_TRACE(Text(c));
  Product product(c);
  Multiply(device, {&product}, args);
  const PlainArray truth = MatMulIn<double>(args, product.problem());
  const PlainArray plain = MatMulIn<float>(args, product.problem());
  double largest = 0;
  for (double x : truth.values) largest = std::max(largest, std::fabs(x));
  // Which of two orders of a sum of K terms is nearer is chance; the partial sums of K terms within
  // [-1, 1] are about sqrt(K) / 3. The activation may be off by 2 units in the last place.
  const double K = static_cast<double>(c.a[c.a.rank - 1]);
  const double slack =
      largest * (4e-7 + Rounding(c.out_dtype)) + 2e-7 * std::sqrt(K) * std::fabs(args.alpha);
  ExpectNoWorse(product.out().Read(), plain, truth, slack);
  EXPECT_TRUE(product.out().GuardsIntact());
  EXPECT_TRUE(product.a().GuardsIntact());
}

class MatMul : public ::testing::TestWithParam<std::string> {
 protected:
  Device& Cpu(int threads = 2) { return CpuOf(GetParam(), threads); }
};

TEST_P(MatMul, EverySize) {
  for (int64_t M : {0, 1, 3, 4, 17, 65}) {
    for (int64_t N : {0, 1, 15, 63, 64, 65, 131}) {
      for (int64_t K : {0, 1, 63, 64, 65, 257}) {
        ExpectRight(Cpu(), {{M, K}, {K, N}, {M, N}});
      }
    }
  }
}

TEST_P(MatMul, ManyTiles) {
  ExpectRight(Cpu(), {{521, 300}, {300, 700}, {521, 700}});
  ExpectRight(Cpu(), {{1030, 64}, {64, 64}, {1030, 64}});
  ExpectRight(Cpu(), {{64, 64}, {64, 1030}, {64, 1030}});
  ExpectRight(Cpu(), {{2, 600}, {600, 1200}, {2, 1200}});
}

TEST_P(MatMul, LongSumsOfSmallResults) {
  ExpectRight(Cpu(), {{64, 5000}, {5000, 64}, {64, 64}});
  ExpectRight(Cpu(), {{3, 40007}, {40007, 2}, {3, 2}});
  ExpectRight(Cpu(), {{1, 2, 70, 4099}, {1, 2, 4099, 33}, {1, 2, 70, 33}});
}

TEST_P(MatMul, EveryLayout) {
  for (Memory a : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
    for (Memory b : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
      for (Memory out : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
        for (const auto& [M, N] : {std::pair<int64_t, int64_t>{67, 83}, {1, 130}, {130, 1}}) {
          Case c = {{2, M, 261}, {2, 261, N}, {2, M, N}};
          c.a_memory = a, c.b_memory = b, c.out_memory = out;
          c.bias = {1, 1, N}, c.multiply = {2, M, N};
          ExpectRight(Cpu(), c);
        }
      }
    }
  }
}

TEST_P(MatMul, EveryFloatType) {
  for (DType in : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (DType out : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (Memory memory : {Memory::kDense, Memory::kTransposed}) {
        for (int64_t M : {2, 70}) {
          Case c = {{M, 300}, {300, 71}, {M, 71}, in, out, memory, memory, memory};
          c.multiply = {M, 71};
          ExpectRight(Cpu(), c);
        }
      }
    }
  }
}

// Steps other than 1 in both axes, and rows that repeat.
TEST_P(MatMul, AnyStrides) {
  Product whole({{130, 140}, {140, 150}, {130, 150}});
  MatMulProblem p = whole.problem();
  p.a.shape = {43, 70}, p.a.stride = {3 * 140, 2};
  p.b.shape = {70, 50}, p.b.stride = {0, 3};
  p.out.shape = {43, 50}, p.out.stride = {2 * 150, 3};
  RunOn(Cpu(), [&](Stream& s) { return Cpu().Run(s, MatMulArgs{.problems = {p}}); });
  ExpectNear(ReadView(p.out), MatMulIn<double>({}, p), 1e-6, 1e-5);
  EXPECT_TRUE(whole.out().GuardsIntact());
}

TEST_P(MatMul, LeadingDimensionsBroadcast) {
  ExpectRight(Cpu(), {{2, 3, 70, 40}, {1, 1, 40, 65}, {2, 3, 70, 65}});
  ExpectRight(Cpu(), {{1, 1, 70, 40}, {2, 3, 40, 65}, {2, 3, 70, 65}});
  ExpectRight(Cpu(), {{2, 1, 70, 40}, {1, 3, 40, 65}, {2, 3, 70, 65}});
  ExpectRight(Cpu(), {{5, 4, 1, 40}, {1, 1, 40, 65}, {5, 4, 1, 65}});
  ExpectRight(Cpu(), {{2, 2, 3, 2, 9, 7}, {2, 1, 3, 1, 7, 5}, {2, 2, 3, 2, 9, 5}});
  ExpectRight(Cpu(), {{0, 3, 4}, {1, 4, 5}, {0, 3, 5}});
}

TEST_P(MatMul, LeadingDimensionsAreSummed) {
  ExpectRight(Cpu(), {{3, 2, 30, 40}, {3, 2, 40, 65}, {1, 2, 30, 65}});
  ExpectRight(Cpu(), {{3, 2, 30, 40}, {3, 2, 40, 65}, {1, 1, 30, 65}});
  ExpectRight(Cpu(), {{3, 1, 30, 40}, {1, 2, 40, 65}, {3, 1, 30, 65}});
  ExpectRight(Cpu(), {{200, 1, 30, 40}, {200, 2, 40, 65}, {1, 2, 30, 65}});
  ExpectRight(Cpu(), {{40, 1, 300}, {40, 300, 65}, {1, 1, 65}});
  ExpectRight(Cpu(), {{0, 3, 4}, {0, 4, 5}, {1, 3, 5}});
}

TEST_P(MatMul, Epilogues) {
  Case c = {{2, 3, 70, 40}, {2, 1, 40, 65}, {2, 3, 70, 65}};
  ExpectRight(Cpu(), c, {.alpha = 0.125});
  for (const Shape& bias : {Shape{1, 1, 1, 65}, Shape{1, 3, 70, 1}, Shape{2, 1, 70, 65}}) {
    c.bias = bias;
    ExpectRight(Cpu(), c, {.alpha = -2});
    c.multiply = bias;
    ExpectRight(Cpu(), c, {.activation = ElementOp::kSilu});
  }
  for (ElementOp op : {ElementOp::kRelu, ElementOp::kReluSquared, ElementOp::kExp, ElementOp::kTanh,
                       ElementOp::kSigmoid, ElementOp::kGelu}) {
    ExpectRight(Cpu(), c, {.alpha = 0.3, .activation = op});
  }
  ExpectRight(Cpu(), {{3, 0}, {0, 20}, {3, 20}, DType::kF32, DType::kF32, {}, {}, {}, {1, 20}});
}

// What lies beside the operands is NaN; NaN and infinities within are data.
TEST_P(MatMul, NonFiniteValuesStayInTheirRowsAndColumns) {
  Product product({{70, 300}, {300, 90}, {70, 90}});
  PlainArray a = product.a().Read(), b = product.b().Read();
  a.At({5, 7}) = NAN;
  a.At({66, 299}) = std::numeric_limits<double>::infinity();
  b.At({260, 89}) = -std::numeric_limits<double>::infinity();
  product.a().Write(a);
  product.b().Write(b);
  Multiply(Cpu(), {&product});
  ExpectNear(product.out().Read(), MatMulIn<double>({}, product.problem()), 0, 1e-4);
}

// Neither threads, nor the list, nor the layout change a bit; nor does the run.
TEST_P(MatMul, SameBitsAloneInAListAndOnAnyThreads) {
  std::vector<Case> cases = {{{65, 40}, {40, 63}, {65, 63}},
                             {{64, 9000}, {9000, 64}, {64, 64}},
                             {{300, 600}, {600, 310}, {300, 310}},
                             {{1, 700}, {700, 900}, {1, 900}},
                             {{3, 5}, {5, 0}, {3, 0}},
                             {{4, 2, 30, 700}, {4, 2, 700, 20}, {1, 2, 30, 20}},
                             {{2, 3, 17, 64}, {1, 1, 64, 130}, {2, 3, 17, 130}}};
  std::vector<Product> products;
  for (const Case& c : cases) products.emplace_back(c);
  std::vector<std::vector<std::byte>> alone;
  for (Product& product : products) {
    Multiply(Cpu(1), {&product});
    alone.push_back(product.out().Bytes());
  }
  std::vector<Product*> list;
  for (Product& product : products) list.push_back(&product);
  for (int threads : {2, 1, 2}) {
    for (Product& product : products) product.Clear();
    Multiply(Cpu(threads), list);
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(products[i].out().Bytes(), alone[i]) << Text(cases[i]) << " T" << threads;
    }
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    for (int layout = 1; layout < 8; ++layout) {
      Case c = cases[i];
      c.a_memory = (layout & 1) != 0 ? Memory::kTransposed : Memory::kDense;
      c.b_memory = (layout & 2) != 0 ? Memory::kTransposed : Memory::kDense;
      c.out_memory = (layout & 4) != 0 ? Memory::kTransposed : Memory::kDense;
      Product product(c);
      Multiply(Cpu(2), {&product});
      EXPECT_EQ(product.out().Bytes(), alone[i]) << Text(c) << " layout " << layout;
    }
  }
}

// A matrix of a batch has the bits that it has alone.
TEST_P(MatMul, SameBitsInABatch) {
  Product batch({{3, 4, 65, 300}, {1, 1, 300, 40}, {3, 4, 65, 40}});
  Multiply(Cpu(), {&batch});
  const std::vector<std::byte> all = batch.out().Bytes();
  const size_t bytes = 65 * 40 * sizeof(float);
  TestArray out(DType::kF32, {1, 1, 65, 40});
  for (size_t i = 0; i < 12; ++i) {
    MatMulProblem p = batch.problem();
    p.a.data = p.a.As<float>() + i * 65 * 300;
    p.a.shape = {1, 1, 65, 300};
    p.out = out.view();
    RunOn(Cpu(), [&](Stream& s) { return Cpu().Run(s, MatMulArgs{.problems = {p}}); });
    EXPECT_EQ(out.Bytes(),
              std::vector<std::byte>(all.begin() + i * bytes, all.begin() + (i + 1) * bytes));
  }
}

TEST_P(MatMul, DryRunsPredictAndCount) {
  Product product({{64, 128}, {128, 32}, {64, 32}});
  Stream dry(Cpu(), nullptr);
  const MatMulArgs args = {.problems = {product.problem()}};
  ASSERT_TRUE(Cpu().Run(dry, args).ok());
  EXPECT_GT(dry.work().seconds, 0);
}

INSTANTIATE_TEST_SUITE_P(Isas, MatMul, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace attnd::testing
