// Runs that are stopped in the middle, and the processor time until they return.
#include <gtest/gtest.h>

#include <time.h>

#include <chrono>
#include <thread>

#include "kernels/core/run_control.h"
#include "tests/engine/every_method.h"

namespace attnd::testing {
namespace {

using namespace std::chrono_literals;

double ProcessSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Symptom: a request of minutes used its processors to the end after its client had left.
TEST(CancelTime, ACancelledRunReturnsSoonAndFreesAll) {
  const std::unique_ptr<Engine> engine = NewEngine();
  constexpr int64_t N = 1 << 16;
  const std::vector<MethodCase> cases = {{"softmax", {}},
                                         {"local", {{"window_left", int64_t{N / 8}}}},
                                         {"random", {{"num_random", int64_t{256}}}}};
  for (const MethodCase& c : cases) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      SCOPED_TRACE(c.method);
      const auto request = MakeRequest(c, direction, N, /*H=*/1);
      RunControl control;
      double cancelled_at = 0;
      const double begin = ProcessSeconds();
      std::thread client([&] {
        while (ProcessSeconds() < begin + 0.15) std::this_thread::sleep_for(1ms);
        control.Cancel();
        // After it: this thread may wait for a processor while those of the run go on.
        cancelled_at = ProcessSeconds();
      });
      const auto execution = Execute(*engine, *request, &control);
      const double returned_at = ProcessSeconds();
      client.join();
      EXPECT_EQ(execution.status(), absl::CancelledError("request: stopped"));
      // Processor time: waiting for other programs does not count. The whole run takes seconds, its
      // end some milliseconds.
      EXPECT_LT(returned_at - cancelled_at, 0.5);
      EXPECT_EQ(engine->device().memory().stats().used_bytes, 0);
    }
  }
}

TEST(CancelTime, ARunEndsAtItsDeadline) {
  const std::unique_ptr<Engine> engine = NewEngine();
  const auto request = MakeRequest({"softmax", {}}, Direction::kForward, 1 << 16, /*H=*/1);
  RunControl control;
  control.StopAt(RunControl::Clock::now() + 50ms);
  const double begin = ProcessSeconds();
  const auto execution = Execute(*engine, *request, &control);
  EXPECT_EQ(execution.status(), absl::CancelledError("request: stopped"));
  EXPECT_LT(ProcessSeconds() - begin, 1);
  EXPECT_EQ(engine->device().memory().stats().used_bytes, 0);
}

}  // namespace
}  // namespace attnd::testing
