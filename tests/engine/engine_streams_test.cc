// Several streams at once on one engine, and runs that are stopped in the middle.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/core/run_control.h"
#include "tests/device/test_device.h"
#include "tests/engine/every_method.h"
#include "tests/engine/placed.h"

namespace attnd::testing {
namespace {

using namespace std::chrono_literals;

constexpr Direction kDirections[] = {Direction::kForward, Direction::kBackward};

class EngineStreams : public ::testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Engine> NewEngine() { return EngineOn(NewTestDevice(GetParam())); }
};
INSTANTIATE_TEST_SUITE_P(Devices, EngineStreams, ::testing::Values("cpu", "strict"),
                         [](const auto& param) { return param.param; });

TEST_P(EngineStreams, AnEmptyBatchHasNoResults) {
  const std::unique_ptr<Engine> engine = NewEngine();
  Stream stream(engine->device(), &engine->device().memory());
  const auto execution = engine->Execute(stream, {});
  ASSERT_TRUE(execution.ok()) << execution.status();
  EXPECT_TRUE(execution->results.empty());
  EXPECT_TRUE(execution->costs.empty());
}

// No bit depends on which thread computes an item, or on what else runs at the time.
TEST_P(EngineStreams, RunsBesideOthersGiveTheSameBitsAsAlone) {
  const std::unique_ptr<Engine> engine = NewEngine();
  for (const Direction direction : kDirections) {
    std::vector<std::unique_ptr<Request>> requests;
    std::vector<Execution> alone;
    for (const MethodCase& c : EveryMethod(256)) {
      requests.push_back(MakeRequest(c, direction, 256));
      auto execution = PlanAndExecute(*engine, requests.back()->call);
      ASSERT_TRUE(execution.ok()) << c.method << ": " << execution.status();
      alone.push_back(*std::move(execution));
    }
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < 3; ++lane) {
      lanes.emplace_back([&, lane] {
        for (size_t i = 0; i < requests.size(); ++i) {
          const size_t n = (i + 5 * lane) % requests.size();
          RunControl control(/*priority=*/static_cast<int>(n % 2), 1.0 + lane);
          auto beside = PlanAndExecute(*engine, requests[n]->call, &control);
          ASSERT_TRUE(beside.ok()) << beside.status();
          SCOPED_TRACE(requests[n]->call.method);
          ExpectSameBits(*beside, alone[n]);
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
  }
  EXPECT_EQ(engine->device().memory().stats().used_bytes, 0);
}

// A part of a pattern, or a copy that the device has not filled, must not serve the next run.
TEST_P(EngineStreams, AStoppedRunLeavesNoPartOfAPattern) {
  const std::unique_ptr<Engine> fresh = NewEngine(), engine = NewEngine();
  for (const MethodCase& c : EveryMethod(1024)) {
    SCOPED_TRACE(c.method);
    const auto request = MakeRequest(c, Direction::kForward, 1024, /*H=*/1);
    const auto want = PlanAndExecute(*fresh, request->call);
    ASSERT_TRUE(want.ok()) << want.status();
    // Stops the run at later and later points.
    for (const auto end : {0us, 10us, 30us, 100us, 300us, 1000us}) {
      RunControl control;
      control.StopAt(RunControl::Clock::now() + end);
      const auto stopped = PlanAndExecute(*engine, request->call, &control);
      EXPECT_TRUE(stopped.ok() || absl::IsCancelled(stopped.status())) << stopped.status();
    }
    const auto got = PlanAndExecute(*engine, request->call);
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSameBits(*got, *want);
  }
}

}  // namespace
}  // namespace attnd::testing
