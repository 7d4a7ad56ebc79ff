// merge on every instruction set against plain loops, and Ops::Merge on a tape.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>

#include "kernels/ops/ops.h"
#include "tests/plain/plain_device.h"
#include "tests/plain/plain_merge.h"
#include "tests/plain/test_array.h"

namespace attnd::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Sizes {
  Shape out;  // [.., N, Dv]
  size_t parts = 2;
  DType dtype = DType::kF32, out_dtype = DType::kF32;
  Memory memory = Memory::kDense;  // of out; lse strides differ in their own way
};

// One problem with everything around it: every third row of a part sees no key and holds NaN there.
struct Case {
  std::vector<TestArray> outs, lses, douts, dlses;
  TestArray out, lse, dout, dlse;
  std::vector<MergePart> parts, dparts;

  Case(const Sizes& sizes, unsigned seed) {
    Shape rows = sizes.out;
    rows.rank -= 1;
    const auto Dv = static_cast<size_t>(sizes.out[rows.rank]);
    for (size_t i = 0; i < sizes.parts; ++i) {
      outs.push_back(TestArray::Random(seed + i, sizes.dtype, sizes.out, sizes.memory));
      // Far from zero, so that exp of an lse itself would overflow.
      lses.push_back(TestArray::Random(seed + 50 + i, DType::kF32, rows, Memory::kDense, 198, 203));
      PlainArray x = outs[i].Read(), l = lses[i].Read();
      for (size_t row = 0; row < l.values.size(); ++row) {
        if ((row + i) % 3 != 0 && row % 11 != 7) continue;
        l.values[row] = -kInf;
        for (size_t d = 0; d < Dv; ++d) x.values[row * Dv + d] = NAN;
      }
      outs[i].Write(x);
      lses[i].Write(l);
      douts.emplace_back(sizes.dtype, sizes.out, sizes.memory);
      dlses.emplace_back(DType::kF32, rows);
      parts.push_back({outs[i].view(), lses[i].view()});
      dparts.push_back({douts[i].view(), dlses[i].view()});
    }
    out = TestArray(sizes.out_dtype, sizes.out, sizes.memory);
    lse = TestArray(DType::kF32, rows);
    dout = TestArray::Random(seed + 99, sizes.out_dtype, sizes.out);
    dlse = TestArray::Random(seed + 98, DType::kF32, rows);
  }

  MergeProblem Forward() const { return {parts, out.view(), lse.view()}; }
  MergeGradProblem Backward() const { return {Forward(), dout.view(), dlse.view(), dparts}; }

  void Run(Device& device) const {
    const std::vector<MergeProblem> forward = {Forward()};
    const std::vector<MergeGradProblem> backward = {Backward()};
    RunOn(device, [&](Stream& s) { return device.Run(s, MergeArgs{.problems = forward}); });
    RunOn(device, [&](Stream& s) { return device.Run(s, MergeGradArgs{.problems = backward}); });
  }

  std::vector<std::byte> Results() const {
    std::vector<std::byte> bytes = out.Bytes();
    const auto add = [&](const TestArray& array) {
      const std::vector<std::byte> more = array.Bytes();
      bytes.insert(bytes.end(), more.begin(), more.end());
    };
    add(lse);
    for (const TestArray& array : douts) add(array);
    for (const TestArray& array : dlses) add(array);
    return bytes;
  }

  // Rounding the result to a half costs half a unit in its last place; |results| stay below 2.
  static double Slack(DType dtype) {
    return dtype == DType::kF32 ? 1e-7 : dtype == DType::kF16 ? 1.1e-3 : 8.8e-3;
  }

