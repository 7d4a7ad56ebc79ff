// Planning at the limits of sizes: no memory for problems without elements.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/engine/cpu_engine.h"

namespace attnd::testing {
namespace {

struct PlanSizes {
  int64_t B = 1, H = 1, Hkv = 1, Nq = 0, Nk = 0, D = 1;
};

Call MakeCall(const std::string& method, const PlanSizes& s, Direction direction) {
  Call call;
  call.method = method;
  call.direction = direction;
  if (method == "local") call.options["window_left"] = int64_t{2};
  const auto set = [&](const char* name, const Shape& shape) {
    call.tensors[name] = DenseView(nullptr, DType::kF32, shape);
  };
  set("q", {s.B, s.H, s.Nq, s.D});
  set("k", {s.B, s.Hkv, s.Nk, s.D});
  set("v", {s.B, s.Hkv, s.Nk, s.D});
  if (direction == Direction::kBackward) set("grad_out", {s.B, s.H, s.Nq, s.D});
  return call;
}

class PlanLimits : public ::testing::Test {
 protected:
  static Engine& engine() {
    static Engine* engine = CpuEngine({.threads = 2}).release();
    return *engine;
  }
  static std::shared_ptr<const Plan> MakePlan(const Call& call) {
    const auto plan = engine().MakePlan(call);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *plan : nullptr;
  }

  template <class F>
  static void ForEachKind(const F& f) {
    for (const char* method : {"softmax", "local", "linear_attention"}) {
      for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
        SCOPED_TRACE(std::string(method) + " " + std::string(Name(direction)));
        f(method, direction);
      }
    }
  }
};

TEST_F(PlanLimits, ProblemsWithoutElementsTakeNothing) {
  const auto empty = [](const char* method, const PlanSizes& s, Direction direction) {
    const auto plan = MakePlan(MakeCall(method, s, direction));
    ASSERT_NE(plan, nullptr);
    // Only a few empty buffers remain.
    EXPECT_LE(plan->workspace_bytes, 1024);
    EXPECT_EQ(plan->seconds, 0);
    EXPECT_EQ(plan->visible_pairs, 0);
    EXPECT_EQ(plan->flops, 0);
  };
  ForEachKind([&](const char* method, Direction direction) {
    empty(method, {.B = 1 << 10, .H = 1 << 10, .Hkv = 1 << 10, .D = 4096}, direction);
    if (direction == Direction::kForward) {
      empty(method, {.B = 4, .H = 4, .Hkv = 2, .Nq = 0, .Nk = 1 << 20, .D = 64}, direction);
    }
  });
}

// A backward of no queries still has to write the zeros of dk and dv, one of no keys those of dq.
TEST_F(PlanLimits, ZerosThatMustBeWrittenArePlanned) {
  for (const char* method : {"softmax", "local", "linear_attention"}) {
    for (const PlanSizes& s :
         {PlanSizes{.Nq = 0, .Nk = 100, .D = 8}, PlanSizes{.Nq = 100, .Nk = 0, .D = 8}}) {
      const auto plan = MakePlan(MakeCall(method, s, Direction::kBackward));
      ASSERT_NE(plan, nullptr);
      EXPECT_GE(plan->workspace_bytes, 100 * 8 * 4);
      EXPECT_GT(plan->seconds, 0);
    }
  }
}

// Heads count, and heads of each sequence of a batch.
TEST_F(PlanLimits, PairsOfAllHeadsAreCounted) {
  ForEachKind([](const char* method, Direction direction) {
    for (const int64_t B : {1 << 4, 1 << 16}) {
      const int64_t H = (1 << 20) / B;
      const auto plan =
          MakePlan(MakeCall(method, {.B = B, .H = H, .Hkv = H, .Nq = 1, .Nk = 1}, direction));
      ASSERT_NE(plan, nullptr);
      EXPECT_EQ(plan->visible_pairs, 1 << 20);
    }
  });
}

// The kv heads of a sequence do the same work: twice the heads, twice the FLOPs and the pairs.
TEST_F(PlanLimits, WorkGrowsWithHeads) {
  ForEachKind([](const char* method, Direction direction) {
    const PlanSizes s = {.B = 3, .H = 4, .Hkv = 2, .Nq = 700, .Nk = 700, .D = 32};
    PlanSizes twice = s;
    twice.H = 8;
    twice.Hkv = 4;
    const auto one = MakePlan(MakeCall(method, s, direction));
    const auto two = MakePlan(MakeCall(method, twice, direction));
    ASSERT_TRUE(one != nullptr && two != nullptr);
    EXPECT_DOUBLE_EQ(two->flops, 2 * one->flops);
    EXPECT_DOUBLE_EQ(two->visible_pairs, 2 * one->visible_pairs);
    EXPECT_GT(two->seconds, 1.5 * one->seconds);
    EXPECT_LT(two->seconds, 2.5 * one->seconds);
  });
}

// Symptom: requests of 144 KB that need 0.5 GB were predicted to take 10 ms and took a second: four
// of them occupied all lanes.
TEST_F(PlanLimits, NewMemoryIsPredictedToTakeTime) {
  const auto seconds_of = [](int64_t N, int64_t* bytes) {
    Call call{.method = "softmax"};
    call.tensors["q"] = DenseView(nullptr, DType::kF32, {1, 1, N, 1});
    call.tensors["k"] = DenseView(nullptr, DType::kF32, {1, 1, 1, 1});
    call.tensors["v"] = DenseView(nullptr, DType::kF32, {1, 1, 1, 4096});
    const auto plan = MakePlan(call);
    *bytes = plan->workspace_bytes;
    return plan->seconds;
  };
  const int64_t kept = int64_t{512} << 20;
  const double rate = engine().device().info().new_bytes_per_second;
  int64_t few = 0, many = 0;
  const double little = seconds_of(1000, &few), much = seconds_of(128000, &many);
  EXPECT_LT(few, kept);
  EXPECT_GE(much, static_cast<double>(many - kept) / rate);
  EXPECT_LT(little, static_cast<double>(few) / rate);
}

TEST_F(PlanLimits, AStoppedPlanIsCancelled) {
  // Symptom: a plan of many packed sequences could not be stopped.
  const Call call = MakeCall("softmax", {.Nq = 7, .Nk = 7}, Direction::kBackward);
  RunControl control;
  EXPECT_TRUE(engine().MakePlan(call, &control).ok());
  control.Cancel();
  EXPECT_EQ(engine().MakePlan(call, &control).status(), absl::CancelledError("request: stopped"));
}

TEST_F(PlanLimits, WorkOfAPlanFollowsTheListsThatItReads) {
  Call call = MakeCall("softmax", {.Nq = 7, .Nk = 7}, Direction::kForward);
  const int64_t plain = PlanWork(call);
  EXPECT_LE(plain, kSmallPlanWork);
  // Planning costs time for lists, not for sizes.
  call.tensors["q"] = DenseView(nullptr, DType::kF32, {1 << 16, 16, 1 << 20, 64});
  call.tensors["kv_lengths"] = DenseView(nullptr, DType::kI32, {1 << 16});
  EXPECT_EQ(PlanWork(call), plain);
  call.options["dilation"] = std::vector<int64_t>(65536, 1);
  EXPECT_GE(PlanWork(call), plain + 65536 / 8);
  call.options.clear();
  std::vector<int32_t> ends(1025);
  call.tensors["cu_seqlens_q"] = DenseView(ends.data(), DType::kI32, {1025});
  EXPECT_GE(PlanWork(call), plain + 1025);
  EXPECT_GT(PlanWork(call), kSmallPlanWork);
}

}  // namespace
}  // namespace attnd::testing
