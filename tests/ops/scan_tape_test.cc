// Ops::Scan on a tape: refusals, and gradients against the plain recurrence.
#include <gtest/gtest.h>

#include "kernels/ops/ops.h"
#include "tests/cpu/scan_case.h"
#include "tests/plain/declining_device.h"

namespace attnd::testing {
namespace {

Tensor Given(const View& view) { return Tensor({view}, {nullptr}); }
View Raw(const GuardedTensor& t) { return t.view(); }

PlainTensor Values(const Tensor& x) {
  const View& view = x[0];
  const Shape& s = view.shape;
  PlainTensor plain(s[0], s[1], s[2], s[3]);
  for (int64_t b = 0; b < s[0]; ++b) {
    for (int64_t h = 0; h < s[1]; ++h) {
      for (int64_t n = 0; n < s[2]; ++n) {
        for (int64_t d = 0; d < s[3]; ++d) {
          plain.at(b, h, n, d) = view.As<float>()[b * view.stride[0] + h * view.stride[1] +
                                                  n * view.stride[2] + d * view.stride[3]];
        }
      }
    }
  }
  return plain;
}

class ScanTapeTest : public ::testing::Test {
 protected:
  // Scans `c` and replays; inputs in the order q, k, v, log_decay, beta, s0, z0.
  void Run(const ScanCase& c) {
    const std::vector<Tensor> in = {Given(Raw(c.q)),         Given(Raw(c.k)),    Given(Raw(c.v)),
                                    Given(Raw(c.log_decay)), Given(Raw(c.beta)), Given(Raw(c.s0)),
                                    Given(Raw(c.z0))};
    Stream stream(CpuOf(AvailableIsas()[0]), &pool_);
    Tape tape;
    Ops ops(stream, &tape);
    for (const Tensor& x : in) tape.Watch(x);
    out_ = ops.Scan(in[0], in[1], in[2], c.spec.params, {c.spec.seqs},
                    {in[3], in[4], in[5], in[6], /*final_state=*/true});
    ASSERT_TRUE(ops.status().ok()) << ops.status();
    const std::vector<Tensor> outputs = {out_.out, out_.lse, out_.s_out, out_.z_out};
    const std::vector<Tensor> grads = {Given(Raw(c.dout)), Given(Raw(c.dlse)), Given(Raw(c.ds_out)),
                                       Given(Raw(c.dz_out))};
    grads_ = tape.Replay(ops, outputs, grads, in);
    ASSERT_TRUE(ops.status().ok()) << ops.status();
  }

