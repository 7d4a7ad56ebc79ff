// Gradients of compositions that no method uses, against finite differences in double.
#include "kernels/ops/tape.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ops/ops.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/shapes/windows.h"
#include "tests/ops/gradient_case.h"
#include "tests/plain/plain.h"
#include "tests/plain/plain_device.h"

namespace attnd::testing {
namespace {

// Row b of every problem sees everything within its sizes, or causally.
AttendSeqs Seqs(const Tensor& q, const Tensor& k, bool causal, Ops& ops) {
  AttendSeqs seqs;
  for (size_t p = 0; p < q.size(); ++p) {
    const int64_t Nq = q[p].shape[2], Nk = k[p].shape[2];
    const int64_t hi = causal ? Nk - Nq : kUnbounded;
    const PatternSource source = BandSource(Nq, Nk, kUnbounded, hi);
    seqs.emplace_back(q[p].shape[0], ops.Seq(Nq, Nk, source));
  }
  return seqs;
}

AttendOut Attend(Ops& ops, const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  return ops.Attend(q, k, v, {.scale = 0.7}, Seqs(q, k, causal, ops));
}

ScanOut Scan(Ops& ops, const Tensor& q, const Tensor& k, const Tensor& v) {
  ScanSeqs seqs;
  for (size_t p = 0; p < q.size(); ++p) {
    const int64_t Nq = q[p].shape[2], Nk = k[p].shape[2];
    seqs.emplace_back(q[p].shape[0], ScanSeq{.nq = Nq, .nk = Nk, .offset = Nk - Nq});
  }
  return ops.Scan(q, k, v, {.causal = true}, seqs);
}

class TapeTest : public GradientTest {};

TEST_F(TapeTest, OneAttendWithBothOutputs) {
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    const AttendOut a = Attend(ops, in[0], in[1], in[2], /*causal=*/true);
    return std::vector<Tensor>{a.out, a.lse};
  };
  // Grouped heads, Dv != D, and more queries than keys: the first two seqs see nothing.
  ExpectGradientsMatch(
      formula, {Random({{2, 4, 5, 3}}, 1), Random({{2, 2, 3, 3}}, 2), Random({{2, 2, 3, 2}}, 3)});
}

TEST_F(TapeTest, RaggedLists) {
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    const AttendOut a = Attend(ops, in[0], in[1], in[2], /*causal=*/true);
    return std::vector<Tensor>{a.out};
  };
  ExpectGradientsMatch(formula, {Random({{1, 2, 3, 3}, {2, 2, 1, 3}, {1, 1, 0, 3}}, 1),
                                 Random({{1, 1, 4, 3}, {2, 2, 2, 3}, {1, 1, 2, 3}}, 2),
                                 Random({{1, 1, 4, 2}, {2, 2, 2, 2}, {1, 1, 2, 2}}, 3)});
}

TEST_F(TapeTest, AttendOfAttend) {
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    const AttendOut inner = Attend(ops, in[0], in[1], in[2], /*causal=*/false);
    const AttendOut outer = Attend(ops, inner.out, in[1], inner.out, /*causal=*/true);
    return std::vector<Tensor>{outer.out, inner.lse, outer.lse};
  };
  ExpectGradientsMatch(
      formula, {Random({{1, 2, 4, 3}}, 1), Random({{1, 2, 4, 3}}, 2), Random({{1, 2, 4, 3}}, 3)});
}

TEST_F(TapeTest, OneTensorAsQueriesKeysAndValues) {
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    const AttendOut a = Attend(ops, in[0], in[0], in[0], /*causal=*/true);
    return std::vector<Tensor>{a.out, a.lse};
  };
  ExpectGradientsMatch(formula, {Random({{1, 2, 5, 3}}, 4)});
}

