// linear_attention with states: a sequence in two calls gives the outputs and gradients of one.
#include <gtest/gtest.h>

#include <functional>

#include "kernels/method/registry.h"
#include "kernels/ops/ops.h"
#include "tests/cpu/scan_case.h"
#include "tests/device/test_device.h"

namespace attnd::testing {
namespace {

constexpr int64_t B = 2, H = 4, Hkv = 2, N = 40, D = 6, Dv = 5;

// The tensors of one call; `shape` points to the views.
struct Sent {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, View> views;
  ProblemShape shape = {B, H, Hkv, 0, 0, D, Dv};

  void Add(const std::string& name, const Tensor& x) {
    tensors[name] = x;
    views[name] = x[0];
    shape.tensors = &views;
  }
};

// On every instruction set of the processor, and on the strict device.
void OnEveryDevice(const std::function<void(Stream& stream)>& test) {
  for (const std::string& isa : AvailableIsas()) {
    SCOPED_TRACE(isa);
    BufferPool pool(0, /*poison=*/true);
    Stream stream(CpuOf(isa), &pool);
    test(stream);
  }
  SCOPED_TRACE("strict");
  const std::unique_ptr<Device> strict = NewTestDevice("strict");
  Stream stream(*strict, &strict->memory());
  test(stream);
}

Tensor Given(Stream& stream, const GuardedTensor& t) {
  return ToDevice(stream, Tensor({t.view()}, {nullptr}));
}

// Rows [begin, end) of axis 2.
Tensor Part(Stream& stream, const GuardedTensor& t, int64_t begin, int64_t end) {
  View view = t.view();
  view.data = view.As<float>() + begin * view.stride[2];
  view.shape.dims[2] = end - begin;
  return ToDevice(stream, Tensor({view}, {nullptr}));
}

Sent Rows(Stream& stream, const ScanCase& c, int64_t begin, int64_t end) {
  Sent sent;
  sent.shape.Nq = sent.shape.Nk = end - begin;
  sent.Add("q", Part(stream, c.q, begin, end));
  sent.Add("k", Part(stream, c.k, begin, end));
  sent.Add("v", Part(stream, c.v, begin, end));
  return sent;
}

Outputs Call(Ops& ops, const Sent& sent, const OptionMap& options) {
  const Method& method = *FindMethod("linear_attention");
  Reasons reasons("linear_attention");
  const OptionsHandle parsed = method.Parse(options, &reasons);
  method.Check(sent.shape, parsed.get(), &reasons);
  EXPECT_TRUE(reasons.empty()) << reasons.status();
  Inputs in = {.problems = {&sent.shape, 1}};
  for (const auto& [name, tensor] : sent.tensors) {
    (name == "q" ? in.q : name == "k" ? in.k : name == "v" ? in.v : in.tensors[name]) = tensor;
  }
  return method.Run(ops, in, parsed.get());
}

class LinearAttentionStates : public ::testing::TestWithParam<OptionMap> {
 protected:
  Outputs Call(Ops& ops, const Sent& sent) {
    OptionMap options = GetParam();
    options["causal"] = options["return_state"] = true;
    return testing::Call(ops, sent, options);
  }
};

void ExpectRows(Stream& stream, const Tensor& got, const Tensor& want, int64_t first,
                const char* what) {
  const Tensor part = ToHost(stream, got), whole = ToHost(stream, want);
  const View &a = part[0], &b = whole[0];
  for (int64_t i = 0; i < a.shape[0]; ++i) {
    for (int64_t h = 0; h < a.shape[1]; ++h) {
      for (int64_t n = 0; n < a.shape[2]; ++n) {
        for (int64_t d = 0; d < a.shape[3]; ++d) {
          const float x = a.As<float>()[i * a.stride[0] + h * a.stride[1] + n * a.stride[2] + d];
          const float y =
              b.As<float>()[i * b.stride[0] + h * b.stride[1] + (first + n) * b.stride[2] + d];
          ASSERT_NEAR(x, y, 2e-4 * (1 + std::fabs(y))) << what << " row " << first + n;
        }
      }
    }
  }
}

TEST_P(LinearAttentionStates, TwoCallsAreOne) {
  const ScanCase c({.B = B, .H = H, .Hkv = Hkv, .Nq = N, .Nk = N, .D = D, .Dv = Dv, .mean = 0.7});
  constexpr int64_t kCut = 23;
  OnEveryDevice([&](Stream& stream) {
    // One call, and its gradients.
    Tape one;
    Ops whole_ops(stream, &one);
    const Sent whole = Rows(stream, c, 0, N);
    for (const auto& [name, x] : whole.tensors) one.Watch(x);
    const Outputs want = Call(whole_ops, whole);
    ASSERT_TRUE(whole_ops.status().ok()) << whole_ops.status();
    const std::vector<Tensor> inputs = {whole.tensors.at("q"), whole.tensors.at("k"),
                                        whole.tensors.at("v")};
    const std::vector<Tensor> want_grads =
        one.Replay(whole_ops, std::vector<Tensor>{want.out},
                   std::vector<Tensor>{Given(stream, c.dout)}, inputs);
    // Two calls on one tape, the second from the state of the first.
    Tape two;
    Ops ops(stream, &two);
    const Sent first = Rows(stream, c, 0, kCut);
    Sent second = Rows(stream, c, kCut, N);
    for (const auto& [name, x] : first.tensors) two.Watch(x);
    const Outputs head = Call(ops, first);
    ASSERT_TRUE(ops.status().ok()) << ops.status();
    second.Add("state_s", head.extra.at("state_s"));
    second.Add("state_z", head.extra.at("state_z"));
    const Outputs tail = Call(ops, second);
    ASSERT_TRUE(ops.status().ok()) << ops.status();
    ExpectRows(stream, head.out, want.out, 0, "out");
    ExpectRows(stream, tail.out, want.out, kCut, "out");
    ExpectRows(stream, tail.extra.at("state_s"), want.extra.at("state_s"), 0, "state_s");
    const std::vector<Tensor> grads = two.Replay(
        ops, std::vector<Tensor>{head.out, tail.out},
        std::vector<Tensor>{Part(stream, c.dout, 0, kCut), Part(stream, c.dout, kCut, N)},
        std::vector<Tensor>{first.tensors.at("q"), first.tensors.at("k"), first.tensors.at("v")});
    ASSERT_TRUE(ops.status().ok()) << ops.status();
    ExpectRows(stream, grads[0], want_grads[0], 0, "dq");
    ExpectRows(stream, grads[1], want_grads[1], 0, "dk");
    ExpectRows(stream, grads[2], want_grads[2], 0, "dv");
  });
}

// e^q e^k exceeds float32; the state and the outputs read from it do not.
TEST(LinearAttentionExp, WithAndWithoutAStateAgree) {
  for (double mean : {60.0, -60.0}) {
    const ScanCase c(
        {.B = B, .H = H, .Hkv = Hkv, .Nq = N, .Nk = N, .D = D, .Dv = Dv, .mean = mean});
    OnEveryDevice([&](Stream& stream) {
      const Sent sent = Rows(stream, c, 0, N);
      std::vector<Tensor> results[2];
      for (bool has_state : {false, true}) {
        Tape tape;
        Ops ops(stream, &tape);
        std::vector<Tensor> inputs;
        for (const char* name : {"q", "k", "v"}) {
          inputs.push_back(sent.tensors.at(name));
          tape.Watch(inputs.back());
        }
        const OptionMap options = {
            {"feature_map", std::string("exp")}, {"causal", true}, {"return_state", has_state}};
        const Outputs got = Call(ops, sent, options);
        const auto column = [&](const Tensor& lse) { return ops.Reshape(lse, {{B, H, N, 1}}); };
        const Tensor lse = column(got.lse);
        std::vector<Tensor>& all = results[has_state];
        const Tensor dout = Given(stream, c.dout);
        all = tape.Replay(ops, std::vector<Tensor>{got.out, lse},
                          std::vector<Tensor>{dout, ops.Slice(dout, 3, {0}, {1})}, inputs);
        // A tape alone computes gradients alone.
        Ops without_tape(stream, /*tape=*/nullptr);
        const Outputs values = Call(without_tape, sent, options);
        all.insert(all.end(), {values.out, column(values.lse)});
        ASSERT_TRUE(ops.status().ok()) << ops.status();
      }
      for (size_t n = 0; n < results[0].size(); ++n) {
        ExpectRows(stream, results[1][n], results[0][n], 0, n < 3 ? "gradient" : "result");
      }
    });
  }
}

// Nothing is divided by features and states that underflow to 0 in float32.
TEST(LinearAttentionExp, LseOfUnderflowIsMinusInfinity) {
  const ScanCase c({.B = B, .H = H, .Hkv = Hkv, .Nq = N, .Nk = N, .D = D, .Dv = Dv, .mean = -200});
  OnEveryDevice([&](Stream& stream) {
    Ops ops(stream, nullptr);
    const Outputs got =
        Call(ops, Rows(stream, c, 0, N),
             {{"feature_map", std::string("exp")}, {"causal", true}, {"return_state", true}});
    ASSERT_TRUE(ops.status().ok()) << ops.status();
    EXPECT_EQ(ToHost(stream, got.out)[0].As<float>()[0], 0);
    EXPECT_EQ(ToHost(stream, got.lse)[0].As<float>()[0], -std::numeric_limits<float>::infinity());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Maps, LinearAttentionStates,
    ::testing::Values(OptionMap{}, OptionMap{{"feature_map", std::string("dpfp")}},
                      OptionMap{{"feature_map", std::string("exp")}},
                      OptionMap{{"feature_map", std::string("exp")}, {"feature_sum_norm", true}},
                      OptionMap{{"feature_map", std::string("sigmoid")}, {"normalize", false}},
                      OptionMap{{"feature_sum_norm", true}}));

}  // namespace
}  // namespace attnd::testing
