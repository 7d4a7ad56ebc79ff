// gather and scatter against plain loops: strides, dtypes, broadcast, ragged lists, gradients.
#include "kernels/device/gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/ops/ops.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

struct Case {
  Shape x, index, out;
  DType from = DType::kF32, to = DType::kF32;
  Memory memory = Memory::kDense;
};

// x, index and out of one case; values of index in [-1, rows).
struct Arrays {
  Case of;
  TestArray x, index, out;

  Arrays(const Case& c, int64_t rows, unsigned seed)
      : of(c),
        x(TestArray::Random(seed, c.from, c.x, c.memory, -9, 9)),
        index(TestArray::Random(seed + 1, DType::kI32, c.index, c.memory, -1,
                                static_cast<double>(rows))),
        out(c.to, c.out, c.memory) {}
};

std::vector<Case> GatherCases() {
  std::vector<Case> cases;
  for (int64_t N : {1, 63, 64, 65, 127}) {
    for (int64_t D : {1, 3, 64, 257}) {
      cases.push_back({{2, 3, N, D}, {2, 3, 70}, {2, 3, 70, D}});
    }
  }
  cases.push_back({{2, 3, 5, 4}, {2, 3, 0}, {2, 3, 0, 4}});
  cases.push_back({{2, 3, 5, 0}, {2, 3, 9}, {2, 3, 9, 0}});
  cases.push_back({{2, 0, 5, 4}, {2, 0, 9}, {2, 0, 9, 4}});
  cases.push_back({{1, 3, 20, 16}, {2, 1, 31}, {2, 3, 31, 16}});  // both broadcast
  cases.push_back({{20, 16}, {31}, {31, 16}});
  cases.push_back({{2, 1, 2, 1, 9, 5}, {2, 3, 1, 2, 11}, {2, 3, 2, 2, 11, 5}});
  for (Memory memory : {Memory::kPitched, Memory::kTransposed}) {
    for (DType from : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
        cases.push_back({{2, 2, 13, 300}, {1, 2, 17}, {2, 2, 17, 300}, from, to, memory});
      }
    }
    cases.push_back({{2, 2, 13, 7}, {2, 2, 17}, {2, 2, 17, 7}, DType::kI32, DType::kI32, memory});
  }
  cases.push_back({{2, 2, 13, 64}, {2, 2, 17}, {2, 2, 17, 64}, DType::kBF16, DType::kBF16});
  cases.push_back({{2, 2, 13, 64}, {2, 2, 17}, {2, 2, 17, 64}, DType::kF16, DType::kF32});
  cases.push_back({{2, 2, 13, 1}, {2, 2, 17}, {2, 2, 17, 1}, DType::kI32, DType::kI32});
  return cases;
}

// As gather: out's rows and x's change places. Last, sums over leading dimensions.
std::vector<Case> ScatterCases() {
  std::vector<Case> cases;
  for (Case c : GatherCases()) {
    if (c.from == DType::kI32) continue;
    c.x.dims[c.x.rank - 2] = c.index[c.index.rank - 1];
    c.out.dims[c.out.rank - 2] = c.out[c.out.rank - 1] % 50 + 3;
    cases.push_back(c);
  }
  cases.push_back({{2, 3, 40, 8}, {2, 3, 40}, {1, 3, 9, 8}});
  cases.push_back({{2, 3, 40, 8}, {2, 3, 40}, {2, 1, 9, 8}});
  cases.push_back({{2, 3, 40, 8}, {2, 1, 40}, {1, 1, 9, 8}});
  cases.push_back({{1, 3, 40, 8}, {2, 3, 40}, {1, 3, 9, 8}});  // index has more than x
  cases.push_back({{2, 3, 40, 8}, {2, 3, 40}, {2, 3, 0, 8}});
  return cases;
}