TEST_F(TapeTest, AttendThenScanThenAdd) {
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    const AttendOut a = Attend(ops, in[0], in[1], in[2], /*causal=*/false);
    const ScanOut s = Scan(ops, a.out, in[1], in[2]);
    const Tensor sum = ops.Add(ops.Add(s.out, a.out), s.out);
    return std::vector<Tensor>{sum, s.lse};
  };
  ExpectGradientsMatch(
      formula, {Random({{1, 2, 4, 3}}, 5), Random({{1, 1, 5, 3}}, 6), Random({{1, 1, 5, 3}}, 7)});
}

TEST_F(TapeTest, OnlyLseFlows) {
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{Attend(ops, in[0], in[1], in[2], /*causal=*/false).lse};
  };
  ExpectGradientsMatch(
      formula, {Random({{1, 1, 3, 2}}, 8), Random({{1, 1, 4, 2}}, 9), Random({{1, 1, 4, 2}}, 10)});
}

TEST_F(TapeTest, UnusedOutputsAndUnwatchedInputsCostNothing) {
  std::vector<Values> inputs = {Random({{1, 1, 3, 2}}, 1), Random({{1, 1, 3, 2}}, 2),
                                Random({{1, 1, 3, 2}}, 3)};
  // Given a chain of two attends over unwatched tensors, a third over a watched one, and one whose
  // output is not used.
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    const Tensor constant = Attend(ops, in[1], in[1], in[2], false).out;
    const Tensor constant2 = Attend(ops, constant, in[1], in[2], false).out;
    const Tensor used = Attend(ops, in[0], constant, constant2, false).out;
    Attend(ops, used, used, used, false);
    return std::vector<Tensor>{used};
  };
  // When only in[0] is watched
  const auto grads = Gradients(formula, inputs, {true, false, false});
  // Then one gradient call runs, and nothing is returned for the others.
  EXPECT_EQ(device_.calls(), (DeviceCalls{.attend = 4, .attend_grad = 1}));
  EXPECT_FALSE(grads[0].empty());
  EXPECT_TRUE(grads[1].empty());
  EXPECT_TRUE(grads[2].empty());
}

TEST_F(TapeTest, UnwantedGradientsAreNotGivenToTheDevice) {
  struct Spy : PlainDevice {
    DeviceStatus Run(Stream& stream, Launch launch) override {
      if (const auto* args = std::get_if<AttendGradArgs>(&launch)) {
        const AttendGradProblem& p = args->problems[0];
        given = {p.dout.given(), p.dlse.given(), p.dq.given(), p.dk.given(), p.dv.given()};
      }
      return PlainDevice::Run(stream, std::move(launch));
    }
    std::vector<bool> given;
  } spy;
  std::vector<Values> values = {Random({{1, 1, 3, 2}}, 1), Random({{1, 1, 3, 2}}, 2)};
  for (BufferPool* pool : {&pool_, static_cast<BufferPool*>(nullptr)}) {  // real, then dry
    Stream stream(spy, pool);
    Tape tape;
    Ops ops(stream, &tape);
    const Tensor q = values[0].AsTensor(), kv = values[1].AsTensor();
    tape.Watch(q);
    const AttendOut a = Attend(ops, q, kv, kv, false);
    Values grad = Random({{1, 1, 3, 2}}, 3);
    const std::vector<Tensor> out = {a.out}, grads = {grad.AsTensor()}, asked = {q};
    EXPECT_FALSE(tape.Replay(ops, out, grads, asked)[0].empty());
    EXPECT_EQ(spy.given, (std::vector<bool>{true, false, true, false, false}));
  }
}

