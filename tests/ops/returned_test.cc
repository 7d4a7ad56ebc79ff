// What a formula returns and no gradient rule reads is not computed where gradients alone are asked
// for.
#include "tests/ops/gradient_case.h"

namespace attnd::testing {
namespace {

class ReturnedTest : public GradientTest {
 protected:
  // Launches of the formula itself, with a tape or without.
  int64_t Launches(const Formula& formula, Values input, bool has_tape) {
    Stream stream(device_, &pool_);
    Tape tape;
    Ops ops(stream, has_tape ? &tape : nullptr);
    const Tensor x = input.AsTensor();
    tape.Watch(x);
    const int64_t before = device_.launches();
    formula(ops, {x, x, x});
    EXPECT_TRUE(ops.status().ok()) << ops.status();
    return device_.launches() - before;
  }
};

TEST_F(ReturnedTest, AProduct) {
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{ops.MatMul(in[0], in[1], {.is_returned = true}, in[2])};
  };
  ExpectGradientsMatch(formula,
                       {Random({{2, 3, 3}}, 1), Random({{2, 3, 3}}, 2), Random({{1, 3, 3}}, 3)});
  const Values square = Random({{2, 3, 3}}, 4);
  EXPECT_EQ(Launches(formula, square, /*has_tape=*/false), 1);
  EXPECT_EQ(Launches(formula, square, /*has_tape=*/true), 0);
}

TEST_F(ReturnedTest, ATransform) {
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    return std::vector<Tensor>{ops.RealFft2(in[0], /*is_returned=*/true)};
  };
  ExpectGradientsMatch(formula, {Random({{2, 3, 4}}, 1)});
  const Values x = Random({{2, 3, 4}}, 4);
  EXPECT_EQ(Launches(formula, x, /*has_tape=*/false), 1);
  EXPECT_EQ(Launches(formula, x, /*has_tape=*/true), 0);
}

TEST_F(ReturnedTest, AScan) {
  const Formula formula = [](Ops& ops, const std::vector<Tensor>& in) {
    const ScanSeqs seqs(1, {{.nq = 3, .nk = 3}});
    const ScanOut scanned =
        ops.Scan(in[0], in[1], in[2], {.causal = true}, seqs, {.is_returned = true});
    return std::vector<Tensor>{scanned.out, scanned.lse};
  };
  ExpectGradientsMatch(
      formula, {Random({{1, 2, 3, 4}}, 1), Random({{1, 2, 3, 4}}, 2), Random({{1, 2, 3, 4}}, 3)});
  const Values x = Random({{1, 2, 3, 4}}, 4);
  EXPECT_EQ(Launches(formula, x, /*has_tape=*/false), 1);
  EXPECT_EQ(Launches(formula, x, /*has_tape=*/true), 0);
}

TEST_F(ReturnedTest, AProductThatIsReadIsRefused) {
  Values x = Random({{2, 3, 3}}, 1);
  Stream stream(device_, &pool_);
  Ops ops(stream, /*tape=*/nullptr);
  const Tensor a = x.AsTensor();
  ops.MatMul(a, a, {.activation = ElementOp::kRelu, .is_returned = true});
  EXPECT_EQ(ops.status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace attnd::testing