// The sums of the contract in float32, in its order.
void FloatScatter(const ScatterRowsProblem& p) {
  const PlainArray x = ReadView(p.x), index = ReadView(p.index);
  PlainArray sum(p.out.shape);
  Shape rows = p.index.shape;
  for (int i = 0; i + 1 < rows.rank; ++i) rows.dims[i] = std::max(rows[i], p.x.shape[i]);
  for (int i = 0; i + 1 < rows.rank; ++i) rows.dims[i] = p.x.shape.size() == 0 ? 0 : rows[i];
  ForEachIndex(rows, [&](const std::vector<int64_t>& row) {
    const auto n = static_cast<int64_t>(index.At(row));
    std::vector<int64_t> from = row, to = row;
    to.back() = n;
    for (int64_t d = 0; d < sum.shape[sum.shape.rank - 1] && n >= 0; ++d) {
      from.push_back(d);
      to.push_back(d);
      sum.At(to) = static_cast<float>(sum.At(to) + x.At(from));
      from.pop_back();
      to.pop_back();
    }
  });
  WriteView(sum, p.out);
}

// Bit for bit, but that a NaN is any NaN: a sum of one has the payload that the processor gives it.
bool SameBits(const PlainArray& a, const PlainArray& b) {
  return std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(),
                    [](double x, double y) {
                      return std::isnan(x) ? std::isnan(y)
                                           : std::bit_cast<int64_t>(x) == std::bit_cast<int64_t>(y);
                    });
}

class GatherTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Runs all cases in one list and alone, with one thread and two; expects `plain`'s bits always.
  // `launches`: of the processor, which counts those that sort, too.
  template <class Args, class Plain>
  void ExpectSame(std::vector<Arrays>& list, const Plain& plain, int64_t launches) {
    using Problem = typename decltype(Args::problems)::value_type;
    std::vector<PlainArray> expected;
    std::vector<Problem> problems;
    for (Arrays& a : list) {
      TestArray truth(a.of.to, a.of.out);
      plain({a.x.view(), a.index.view(), truth.view()});
      expected.push_back(truth.Read());
      problems.push_back({a.x.view(), a.index.view(), a.out.view()});
    }
    const auto check = [&](const std::string& how) {
      for (size_t i = 0; i < list.size(); ++i) {
        EXPECT_TRUE(SameBits(list[i].out.Read(), expected[i])) << how << ", case " << i;
        EXPECT_TRUE(list[i].out.GuardsIntact()) << how << ", case " << i;
        list[i].out.Write(PlainArray(list[i].of.out, 77));
      }
    };
    for (int threads : {1, 2}) {
      Device& device = CpuOf(GetParam(), threads);
      const int64_t before = device.launches();
      RunOn(device, [&](Stream& stream) { return device.Run(stream, Args{.problems = problems}); });
      EXPECT_EQ(device.launches() - before, device.info().name == "cpu" ? launches : 1);
      check("list, threads " + std::to_string(threads));
    }
    for (const Problem& problem : problems) {
      Device& device = CpuOf(GetParam(), 2);
      RunOn(device,
            [&](Stream& stream) { return device.Run(stream, Args{.problems = {problem}}); });
    }
    check("alone");
  }
};

TEST_P(GatherTest, GatherIsThePlainOne) {
  std::vector<Arrays> list;
  for (const Case& c : GatherCases()) {
    list.emplace_back(c, c.x[c.x.rank - 2], static_cast<unsigned>(list.size()));
  }
  ExpectSame<GatherRowsArgs>(
      list, [](const GatherRowsProblem& p) { PlainRun(GatherRowsArgs{.problems = {p}}); }, 1);
}

TEST_P(GatherTest, ScatterAddsInOrder) {
  std::vector<Arrays> list;
  for (const Case& c : ScatterCases()) {
    list.emplace_back(c, c.out[c.out.rank - 2], static_cast<unsigned>(list.size()));
  }
  ExpectSame<ScatterRowsArgs>(list, FloatScatter, 2);
}