TEST_F(TapeTest, AGradientHasWhatItsForwardKept) {
  struct Spy : PlainDevice {
    DeviceStatus Run(Stream& stream, Launch launch) override {
      if (const auto* args = std::get_if<AttendArgs>(&launch)) kept.push_back(args->kept);
      if (const auto* args = std::get_if<AttendGradArgs>(&launch)) taken.push_back(args->kept);
      return PlainDevice::Run(stream, std::move(launch));
    }
    std::vector<std::shared_ptr<AttendKept>> kept, taken;
  } spy;
  std::vector<Values> values = {Random({{1, 1, 3, 2}}, 1), Random({{1, 1, 3, 2}}, 2)};
  Stream stream(spy, &pool_);
  Tape tape;
  Ops ops(stream, &tape);
  const Tensor q = values[0].AsTensor(), kv = values[1].AsTensor();
  Attend(ops, q, kv, kv, false);  // nothing of it is watched
  tape.Watch(q);
  const std::vector<AttendSeqs> parts(2, Seqs(q, kv, false, ops));
  const AttendOut a = ops.Attend(q, kv, kv, {.scale = 0.7}, parts, {}, std::nullopt);
  Values grad = Random({{1, 1, 3, 2}}, 3);
  const std::vector<Tensor> out = {a.out}, grads = {grad.AsTensor()}, asked = {q};
  EXPECT_FALSE(tape.Replay(ops, out, grads, asked)[0].empty());
  ASSERT_EQ(spy.kept.size(), 3);
  EXPECT_EQ(spy.kept[0], nullptr);
  EXPECT_NE(spy.kept[1], nullptr);
  EXPECT_NE(spy.kept[1], spy.kept[2]);
  EXPECT_EQ(spy.taken, (std::vector{spy.kept[1], spy.kept[2]}));
}

TEST_F(TapeTest, AWatchedTensorThatIsAnOutputGetsItsGradientBack) {
  Values value = Random({{1, 1, 3, 2}}, 1), weight = Random({{1, 1, 3, 2}}, 2);
  Stream stream(device_, &pool_);
  Tape tape;
  Ops ops(stream, &tape);
  const std::vector<Tensor> x = {value.AsTensor()}, grad = {weight.AsTensor()};
  tape.Watch(x[0]);
  EXPECT_EQ(tape.Replay(ops, x, grad, x)[0].id(), grad[0].id());
}

TEST_F(TapeTest, GradientsAskedOfTensorsInTheMiddle) {
  std::vector<Values> values = {Random({{1, 1, 3, 2}}, 1)};
  Stream stream(device_, &pool_);
  Tape tape;
  Ops ops(stream, &tape);
  const Tensor x = values[0].AsTensor();
  tape.Watch(x);
  const Tensor twice = ops.Add(x, x);
  const Tensor four = ops.Add(twice, twice);
  Values ones{{{1, 1, 3, 2}}, {std::vector<float>(6, 1)}};
  const std::vector<Tensor> outputs = {four}, grads = {ones.AsTensor()}, asked = {x, twice};
  const auto result = tape.Replay(ops, outputs, grads, asked);
  ASSERT_FALSE(result[0].empty());
  ASSERT_FALSE(result[1].empty());
  EXPECT_EQ(result[0][0].As<float>()[0], 4);
  EXPECT_EQ(result[1][0].As<float>()[0], 2);
}

// A tensor of bfloat16 ones in memory order b, n, h, d.
struct Halves {
  std::vector<uint16_t> bits = std::vector<uint16_t>(24, 0x3F80);
  Tensor AsTensor() {
    return Tensor({DenseView(bits.data(), DType::kBF16, {1, 2, 3, 4}, Layout::kBNHD)}, {nullptr});
  }
};

TEST_F(TapeTest, ResultsAreDenseInTheDtypeAndLayoutOfTheirTensor) {
  Halves halves;
  Stream stream(device_, &pool_);
  Tape tape;
  Ops ops(stream, &tape);
  const Tensor x = halves.AsTensor();
  tape.Watch(x);
  // Given a formula whose gradient is a float32 view of strides 1, 2 in its last axes
  const Tensor y = ops.Transpose(x, 2, 3);
  Values weight = Random({{1, 2, 4, 3}}, 2);
  const std::vector<Tensor> outputs = {y}, grads = {weight.AsTensor()}, asked = {x};
  const Tensor grad = tape.Replay(ops, outputs, grads, asked)[0];
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  EXPECT_EQ(grad[0].dtype, DType::kBF16);
  EXPECT_EQ(grad[0].layout, Layout::kBNHD);
  EXPECT_EQ(grad[0].stride, x[0].stride);
  const PlainArray got = ReadView(grad[0]), want = ReadView(grads[0][0]);
  ForEachIndex(x[0].shape, [&](const std::vector<int64_t>& at) {
    EXPECT_NEAR(got.At(at), want.At({at[0], at[1], at[3], at[2]}), 1.0 / 256);
  });
  EXPECT_EQ(device_.calls(), (DeviceCalls{.other = 1}));  // one copy
}

