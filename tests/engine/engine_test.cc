// Plans and batches on the plain device, the CPU's and the strict one.
#include "kernels/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "kernels/ops/ops.h"
#include "tests/device/test_device.h"
#include "tests/engine/cpu_engine.h"
#include "tests/engine/placed.h"

namespace attnd::testing {
namespace {

// A call with data that it owns.
struct Request {
  Call call;
  std::map<std::string, std::vector<float>> floats;
  std::map<std::string, std::vector<int32_t>> integers;

  void Add(const std::string& name, const Shape& shape, unsigned seed,
           Layout layout = Layout::kBHND) {
    std::vector<float>& data = floats[name];
    data.resize(shape.size());
    std::mt19937 random(seed);
    for (float& x : data) x = std::uniform_real_distribution<float>(-1, 1)(random);
    call.tensors[name] = DenseView(data.data(), DType::kF32, shape, layout);
  }
  void AddIntegers(const std::string& name, std::vector<int32_t> values) {
    integers[name] = std::move(values);
    std::vector<int32_t>& own = integers[name];
    call.tensors[name] = DenseView(own.data(), DType::kI32, {static_cast<int64_t>(own.size())});
  }
};

struct Sizes {
  int64_t B = 1, H = 2, Hkv = 1, Nq = 5, Nk = 7, D = 4, Dv = 3;
};

std::unique_ptr<Request> MakeRequest(const std::string& method, OptionMap options, const Sizes& s,
                                     Direction direction, unsigned seed = 1) {
  auto request = std::make_unique<Request>();
  request->call.method = method;
  request->call.options = std::move(options);
  request->call.direction = direction;
  request->Add("q", {s.B, s.H, s.Nq, s.D}, seed);
  request->Add("k", {s.B, s.Hkv, s.Nk, s.D}, seed + 1);
  request->Add("v", {s.B, s.Hkv, s.Nk, s.Dv}, seed + 2);
  if (direction == Direction::kBackward) {
    request->Add("grad_out", {s.B, s.H, s.Nq, s.Dv}, seed + 3);
    request->Add("grad_lse", {s.B, s.H, s.Nq}, seed + 4);
  }
  return request;
}

class EngineTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    engine_ = EngineOn(NewTestDevice(GetParam()));
    stream_ = std::make_unique<Stream>(engine_->device(), &engine_->device().memory());
  }
  void TearDown() override {
    if (engine_ != nullptr) {
      EXPECT_EQ(engine_->device().memory().stats().used_bytes, 0);
      EXPECT_EQ(engine_->host_memory().used_bytes, 0);
    }
  }

  std::string Refusal(const Call& call) {
    const auto plan = engine_->MakePlan(call);
    return plan.ok() ? "" : std::string(plan.status().message());
  }

  absl::StatusOr<Execution> Execute(const std::vector<const Request*>& requests) {
    std::vector<Problem> batch;
    int64_t bound = 0;
    for (const Request* request : requests) {
      auto plan = engine_->MakePlan(request->call);
      if (!plan.ok()) return plan.status();
      bound += (*plan)->workspace_bytes;
      batch.push_back({*plan, request->call.tensors});
    }
    auto execution = ExecutePlaced(*engine_, *stream_, batch);
    if (execution.ok()) {
      EXPECT_LE(execution->peak_workspace_bytes, bound) << batch[0].plan->bucket;
      EXPECT_GT(execution->peak_workspace_bytes, 0);
      for (size_t p = 0; p < batch.size(); ++p)
        ExpectPlanned(*batch[p].plan, execution->results[p]);
    }
    return execution;
  }

  static void ExpectPlanned(const Plan& plan, const std::vector<Result>& results) {
    ASSERT_EQ(results.size(), plan.outputs.size());
    int64_t bytes = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].info.name, plan.outputs[i].name);
      EXPECT_EQ(results[i].view.shape, plan.outputs[i].shape);
      EXPECT_EQ(results[i].view.dtype, plan.outputs[i].dtype);
      EXPECT_EQ(results[i].view.layout, plan.outputs[i].layout);
      EXPECT_EQ(results[i].view.data, results[i].buffer->data());
      bytes += results[i].view.bytes();
    }
    EXPECT_EQ(bytes, plan.output_bytes);
    EXPECT_LE(bytes, plan.workspace_bytes);
  }

  static std::vector<float> Values(const Result& result) {
    const float* data = result.view.As<float>();
    return {data, data + result.view.shape.size()};
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Stream> stream_;
};

INSTANTIATE_TEST_SUITE_P(Backends, EngineTest, ::testing::Values("plain", "cpu", "strict"),
                         [](const auto& param) { return param.param; });