TEST_P(GatherTest, ScatterIsThePlainSum) {
  // Nine rows of 40 values below 9: float32 sums are good to 40 * 40 * 9 * 2^-24.
  for (const Case& c : {Case{{2, 3, 40, 8}, {2, 1, 40}, {2, 3, 9, 8}},
                        Case{{2, 3, 40, 8}, {1, 3, 40}, {2, 1, 9, 8}}}) {
    Arrays a(c, 9, 5);
    const ScatterRowsProblem p = {a.x.view(), a.index.view(), a.out.view()};
    Device& device = CpuOf(GetParam(), 2);
    RunOn(device,
          [&](Stream& stream) { return device.Run(stream, ScatterRowsArgs{.problems = {p}}); });
    const PlainArray ours = a.out.Read();
    PlainRun(ScatterRowsArgs{.problems = {p}});
    ExpectNear(ours, a.out.Read(), 0, 1e-3);
  }
}

TEST_P(GatherTest, OneRowTakesEverything) {
  // 70000 rows into row 1 of 3, the others stay 0.
  Arrays a({{70000, 5}, {70000}, {3, 5}}, 1, 9);
  a.index.Write(PlainArray(a.of.index, 1));
  std::vector<Arrays> list = {a};
  ExpectSame<ScatterRowsArgs>(list, FloatScatter, 2);
}

TEST_P(GatherTest, NonFiniteRowsStayInTheirRow) {
  Arrays a({{4, 3}, {4}, {4, 3}}, 4, 3);
  PlainArray x(a.of.x, 1), index(a.of.index);
  x.values[4] = std::numeric_limits<double>::quiet_NaN();
  x.values[8] = std::numeric_limits<double>::infinity();
  index.values = {3, 1, 1, -1};
  a.x.Write(x);
  a.index.Write(index);
  std::vector<Arrays> list = {a};
  ExpectSame<GatherRowsArgs>(
      list, [](const GatherRowsProblem& p) { PlainRun(GatherRowsArgs{.problems = {p}}); }, 1);
  ExpectSame<ScatterRowsArgs>(list, FloatScatter, 2);
}

Tensor Of(const TestArray& a, const TestArray& b) {
  return Tensor({a.view(), b.view()}, std::vector<std::shared_ptr<Buffer>>(2));
}

Tensor Of(const TestArray& a) { return Tensor({a.view()}, {nullptr}); }

// Both are linear: the gradient of one is the other of the gradient.
TEST_P(GatherTest, GradientOfGather) {
  // Given a problem whose x repeats and one whose index does.
  const Shape x0 = {1, 2, 6, 3}, x1 = {2, 2, 6, 3};
  const TestArray a = TestArray::Random(1, DType::kF32, x0);
  const TestArray b = TestArray::Random(2, DType::kF32, x1);
  const TestArray i = TestArray::Random(3, DType::kI32, {2, 2, 7}, Memory::kDense, -1, 6);
  const TestArray j = TestArray::Random(4, DType::kI32, {2, 1, 7}, Memory::kDense, -1, 6);
  const TestArray g = TestArray::Random(5, DType::kF32, {2, 2, 7, 3});
  BufferPool pool(0, /*poison=*/true);
  Stream stream(CpuOf(GetParam(), 2), &pool);
  Tape tape;
  Ops ops(stream, &tape);
  const Tensor x = Of(a, b);
  tape.Watch(x);
  // When
  const std::vector<Tensor> out = {ops.Gather(x, Of(i, j))}, weight = {Of(g, g)}, asked = {x};
  const std::vector<Tensor> grads = tape.Replay(ops, out, weight, asked);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  // Then
  for (size_t p = 0; p < 2; ++p) {
    TestArray expected(DType::kF32, p == 0 ? x0 : x1);
    FloatScatter({g.view(), p == 0 ? i.view() : j.view(), expected.view()});
    ExpectNear(ReadView(grads[0][p]), expected.Read(), 0, 0);
  }
}

