// Calls without data, and helpers that plan them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kernels/engine/engine.h"
#include "tests/engine/cpu_engine.h"

namespace attnd::testing {

struct PlanSizes {
  int64_t B = 1, H = 1, Hkv = 1, Nq = 0, Nk = 0, D = 1;
};

inline Call MakeCall(const std::string& method, const PlanSizes& s, Direction direction) {
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

}  // namespace attnd::testing