  void Expect() const {
    const PlainParts p = ReadParts(Forward());
    const auto truth = MergeParts<double>(p);
    const auto plain = MergeParts<float>(p);
    ExpectNoWorse(out.Read(), plain.out, truth.out, Slack(out.view().dtype));
    ExpectNoWorse(lse.Read(), plain.lse, truth.lse, 0);
    const auto grads = MergePartsGrad<double>(p, dout.Read(), dlse.Read());
    const auto rough = MergePartsGrad<float>(p, dout.Read(), dlse.Read());
    for (size_t i = 0; i < p.size(); ++i) {
      ExpectNoWorse(douts[i].Read(), rough[i].out, grads[i].out, Slack(douts[i].view().dtype));
      // dlse reads the out that was written: dout . (rounding of out), over Dv terms.
      const double Dv = static_cast<double>(truth.out.shape[truth.out.shape.rank - 1]);
      ExpectNoWorse(dlses[i].Read(), rough[i].lse, grads[i].lse,
                    std::sqrt(Dv) * Slack(out.view().dtype) + 1e-6);
    }
    bool intact = out.GuardsIntact() && lse.GuardsIntact();
    for (size_t i = 0; i < p.size(); ++i) {
      intact = intact && douts[i].GuardsIntact() && dlses[i].GuardsIntact();
    }
    EXPECT_TRUE(intact);
  }
};

