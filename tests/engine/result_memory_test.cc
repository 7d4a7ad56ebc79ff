// Symptom: a reply was sent from the memory of a request that had gone.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/device/test_device.h"
#include "tests/engine/cpu_engine.h"
#include "tests/engine/placed.h"

namespace attnd::testing {
namespace {

class ResultMemory : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Backends, ResultMemory, ::testing::Values("plain", "cpu", "strict"),
                         [](const auto& param) { return param.param; });

TEST_P(ResultMemory, AGradientThatIsTheIncomingOneHasMemoryOfItsOwn) {
  std::vector<float> v = {1, 2, 4}, b2 = {0, 0, 0}, grad_out = {3, 5, 7};
  Call call;
  call.method = "mlp_mixer";
  call.direction = Direction::kBackward;
  call.tensors = {{"v", DenseView(v.data(), DType::kF32, {1, 1, 3, 1})},
                  {"b2", DenseView(b2.data(), DType::kF32, {3})},
                  {"grad_out", DenseView(grad_out.data(), DType::kF32, {1, 1, 3, 1})}};
  const auto engine = EngineOn(NewTestDevice(GetParam()));
  const auto plan = engine->MakePlan(call);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GE((*plan)->host_bytes, RoundedBytes(12));  // the copy
  const auto execution = PlanAndExecute(*engine, call);
  ASSERT_TRUE(execution.ok()) << execution.status();
  for (const Result& result : execution->results[0]) {
    ASSERT_NE(result.buffer, nullptr) << result.info.name;
    EXPECT_NE(result.view.data, grad_out.data());
    if (result.info.name != "b2") continue;
    const float* of_b2 = result.view.As<float>();
    EXPECT_EQ(std::vector<float>(of_b2, of_b2 + 3), grad_out);
  }
}

}  // namespace
}  // namespace attnd::testing