struct Case {
  std::string method;
  OptionMap options;
};
std::vector<Case> Cases() {
  return {{"softmax", {{"causal", true}}},
          {"local", {{"window_left", int64_t{70}}, {"causal", true}}},
          {"local", {{"granularity", std::string("block")}, {"block", int64_t{16}}}},
          {"linear_attention", {{"causal", true}}},
          {"linear_attention", {{"feature_map", std::string("exp")}}}};
}

TEST_P(EngineTest, SixtyFourRaggedProblemsLaunchOnceAndEqualAlone) {
  for (const Case& c : Cases()) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      SCOPED_TRACE(c.method + std::string(Name(direction)));
      std::vector<std::unique_ptr<Request>> requests;
      std::vector<const Request*> all;
      for (int p = 0; p < 64; ++p) {
        // Sizes around a tile, grouped heads, lengths, no queries, no keys.
        const Sizes s{.B = 1 + p % 2,
                      .H = 2 << p % 2,
                      .Hkv = 1 << p % 2,
                      .Nq = p * 3 % 131,
                      .Nk = p * 7 % 97};
        requests.push_back(MakeRequest(c.method, c.options, s, direction, 100 + 10 * p));
        std::vector<int32_t> lengths(s.B, static_cast<int32_t>(s.Nk - p % 3 * s.Nk / 3));
        requests.back()->AddIntegers("kv_lengths", lengths);
        all.push_back(requests.back().get());
      }
      auto launches = [&, before = engine_->device().launches()]() mutable {
        return engine_->device().launches() - std::exchange(before, engine_->device().launches());
      };
      const auto together = Execute(all);
      ASSERT_TRUE(together.ok()) << together.status();
      const int64_t launches_together = launches();
      int64_t most_alone = 0;
      for (size_t p = 0; p < all.size(); ++p) {
        const auto alone = Execute({all[p]});
        ASSERT_TRUE(alone.ok()) << alone.status();
        most_alone = std::max(most_alone, launches());
        ASSERT_EQ(alone->results[0].size(), together->results[p].size());
        for (size_t i = 0; i < alone->results[0].size(); ++i) {
          const Result &a = alone->results[0][i], &b = together->results[p][i];
          ASSERT_EQ(a.info.name, b.info.name);
          ASSERT_EQ(std::memcmp(a.view.data, b.view.data, a.view.bytes()), 0)
              << a.info.name << " of problem " << p;
        }
      }
      // As many launches for 64 problems as for the one that needs most. Where the device declines
      // them, a composition launches the steps that any of the problems needs: they differ by their
      // shapes, but are far fewer than problems.
      if (Ops(*stream_, nullptr).Declines(ScanArgs())) {
        EXPECT_LE(launches_together, 2 * most_alone);
      } else {
        EXPECT_EQ(launches_together, most_alone);
        EXPECT_LE(launches_together, direction == Direction::kForward ? 2 : 5);
      }
    }
  }
}

// Q, K, V and the sums of the specification's golden table.
double GoldenSum(const std::vector<float>& x) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * std::cos(0.37 * i);
  return sum;
}

TEST_P(EngineTest, GoldenSumsOfTheSpecification) {
  struct Golden {
    Case what;
    double pairs;
    std::vector<double> sums;  // out, lse, dq, dk, dv
  };
  const OptionMap block = {{"granularity", std::string("block")},
                           {"block", int64_t{4}},
                           {"look_backward", int64_t{1}},
                           {"causal", true}};
  const std::vector<Golden> goldens = {
      {{"softmax", {}},
       512,
       {-0.1189919003, -4.8247869001, -0.3841097957, 0.5687755287, 0.0642983619}},
      {{"softmax", {{"causal", true}}},
       272,
       {4.2890626739, -15.0562522999, 0.9384382340, -1.5094260046, 1.8043583044}},
      {{"local", {{"window_left", int64_t{3}}, {"causal", true}}},
       116,
       {5.1525781413, -7.4843923619, 0.6846044227, -2.5951311722, 5.1083616890}},
      {{"local", {{"window_left", int64_t{2}}}},
       148,
       {2.4584478891, -5.2519736616, -1.7820082130, 0.1084702018, 3.5508025011}},
      {{"local", block},
       176,
       {3.4924542337, -11.7302017568, 0.0464069327, -2.0074410853, 1.0110024521}}};
  for (const Golden& golden : goldens) {
    std::vector<double> sums;
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const Sizes s{.B = 1, .H = 2, .Hkv = 1, .Nq = 16, .Nk = 16, .D = 4, .Dv = 3};
      auto request = MakeRequest(golden.what.method, golden.what.options, s, direction);
      const auto fill = [&](const char* name, const std::function<double(double)>& f) {
        std::vector<float>& data = request->floats[name];
        for (size_t i = 0; i < data.size(); ++i) {
          data[i] = static_cast<float>(f(static_cast<double>(i)));
        }
      };
      fill("q", [](double i) { return std::sin(0.7 * i + 0.1); });
      fill("k", [](double i) { return std::cos(0.9 * i + 0.2); });
      fill("v", [](double i) { return std::sin(0.5 * i + 0.3); });
      if (direction == Direction::kBackward) {
        fill("grad_out", [](double i) { return std::cos(0.3 * i); });
        request->call.tensors.erase("grad_lse");
      }
      EXPECT_EQ((*engine_->MakePlan(request->call))->visible_pairs, golden.pairs);
      const auto execution = Execute({request.get()});
      ASSERT_TRUE(execution.ok()) << execution.status();
      for (const Result& result : execution->results[0]) sums.push_back(GoldenSum(Values(result)));
    }
    ASSERT_EQ(sums.size(), golden.sums.size());
    for (size_t i = 0; i < sums.size(); ++i) EXPECT_NEAR(sums[i], golden.sums[i], 2e-5) << i;
  }
}