class MergeTest : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device(int threads = 2) { return CpuOf(GetParam(), threads); }
};
INSTANTIATE_TEST_SUITE_P(Isa, MergeTest, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(MergeTest, AgreesWithPlainLoops) {
  const std::vector<Sizes> all = {
      {.out = {2, 3, 65, 64}},
      {.out = {1, 2, 63, 1}, .parts = 1},
      {.out = {64, 7}, .parts = 5},
      {.out = {1, 1, 131, 130}, .parts = 3, .memory = Memory::kPitched},
      {.out = {3, 1, 1, 33}, .parts = 64},
      {.out = {2, 2, 65, 40}, .dtype = DType::kBF16, .out_dtype = DType::kBF16},
      {.out = {2, 2, 65, 37}, .dtype = DType::kF16, .out_dtype = DType::kF16},
      {.out = {2, 2, 33, 37}, .dtype = DType::kF32, .out_dtype = DType::kF16},
      {.out = {1, 2, 0, 8}},
      {.out = {0, 2, 4, 8}},
  };
  for (const Sizes& sizes : all) {
    SCOPED_TRACE(ToString(sizes.out));
    const Case c(sizes, 1);
    c.Run(device());
    c.Expect();
  }
}

TEST_P(MergeTest, TokensBeforeHeads) {
  // Given out of [B,H,N,Dv] in memory order b, n, h, d, and lse in order b, h, n
  Case c({.out = {2, 3, 65, 16}}, 3);
  TestArray memory(DType::kF32, {2, 65, 3, 16});
  View view = memory.view();
  std::swap(view.shape.dims[1], view.shape.dims[2]);
  std::swap(view.stride[1], view.stride[2]);
  const std::vector<MergeProblem> problems = {{c.parts, view, c.lse.view()}};
  RunOn(device(), [&](Stream& s) { return device().Run(s, MergeArgs{.problems = problems}); });
  const auto truth = MergeParts<double>(ReadParts(problems[0]));
  ExpectNear(ReadView(view), truth.out, 1e-6, 1e-6);
}

TEST_P(MergeTest, NotANumberAndInfinityAreData) {
  // Given rows whose lse are NaN, +inf, both -inf, and one whose out is NaN
  Case c({.out = {4, 3}}, 5);
  PlainArray first(Shape{4}), second(Shape{4}), out(Shape{4, 3}, 1);
  first.values = {NAN, kInf, -kInf, 0};
  second.values = {0, 0, -kInf, 0};
  c.lses[0].Write(first);
  c.lses[1].Write(second);
  c.outs[1].Write(out);
  for (size_t d = 0; d < 3; ++d) out.values[9 + d] = NAN;
  c.outs[0].Write(out);
  const std::vector<MergeProblem> problems = {c.Forward()};
  RunOn(device(), [&](Stream& s) { return device().Run(s, MergeArgs{.problems = problems}); });
  const std::vector<double> lse = c.lse.Read().values, got = c.out.Read().values;
  EXPECT_TRUE(std::isnan(lse[0]));
  EXPECT_EQ(lse[1], kInf);
  EXPECT_EQ(lse[2], -kInf);
  EXPECT_FLOAT_EQ(static_cast<float>(lse[3]), std::log(2.0f));
  for (size_t d = 0; d < 3; ++d) {
    EXPECT_TRUE(std::isnan(got[d]) && std::isnan(got[3 + d]) && std::isnan(got[9 + d]));
    EXPECT_EQ(got[6 + d], 0);
  }
}

TEST_P(MergeTest, AbsentAndUnwantedGradientsAreLeftOut) {
  Case c({.out = {1, 2, 65, 20}}, 7), zero({.out = {1, 2, 65, 20}}, 7);
  c.Run(device());
  zero.Run(device());
  // When dout is absent and only dlse of part 0 and dout of part 1 are wanted
  std::vector<MergePart> wanted = {{{}, c.dlses[0].view()}, {c.douts[1].view(), {}}};
  const std::vector<MergeGradProblem> some = {{c.Forward(), {}, c.dlse.view(), wanted}};
  RunOn(device(), [&](Stream& s) { return device().Run(s, MergeGradArgs{.problems = some}); });
  // Then it is as if dout were zero
  zero.dout.Write(PlainArray(zero.dout.view().shape));
  const std::vector<MergeGradProblem> all = {zero.Backward()};
  RunOn(device(), [&](Stream& s) { return device().Run(s, MergeGradArgs{.problems = all}); });
  EXPECT_EQ(c.dlses[0].Bytes(), zero.dlses[0].Bytes());
  EXPECT_EQ(c.douts[1].Read().values, zero.douts[1].Read().values);
}

TEST_P(MergeTest, AListIsOneLaunchAndChangesNoBit) {
  // Given problems of other sizes, the third large enough for threads
  std::deque<Case> alone, listed;
  const std::vector<Sizes> sizes = {{.out = {1, 2, 65, 33}},
                                    {.out = {1, 1, 0, 33}},
                                    {.out = {1, 2, 1100, 64}, .parts = 3},
                                    {.out = {131, 1}, .parts = 2}};
  std::vector<MergeProblem> forward;
  std::vector<MergeGradProblem> backward;
  for (size_t i = 0; i < sizes.size(); ++i) {
    alone.emplace_back(sizes[i], static_cast<unsigned>(i));
    listed.emplace_back(sizes[i], static_cast<unsigned>(i));
    alone.back().Run(device());
    forward.push_back(listed.back().Forward());
    backward.push_back(listed.back().Backward());
  }
  for (int threads : {1, 2, 2}) {
    const int64_t before = device(threads).launches();
    BufferPool pool;
    Stream stream(device(threads), &pool);
    ASSERT_TRUE(device(threads).Run(stream, MergeArgs{.problems = forward}).ok());
    EXPECT_EQ(device(threads).launches(), before + 1);
    ASSERT_TRUE(device(threads).Run(stream, MergeGradArgs{.problems = backward}).ok());
    EXPECT_EQ(device(threads).launches(), before + 2);
    for (size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(alone[i].Results(), listed[i].Results());
  }
}

TEST_P(MergeTest, ADryRunPredictsTime) {
  Case c({.out = {1, 4, 2000, 64}}, 7);
  Stream dry(device(), nullptr);
  const std::vector<MergeProblem> problems = {c.Forward()};
  ASSERT_TRUE(device().Run(dry, MergeArgs{.problems = problems}).ok());
  EXPECT_GT(dry.work().seconds, 0);
  EXPECT_TRUE(std::isnan(c.out.Read().values[0]));
}

Tensor TensorOf(const TestArray& array) { return Tensor({array.view()}, {nullptr}); }

TEST_P(MergeTest, OnATape) {
  // Given three parts of which the second is a constant
  const Case c({.out = {1, 2, 9, 5}, .parts = 3, .dtype = DType::kBF16}, 11);
  BufferPool pool(/*retain_bytes=*/0, /*poison=*/true);
  Stream stream(device(), &pool);
  Tape tape;
  Ops ops(stream, &tape);
  std::vector<AttendOut> parts;
  std::vector<Tensor> asked;
  for (size_t i = 0; i < 3; ++i) {
    parts.push_back({TensorOf(c.outs[i]), TensorOf(c.lses[i])});
    asked.push_back(parts[i].out);
    asked.push_back(parts[i].lse);
    if (i == 1) continue;
    tape.Watch(parts[i].out);
    tape.Watch(parts[i].lse);
  }
  const AttendOut merged = ops.Merge(parts);
  EXPECT_EQ(merged.out[0].dtype, DType::kF32);
  const std::vector<Tensor> outputs = {merged.out, merged.lse};
  const std::vector<Tensor> grads = {TensorOf(c.dout), TensorOf(c.dlse)};
  const std::vector<Tensor> got = tape.Replay(ops, outputs, grads, asked);
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  // Then gradients are those of the plain loops, in the dtype of the parts
  const PlainParts p = ReadParts(c.Forward());
  const auto truth = MergeParts<double>(p);
  ExpectNear(ReadView(merged.out[0]), truth.out, 1e-6, 1e-6);
  ExpectNear(ReadView(merged.lse[0]), truth.lse, 1e-6, 1e-6);
  const auto want = MergePartsGrad<double>(p, c.dout.Read(), c.dlse.Read());
  for (size_t i : {0, 2}) {
    EXPECT_EQ(got[2 * i][0].dtype, DType::kBF16);
    ExpectNear(ReadView(got[2 * i][0]), want[i].out, 5e-3, 1e-6);
    ExpectNear(ReadView(got[2 * i + 1][0]), want[i].lse, 1e-5, 1e-5);
  }
  EXPECT_TRUE(got[2].empty() && got[3].empty());
}

TEST(MergeGradients, MatchFiniteDifferences) {
  // Parts of plain doubles: |error| of a central difference with h = 1e-6 is 1e-9 here.
  const Case c({.out = {4, 3}, .parts = 3}, 21);
  PlainParts parts = ReadParts(c.Forward());
  const PlainArray dout = c.dout.Read(), dlse = c.dlse.Read();
  const auto loss = [&] {
    const auto merged = MergeParts<double>(parts);
    double sum = 0;
    for (size_t e = 0; e < dout.values.size(); ++e) sum += dout.values[e] * merged.out.values[e];
    for (size_t e = 0; e < dlse.values.size(); ++e) {
      if (std::isfinite(merged.lse.values[e])) sum += dlse.values[e] * merged.lse.values[e];
    }
    return sum;
  };
  const auto grads = MergePartsGrad<double>(parts, dout, dlse);
  const auto expect = [&](double& x, double grad) {
    if (!std::isfinite(x)) {
      EXPECT_EQ(grad, 0);
      return;
    }
    const double saved = x;
    x = saved + 1e-6;
    const double above = loss();
    x = saved - 1e-6;
    const double below = loss();
    x = saved;
    EXPECT_NEAR(grad, (above - below) / 2e-6, 1e-6);
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t e = 0; e < 12; ++e) expect(parts[i].out.values[e], grads[i].out.values[e]);
    for (size_t e = 0; e < 4; ++e) expect(parts[i].lse.values[e], grads[i].lse.values[e]);
  }
}

TEST(MergeContract, IsChecked) {
  PlainDevice device;
  const Case a({.out = {1, 2, 9, 5}}, 1), b({.out = {1, 2, 8, 5}}, 1);
  const AttendOut good{TensorOf(a.outs[0]), TensorOf(a.lses[0])};
  const AttendOut other{TensorOf(b.outs[0]), TensorOf(b.lses[0])};
  const std::vector<std::vector<AttendOut>> bad = {{},
                                                   {{}},
                                                   {good, other},
                                                   {{good.out, {}}},
                                                   {{good.lse, good.lse}},
                                                   {{good.out, other.lse}},
                                                   std::vector<AttendOut>(65, good)};
  for (const auto& parts : bad) {
    BufferPool pool;
    Stream stream(device, &pool);
    Ops ops(stream, nullptr);
    EXPECT_TRUE(ops.Merge(parts).out.empty());
    EXPECT_EQ(ops.status().code(), absl::StatusCode::kInternal);
  }
  EXPECT_EQ(device.launches(), 0);
}

}  // namespace
}  // namespace attnd::testing
