// Two devices of one engine share its cache of patterns. Where their costs favour different forms
// of a pattern, each gets its form, and both give the same numbers.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/device/renamed_device.h"
#include "tests/engine/every_method.h"

namespace attnd::testing {
namespace {

constexpr int64_t kN = 256;

struct TuningCase {
  MethodCase method;
  PatternTuning other;  // decides differently from the default
};

Execution RunOnDevice(Engine& engine, size_t device, Call call) {
  call.device = engine.device(device).info().name;
  const auto plan = engine.MakePlan(call);
  EXPECT_TRUE(plan.ok()) << plan.status();
  Stream stream(engine.device(device), &engine.device(device).memory());
  const Problem problem{*plan, call.tensors};
  absl::StatusOr<Execution> execution = engine.Execute(stream, {&problem, 1});
  EXPECT_TRUE(execution.ok()) << execution.status();
  return *std::move(execution);
}

TEST(DeviceTuning, DevicesOfOneEngineGetTheirOwnFormOfAPattern) {
  const TuningCase cases[] = {
      {{"random", {{"num_random", int64_t{8}}}}, {.pairs_a_listed = 32}},
      {{"longformer", {{"window", int64_t{9}}}}, {.most_idle_keys = 64}},
      {{"blockwise", {{"num_blocks", int64_t{4}}}}, {.least_natural_block = 65}}};
  for (const TuningCase& c : cases) {
    SCOPED_TRACE(c.method.method);
    const CpuOptions cpu{.threads = 2};
    std::vector<std::unique_ptr<Device>> devices;
    devices.push_back(*NewCpuDevice(cpu));
    devices.push_back(std::make_unique<RenamedDevice>("same:0", *NewCpuDevice(cpu)));
    devices.push_back(std::make_unique<RenamedDevice>("other:0", *NewCpuDevice(cpu), c.other));
    Engine engine(std::move(devices));
    const auto request = MakeRequest(c.method, Direction::kForward, kN);
    std::vector<uint8_t> globals(kN);
    globals[3] = 1;
    if (c.method.method == "longformer") {
      request->call.tensors["global_mask"] = DenseView(globals.data(), DType::kU8, {kN});
    }
    const Execution first = RunOnDevice(engine, 0, request->call);
    const int64_t bytes = engine.cached_pattern_bytes();
    RunOnDevice(engine, 1, request->call);
    EXPECT_EQ(engine.cached_pattern_bytes(), bytes);
    const Execution other = RunOnDevice(engine, 2, request->call);
    EXPECT_GT(engine.cached_pattern_bytes(), bytes);
    EXPECT_EQ(first.costs[0].visible_pairs, other.costs[0].visible_pairs);
    const View &a = first.results[0][0].view, &b = other.results[0][0].view;
    for (int64_t e = 0; e < a.shape.size(); ++e) {
      ASSERT_NEAR(a.As<float>()[e], b.As<float>()[e], 1e-5) << e;
    }
  }
}

TEST(DeviceTuning, APlanCountsTheGlobalsThatTheDeviceAssumes) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(*NewCpuDevice({.threads = 1}));
  devices.push_back(std::make_unique<RenamedDevice>("other:0", *NewCpuDevice({.threads = 1}),
                                                    PatternTuning{.planned_globals = 8}));
  Engine engine(std::move(devices));
  for (const bool has_own : {false, true}) {
    SCOPED_TRACE(has_own ? "global rows have queries of their own" : "one call of attend");
    const auto request =
        MakeRequest({"longformer", {{"window", int64_t{9}}}}, Direction::kForward, kN);
    if (has_own) request->Add("q_global", request->call.tensors["q"].shape);
    std::vector<uint8_t> globals(kN);
    request->call.tensors["global_mask"] = DenseView(globals.data(), DType::kU8, {kN});
    const auto pairs = [&](size_t device) {
      Call call = request->call;
      call.device = engine.device(device).info().name;
      return (*engine.MakePlan(call))->visible_pairs;
    };
    // 2 heads: every row sees the globals, and they see every row.
    EXPECT_EQ(pairs(0) - pairs(1), 2 * 2 * (64 - 8) * kN);
  }
}

}  // namespace
}  // namespace attnd::testing