TEST_P(EngineTest, RowsBeyondTheLengthsAreZeroAndPaddingIsNeverRead) {
  for (const Case& c : Cases()) {
    auto request =
        MakeRequest(c.method, c.options, {.B = 1, .Nq = 70, .Nk = 70}, Direction::kBackward);
    request->AddIntegers("q_lengths", {66});
    request->AddIntegers("kv_lengths", {67});
    for (const char* name : {"q", "k", "v", "grad_out"}) {
      std::vector<float>& data = request->floats[name];
      const size_t heads = request->call.tensors[name].shape[1];
      const size_t width = request->call.tensors[name].shape[3];
      for (size_t h = 0; h < heads; ++h) {
        for (size_t e = 67 * width; e < 70 * width; ++e) data[h * 70 * width + e] = NAN;
      }
    }
    const auto backward = Execute({request.get()});
    ASSERT_TRUE(backward.ok()) << backward.status();
    for (const Result& result : backward->results[0]) {
      for (const float x : Values(result)) ASSERT_TRUE(std::isfinite(x)) << result.info.name;
    }
    request->call.direction = Direction::kForward;
    request->call.tensors.erase("grad_out");
    request->call.tensors.erase("grad_lse");
    const auto forward = Execute({request.get()});
    ASSERT_TRUE(forward.ok()) << forward.status();
    ASSERT_EQ(forward->results[0].size(), 2u);
    const std::vector<float> out = Values(forward->results[0][0]);
    const std::vector<float> lse = Values(forward->results[0][1]);
    ASSERT_EQ(out.size(), 3 * lse.size());
    for (size_t row = 0; row < lse.size(); ++row) {
      EXPECT_EQ(row % 70 >= 66, lse[row] == -std::numeric_limits<float>::infinity());
      if (row % 70 >= 66) {
        EXPECT_EQ(out[row * 3], 0);
      }
    }
  }
}

TEST_P(EngineTest, CausalOffsetMovesTheWindow) {
  // Given one query whose position is 4, not Nk - Nq = 6: a window of one key sees key 4.
  auto request =
      MakeRequest("local", {{"window_left", int64_t{0}}}, {.Nq = 1, .Nk = 7}, Direction::kForward);
  request->AddIntegers("causal_offset", {4});
  const auto execution = Execute({request.get()});
  ASSERT_TRUE(execution.ok()) << execution.status();
  ASSERT_FALSE(execution->results[0].empty());
  const std::vector<float> out = Values(execution->results[0][0]);
  ASSERT_EQ(out.size(), 2u * 3);
  for (int d = 0; d < 3; ++d) EXPECT_EQ(out[d], request->floats["v"][4 * 3 + d]);
}

TEST_P(EngineTest, BothLayoutsGiveTheSameNumbers) {
  auto a = MakeRequest("softmax", {}, {.H = 2, .Hkv = 2, .Nq = 3, .Nk = 3}, Direction::kForward);
  auto b = MakeRequest("softmax", {}, {.H = 2, .Hkv = 2, .Nq = 3, .Nk = 3}, Direction::kForward);
  for (const std::string name : {"q", "k", "v"}) {
    View& to = b->call.tensors[name];
    const View& from = a->call.tensors[name];
    to = DenseView(to.data, to.dtype, to.shape, Layout::kBNHD);
    for (int h = 0; h < 2; ++h) {
      for (int n = 0; n < 3; ++n) {
        for (int d = 0; d < to.shape[3]; ++d) {
          to.As<float>()[h * to.stride[1] + n * to.stride[2] + d] =
              from.As<float>()[h * from.stride[1] + n * from.stride[2] + d];
        }
      }
    }
  }
  const auto ra = Execute({a.get()}), rb = Execute({b.get()});
  ASSERT_TRUE(ra.ok() && rb.ok());
  ASSERT_TRUE(!ra->results[0].empty() && !rb->results[0].empty());
  const View &va = ra->results[0][0].view, &vb = rb->results[0][0].view;
  EXPECT_EQ(vb.layout, Layout::kBNHD);
  for (int h = 0; h < 2; ++h) {
    for (int n = 0; n < 3; ++n) {
      EXPECT_EQ(va.As<float>()[h * va.stride[1] + n * va.stride[2]],
                vb.As<float>()[h * vb.stride[1] + n * vb.stride[2]]);
    }
  }
}