TEST_P(GatherTest, GradientOfScatter) {
  const Shape shape = {2, 2, 7, 3};
  const TestArray a = TestArray::Random(1, DType::kF32, shape);
  const TestArray i = TestArray::Random(3, DType::kI32, {2, 2, 7}, Memory::kDense, -1, 4);
  const TestArray j = TestArray::Random(4, DType::kI32, {2, 1, 7}, Memory::kDense, -1, 4);
  const TestArray g = TestArray::Random(5, DType::kF32, {2, 2, 4, 3});
  const TestArray h = TestArray::Random(6, DType::kF32, {2, 2, 5, 3});
  BufferPool pool(0, /*poison=*/true);
  Stream stream(CpuOf(GetParam(), 2), &pool);
  Tape tape;
  Ops ops(stream, &tape);
  const Tensor x = Of(a, a);
  tape.Watch(x);
  const std::vector<Tensor> out = {ops.Scatter(x, Of(i, j), {4, 5})}, weight = {Of(g, h)},
                            asked = {x};
  const std::vector<Tensor> grads = tape.Replay(ops, out, weight, asked);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  for (size_t p = 0; p < 2; ++p) {
    EXPECT_EQ(out[0][p].shape, p == 0 ? g.view().shape : h.view().shape);
    TestArray expected(DType::kF32, shape);
    const GatherRowsProblem back = {p == 0 ? g.view() : h.view(), p == 0 ? i.view() : j.view(),
                                    expected.view()};
    PlainRun(GatherRowsArgs{.problems = {back}});
    ExpectNear(ReadView(grads[0][p]), expected.Read(), 0, 0);
  }
}

// x repeats over the batch: the gradients of all sequences add up.
TEST_P(GatherTest, GradientOfScatterAddsUpWhereRowsRepeat) {
  const TestArray a = TestArray::Random(1, DType::kF32, {1, 2, 7, 3});
  const TestArray i = TestArray::Random(3, DType::kI32, {2, 2, 7}, Memory::kDense, -1, 4);
  const TestArray g = TestArray::Random(5, DType::kF32, {2, 2, 4, 3});
  BufferPool pool(0, /*poison=*/true);
  Stream stream(CpuOf(GetParam(), 2), &pool);
  Tape tape;
  Ops ops(stream, &tape);
  const Tensor x = Of(a);
  tape.Watch(x);
  const std::vector<Tensor> out = {ops.Scatter(x, Of(i), {4})}, weight = {Of(g)}, asked = {x};
  const std::vector<Tensor> grads = tape.Replay(ops, out, weight, asked);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_EQ(out[0][0].shape, g.view().shape);
  TestArray each(DType::kF32, {2, 2, 7, 3});
  const GatherRowsProblem back = {g.view(), i.view(), each.view()};
  PlainRun(GatherRowsArgs{.problems = {back}});
  const PlainArray got = ReadView(grads[0][0]), rows = each.Read();
  ASSERT_EQ(got.shape, a.view().shape);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t m = 0; m < 7; ++m) {
      for (int64_t d = 0; d < 3; ++d) {
        EXPECT_NEAR(got.At({0, h, m, d}), rows.At({0, h, m, d}) + rows.At({1, h, m, d}), 1e-6);
      }
    }
  }
}

