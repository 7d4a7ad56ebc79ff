// Ops count visible pairs and FLOPs, the same on dry streams and on every device.
#include <gtest/gtest.h>

#include <functional>

#include "kernels/ops/ops.h"
#include "tests/plain/plain_device.h"

namespace attnd::testing {
namespace {

struct Counts {
  double pairs = 0, flops = 0;
  bool operator==(const Counts&) const = default;
};

// What `formula` counts, forward and with the gradients of its inputs. Expects a dry stream to
// count the same.
Counts CountOf(const std::function<Tensor(Ops& ops, Tape* tape)>& formula) {
  PlainDevice device;
  std::vector<Counts> counts;
  for (BufferPool* memory : {&device.memory(), static_cast<BufferPool*>(nullptr)}) {
    Stream stream(device, memory);
    Tape tape;
    Ops ops(stream, &tape);
    const Tensor out = formula(ops, &tape);
    const Tensor grad = ops.Copy(out);
    static_cast<void>(tape.Replay(ops, {{out}}, {{grad}}, {}));
    EXPECT_TRUE(ops.status().ok()) << ops.status();
    counts.push_back({stream.work().visible_pairs, stream.work().flops});
  }
  EXPECT_EQ(counts[0], counts[1]);
  return counts[0];
}

Tensor Zeros(Ops& ops, Tape* tape, const Shape& shape) {
  const Tensor x = ops.Copy(ops.Constant(0, {shape}));
  tape->Watch(x);
  return x;
}

TEST(WorkTest, AttendIsCreditedTwoFlopsAPairAndElementAndItsBackwardTwoAndAHalfTimesThat) {
  const Counts counts = CountOf([](Ops& ops, Tape* tape) {
    const Tensor q = Zeros(ops, tape, {1, 4, 30, 32}), k = Zeros(ops, tape, {1, 2, 70, 32});
    const Tensor v = Zeros(ops, tape, {1, 2, 70, 16});
    return ops.Attend(q, k, v, {}, {{{.nq = 30, .nk = 70, .visible_pairs = 30 * 70}}}).out;
  });
  EXPECT_EQ(counts.pairs, 2 * 4.0 * 30 * 70);  // forward and backward both count them
  EXPECT_EQ(counts.flops, 3.5 * 4.0 * 30 * 70 * 2 * (32 + 16));
}

TEST(WorkTest, ColumnMassIsNotCreditedAgain) {
  const auto attend = [](Ops& ops, Tape* tape, bool with_mass) {
    const Tensor q = Zeros(ops, tape, {1, 2, 9, 4}), k = Zeros(ops, tape, {1, 2, 9, 4});
    const AttendSeqs seqs = {{{.nq = 9, .nk = 9, .visible_pairs = 81}}};
    const AttendOut out = ops.Attend(q, k, k, {}, seqs);
    if (with_mass) static_cast<void>(ops.ColumnMass(q, k, {}, seqs, out));
    return out.out;
  };
  EXPECT_EQ(CountOf([&](Ops& ops, Tape* tape) { return attend(ops, tape, true); }),
            CountOf([&](Ops& ops, Tape* tape) { return attend(ops, tape, false); }));
}

TEST(WorkTest, ScanIsCreditedForAddingToAndReadingTheState) {
  for (const bool delta : {false, true}) {
    const Counts counts = CountOf([&](Ops& ops, Tape* tape) {
      const Tensor q = Zeros(ops, tape, {1, 4, 100, 32}), k = Zeros(ops, tape, {1, 2, 100, 32});
      const ScanParams params{.rule = delta ? ScanRule::kDelta : ScanRule::kSum,
                              .causal = true,
                              .den = delta ? ScanDen::kOne : ScanDen::kAdd};
      return ops.Scan(q, k, k, params, {{{.nq = 100, .nk = 100, .visible_pairs = 5050}}}).out;
    });
    EXPECT_EQ(counts.pairs, 2 * 4 * 5050);
    // 2 D Dv FLOPs for each query head that reads and each kv head that adds to the state, and with
    // delta for each kv head that reads it.
    EXPECT_EQ(counts.flops, 3.5 * 100 * (2 * (delta ? 2 : 1) + 4) * 2 * 32 * 32);
  }
}

TEST(WorkTest, ProductsAreCreditedTwoFlopsAMultiplication) {
  const Counts counts = CountOf([](Ops& ops, Tape* tape) {
    return ops.MatMul(Zeros(ops, tape, {3, 64, 128}), Zeros(ops, tape, {1, 128, 32}));
  });
  EXPECT_EQ(counts.flops, 3 * 2.0 * 3 * 64 * 128 * 32);  // forward and two gradients
}

TEST(WorkTest, DepthwiseConvolutionsAreCreditedTwoFlopsAnElementAndTap) {
  const Counts counts = CountOf([](Ops& ops, Tape* tape) {
    return ops.DepthwiseConv1d(Zeros(ops, tape, {2, 3, 10, 8}), Zeros(ops, tape, {3, 5}), 2);
  });
  EXPECT_EQ(counts.flops, 3 * 2.0 * 2 * 3 * 10 * 8 * 5);
}

TEST(WorkTest, RandomFeaturesAreCreditedAProductInTheForwardAndOneInTheGradient) {
  for (RandomFeature feature :
       {RandomFeature::kExp, RandomFeature::kCosh, RandomFeature::kSinCos}) {
    const Counts counts = CountOf([&](Ops& ops, Tape* tape) {
      const Tensor w = ops.Stop(Zeros(ops, tape, {1, 1, 7, 8}));
      return ops.RandomFeatures(Zeros(ops, tape, {2, 3, 10, 8}), w, {.feature = feature}).phi;
    });
    EXPECT_EQ(counts.flops, 2 * 2.0 * 2 * 3 * 10 * 8 * 7);
  }
}

}  // namespace
}  // namespace attnd::testing