TEST_F(TapeTest, ASumWithAFloat32GradientIsFloat32) {
  // Given x used twice: once with a gradient of bfloat16, once of float32
  Halves halves, ones;
  Stream stream(device_, &pool_);
  Tape tape;
  Ops ops(stream, &tape);
  const Tensor x = halves.AsTensor();
  tape.Watch(x);
  const std::vector<Shape> flat = {{24}};
  const Tensor narrow = ops.Reshape(ops.Transpose(x, 1, 2), flat);
  const Tensor wide = ops.Reshape(ops.Transpose(x, 1, 2), flat);
  Values weight{flat, {std::vector<float>(24, 1 + 1.0f / 128)}};
  Values small{flat, {std::vector<float>(24, 1.0f / 1024)}};
  const std::vector<Tensor> outputs = {narrow, wide, wide};
  const Tensor half = ops.Reshape(ops.Transpose(ones.AsTensor(), 1, 2), flat);
  const std::vector<Tensor> grads = {half, small.AsTensor(), weight.AsTensor()};
  const std::vector<Tensor> asked = {x};
  const Tensor grad = tape.Replay(ops, outputs, grads, asked)[0];
  ASSERT_TRUE(ops.status().ok()) << ops.status();
  // Then 1 + 1/1024 + 1 + 1/128 rounds once, to 2 + 1/64; rounded after each step it would be 2.
  EXPECT_EQ(ReadView(grad[0]).values, std::vector<double>(24, 2 + 1.0 / 64));
}

TEST_F(TapeTest, ScratchIsFreedWithTheTape) {
  std::vector<Values> inputs = {Random({{1, 2, 5, 3}}, 4)};
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    const Tensor once = Attend(ops, in[0], in[0], in[0], true).out;
    return std::vector<Tensor>{Attend(ops, once, once, once, true).out};
  };
  Gradients(formula, inputs, {true});
  EXPECT_EQ(pool_.stats().used_bytes, 0);
}

TEST_F(TapeTest, BrokenContractsStickAndDoNotCrash) {
  std::vector<Values> v = {Random({{1, 2, 3, 4}}, 1), Random({{1, 2, 3, 5}}, 2)};
  Stream stream(device_, &pool_);
  Ops ops(stream, /*tape=*/nullptr);
  const Tensor a = v[0].AsTensor(), b = v[1].AsTensor();
  EXPECT_TRUE(Attend(ops, a, b, a, false).out.empty());  // D differs
  EXPECT_EQ(ops.status().code(), absl::StatusCode::kInternal);
  const absl::Status first = ops.status();
  EXPECT_TRUE(ops.Add(a, b).empty());
  EXPECT_TRUE(Attend(ops, a, a, a, false).out.empty());  // sticky
  EXPECT_EQ(ops.status(), first);
  EXPECT_EQ(device_.calls(), DeviceCalls{});
}

TEST_F(TapeTest, NoMemoryIsAStatus) {
  Stream stream(device_, &pool_);
  Ops ops(stream, /*tape=*/nullptr);
  const Shape huge = {1 << 10, 1 << 10, 1 << 20, 1 << 10};
  EXPECT_TRUE(ops.Empty(DType::kF32, {huge}, {Layout::kBHND}).empty());
  EXPECT_EQ(ops.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace attnd::testing