// Elements of x [2,2,13,40] at pairs of rows and columns, and their sums back.
TEST_P(GatherTest, PairsOfRowsAndColumns) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Memory memory : {Memory::kDense, Memory::kPitched, Memory::kTransposed}) {
      const TestArray x = TestArray::Random(1, dtype, {2, 1, 13, 40}, memory, -9, 9);
      const TestArray rows = TestArray::Random(2, DType::kI32, {1, 3, 17}, memory, -1, 13);
      const TestArray columns = TestArray::Random(3, DType::kI32, {2, 1, 300}, memory, -1, 40);
      TestArray out(DType::kF32, {2, 3, 17, 300}, memory), plain(DType::kF32, {2, 3, 17, 300});
      const auto gather = [&](const TestArray& to) {
        return GatherRowsArgs{
            .problems = {{x.view(), rows.view(), to.view(), columns.view(), View()}}};
      };
      Device& device = CpuOf(GetParam(), 2);
      RunOn(device, [&](Stream& stream) { return device.Run(stream, gather(out)); });
      PlainRun(gather(plain));
      ExpectNear(out.Read(), plain.Read(), 0, 0);
      EXPECT_TRUE(out.GuardsIntact());
      for (const Shape& shape : {Shape{2, 3, 13, 40}, Shape{2, 1, 13, 40}, Shape{1, 1, 13, 40}}) {
        TestArray sums(DType::kF32, shape), plain_sums(DType::kF32, shape);
        const auto scatter = [&](const TestArray& to) {
          return ScatterRowsArgs{
              .problems = {{out.view(), rows.view(), to.view(), columns.view(), View()}}};
        };
        RunOn(device, [&](Stream& stream) { return device.Run(stream, scatter(sums)); });
        PlainRun(scatter(plain_sums));
        ExpectNear(sums.Read(), plain_sums.Read(), 0, 2e-3);
        EXPECT_TRUE(sums.GuardsIntact());
      }
    }
  }
}

// A row whose divisor is 0 becomes 0.
TEST_P(GatherTest, RowsAreDivided) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Memory memory : {Memory::kDense, Memory::kTransposed}) {
      const TestArray x = TestArray::Random(1, dtype, {2, 3, 17, 300}, memory, -9, 9);
      const TestArray rows = TestArray::Random(2, DType::kI32, {2, 1, 17}, memory, -1, 17);
      TestArray divisor = TestArray::Random(3, DType::kF32, {1, 3, 17}, memory, 1, 5);
      PlainArray by = divisor.Read();
      by.values[4] = 0;
      divisor.Write(by);
      TestArray gathered(DType::kF32, {2, 3, 17, 300}, memory), scattered = gathered;
      TestArray plain_gathered(DType::kF32, {2, 3, 17, 300}), plain_scattered = plain_gathered;
      const auto gather = [&](const TestArray& to) {
        return GatherRowsArgs{
            .problems = {{x.view(), rows.view(), to.view(), View(), divisor.view()}}};
      };
      const auto scatter = [&](const TestArray& to) {
        return ScatterRowsArgs{
            .problems = {{x.view(), rows.view(), to.view(), View(), divisor.view()}}};
      };
      Device& device = CpuOf(GetParam(), 2);
      RunOn(device, [&](Stream& stream) { return device.Run(stream, gather(gathered)); });
      RunOn(device, [&](Stream& stream) { return device.Run(stream, scatter(scattered)); });
      PlainRun(gather(plain_gathered));
      PlainRun(scatter(plain_scattered));
      ExpectNear(gathered.Read(), plain_gathered.Read(), 0, 1e-5);
      ExpectNear(scattered.Read(), plain_scattered.Read(), 0, 1e-4);
    }
  }
}

TEST_P(GatherTest, BrokenContractsAreRefused) {
  Device& device = CpuOf(GetParam(), 1);
  const TestArray x = TestArray::Random(1, DType::kF32, {4, 3});
  const TestArray index = TestArray::Random(1, DType::kI32, {2, 5}, Memory::kDense, 0, 4);
  Stream stream(device, nullptr);
  Ops ops(stream, nullptr);
  ops.Gather(Of(x, x), Of(index, index));
  EXPECT_EQ(ops.status().message(),
            "gather: x [.., N, D], int32 index [.., M], leading dimensions broadcast");
}

INSTANTIATE_TEST_SUITE_P(Isas, GatherTest, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace attnd::testing