TEST_P(EngineTest, PlansOwnWhatTheyNeed) {
  auto request = MakeRequest("softmax", {}, {.B = 2, .Nq = 3, .Nk = 8}, Direction::kForward);
  request->AddIntegers("kv_lengths", {8, 2});
  const auto plan = engine_->MakePlan(request->call);
  ASSERT_TRUE(plan.ok());
  request->integers["kv_lengths"][0] = 99;  // the plan has a copy
  EXPECT_EQ((*plan)->shape.Int("kv_lengths", 0, -1), 8);
  EXPECT_EQ((*plan)->visible_pairs, 2 * (3 * 8 + 3 * 2));
  EXPECT_EQ((*plan)->tokens, 6);
  EXPECT_EQ((*plan)->tensors.at("q").data, nullptr);
  EXPECT_EQ((*plan)->input_bytes, 4 * (2 * 2 * 3 * 4 + 2 * 8 * 4 + 2 * 8 * 3 + 2));
}

TEST_P(EngineTest, PlanningTouchesNoDataAndIsQuickAtAMillionTokens) {
  for (const Case& c : Cases()) {
    auto request = MakeRequest(c.method, c.options, {.Nq = 1, .Nk = 1}, Direction::kForward);
    for (auto& [name, view] : request->call.tensors) {
      view = DenseView(nullptr, DType::kF16, {1, view.shape[1], 1 << 20, view.shape[3]});
    }
    const auto plan = engine_->MakePlan(request->call);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_GT((*plan)->visible_pairs, 1e6);
    EXPECT_GT((*plan)->seconds, 0);
    EXPECT_GE((*plan)->workspace_bytes, (*plan)->output_bytes);
  }
}

TEST_P(EngineTest, BackwardNeedsOnlyOneOfTheGradients) {
  auto request = MakeRequest("softmax", {}, {}, Direction::kBackward);
  const auto both = *engine_->MakePlan(request->call);
  ASSERT_EQ(both->outputs.size(), 3u);
  EXPECT_EQ(both->outputs[1].name, "k");
  EXPECT_EQ(both->outputs[1].shape, (Shape{1, 1, 7, 4}));
  request->call.tensors.erase("grad_out");
  const auto only_lse = engine_->MakePlan(request->call);
  ASSERT_TRUE(only_lse.ok()) << only_lse.status();
  EXPECT_NE((*only_lse)->bucket, both->bucket);
  ASSERT_TRUE(Execute({request.get()}).ok());
}

TEST_P(EngineTest, BucketsSeparateWhatCannotRunTogether) {
  const auto bucket = [&](OptionMap options, const Sizes& s) {
    return (*engine_->MakePlan(
                MakeRequest("softmax", std::move(options), s, Direction::kForward)->call))
        ->bucket;
  };
  const std::string base = bucket({}, {});
  EXPECT_EQ(base, bucket({}, {.B = 3, .H = 4, .Hkv = 2, .Nq = 9, .Nk = 1}));
  EXPECT_NE(base, bucket({}, {.D = 5}));
  EXPECT_NE(base, bucket({}, {.Dv = 5}));
  EXPECT_NE(base, bucket({{"causal", true}}, {}));
  EXPECT_EQ(base, bucket({{"causal", false}, {"duplicates", std::string("set")}}, {}));
  EXPECT_NE(bucket({{"scale", 0.1}}, {}), bucket({{"scale", std::nextafter(0.1, 1)}}, {}));
  auto a = MakeRequest("softmax", {}, {}, Direction::kForward);
  auto b = MakeRequest("softmax", {{"causal", true}}, {}, Direction::kForward);
  EXPECT_EQ(Execute({a.get(), b.get()}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(EngineTest, NoMemoryIsAnError) {
  Call call;
  call.method = "softmax";
  call.tensors["q"] = DenseView(nullptr, DType::kF32, {1, 1, 1 << 26, 1});
  call.tensors["k"] = DenseView(nullptr, DType::kF32, {1, 1, 0, 1});
  call.tensors["v"] = DenseView(nullptr, DType::kF32, {1, 1, 0, 4096});
  const auto plan = engine_->MakePlan(call);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<Problem> batch = {{*plan, call.tensors}};
  EXPECT_EQ(engine_->Execute(*stream_, batch).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace attnd::testing