  BufferPool pool_{0, /*poison=*/true};
  ScanOut out_;
  std::vector<Tensor> grads_;
};

ScanSpec Everything() {
  return {.B = 2,
          .H = 4,
          .Hkv = 2,
          .Nq = 20,
          .Nk = 24,
          .D = 6,
          .Dv = 5,
          .params = {.causal = true, .scale = 0.5},
          .decays = ScanSpec::Decays::kFeature,
          .beta = true,
          .state = true,
          .final = true};
}

TEST_F(ScanTapeTest, EveryGradientFlows) {
  const ScanCase c(Everything());
  Run(c);
  const PlainScanOut want = Forward(c.Plain());
  const PlainScanGrads grads = Gradients(c.Plain(), c.Incoming());
  ExpectClose(Values(out_.s_out), want.s_out, 1e-5, "s_out");
  ExpectClose(AsRow(Values(out_.z_out)), want.z_out, 1e-5, "z_out");
  ExpectClose(Values(grads_[0]), grads.dq, 1e-4, "dq");
  ExpectClose(Values(grads_[1]), grads.dk, 1e-4, "dk");
  ExpectClose(Values(grads_[2]), grads.dv, 1e-4, "dv");
  ExpectClose(Values(grads_[3]), grads.dlog_decay, 1e-4, "dlog_decay");
  ExpectClose(Values(grads_[4]), grads.dbeta, 1e-4, "dbeta");
  ExpectClose(Values(grads_[5]), grads.ds0, 1e-4, "ds0");
  ExpectClose(AsRow(Values(grads_[6])), grads.dz0, 1e-4, "dz0");
}

// The sum over B and Hkv, which are 1 in the tensor.
PlainTensor Summed(const PlainTensor& x) {
  PlainTensor sum(1, 1, x.N, x.D);
  for (size_t i = 0; i < x.data.size(); ++i) sum.data[i % sum.data.size()] += x.data[i];
  return sum;
}

TEST_F(ScanTapeTest, GradientsOfWhatRepeatsAreSums) {
  ScanSpec spec = Everything();
  spec.repeated = true;
  const ScanCase c(spec);
  Run(c);
  const PlainScanGrads grads = Gradients(c.Plain(), c.Incoming());
  ExpectClose(Values(grads_[3]), Summed(grads.dlog_decay), 1e-4, "dlog_decay");
  ExpectClose(Values(grads_[4]), Summed(grads.dbeta), 1e-4, "dbeta");
  ExpectClose(Values(grads_[5]), Summed(grads.ds0), 1e-4, "ds0");
  ExpectClose(AsRow(Values(grads_[6])), Summed(grads.dz0), 1e-4, "dz0");
}

// Symptom: where the scan was composed, a tensor that was q and k got both gradients twice.
TEST_F(ScanTapeTest, OneTensorMayBeQueriesAndKeys) {
  const ScanCase c({.Hkv = 2,
                    .Nq = 20,
                    .Nk = 20,
                    .params = {.causal = true, .eps = 1e-3},
                    .seqs = {{.nq = 15, .nk = 20, .offset = -1}}});
  const auto gradient = [&](Device& device) {
    Stream stream(device, &pool_);
    Tape tape;
    Ops ops(stream, &tape);
    const Tensor x = Given(Raw(c.k));
    tape.Watch(x);
    const ScanOut out = ops.Scan(x, x, Given(Raw(c.v)), c.spec.params, {c.spec.seqs});
    const std::vector<Tensor> outputs = {out.out}, flows = {Given(Raw(c.dout))}, inputs = {x};
    const std::vector<Tensor> back = tape.Replay(ops, outputs, flows, inputs);
    EXPECT_TRUE(ops.status().ok()) << ops.status();
    return Values(back[0]);
  };
  Device& cpu = CpuOf(AvailableIsas()[0]);
  DecliningDevice declining(cpu);
  ExpectClose(gradient(declining), gradient(cpu), 1e-4, "dx");
}

TEST_F(ScanTapeTest, RefusesCallsThatBreakTheContract) {
  const ScanCase c(Everything());
  const Tensor q = Given(Raw(c.q)), k = Given(Raw(c.k)), v = Given(Raw(c.v));
  const Tensor decay = Given(Raw(c.log_decay)), beta = Given(Raw(c.beta)), s0 = Given(Raw(c.s0));
  const auto status = [&](const ScanParams& params, const ScanTensors& tensors) {
    Stream dry(CpuOf(AvailableIsas()[0]), nullptr);
    Ops ops(dry, nullptr);
    ops.Scan(q, k, v, params, {c.spec.seqs}, tensors);
    return std::string(ops.status().message());
  };
  EXPECT_EQ(status({.causal = true}, {.log_decay = decay, .beta = beta}), "");
  EXPECT_EQ(status({}, {.log_decay = decay}),
            "scan: log_decay, beta and a final state need causal");
  EXPECT_EQ(status({}, {.final_state = true}),
            "scan: log_decay, beta and a final state need causal");
  EXPECT_EQ(status({.rule = ScanRule::kDelta, .causal = true}, {}),
            "scan: the delta rule needs causal and den kOne");
  EXPECT_EQ(status({.map = FeatureMap::kExp, .causal = true}, {.s0 = s0}),
            "scan: kExp takes no decay, beta, state or delta rule");
  EXPECT_EQ(status({.causal = true}, {.beta = s0}),
            "scan: log_decay, beta and states must fit k and v");
  EXPECT_EQ(status({.causal = true, .chunk = 0}, {}), "scan: chunk must be in 1..1024");
}

}  // namespace
}  // namespace attnd::testing
