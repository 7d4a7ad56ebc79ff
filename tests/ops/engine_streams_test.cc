// Several streams at once on one engine, and runs that are stopped in the middle.
#include <gtest/gtest.h>

#include <time.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "kernels/core/run_control.h"
#include "kernels/engine.h"
#include "kernels/registry.h"

namespace attnd::testing {
namespace {

using namespace std::chrono_literals;

// A call of N queries and keys, with data of its own.
struct Request {
  Call call;
  std::map<std::string, std::vector<float>> floats;
  std::vector<uint8_t> layout;

  void Add(const std::string& name, const Shape& shape) {
    std::vector<float>& data = floats[name];
    std::minstd_rand random(static_cast<unsigned>(floats.size()));
    data.resize(static_cast<size_t>(shape.size()));
    for (float& x : data) x = static_cast<float>(random()) / 2e9f - 0.5f;
    call.tensors[name] = DenseView(data.data(), DType::kF32, shape);
  }
};

struct MethodCase {
  std::string method;
  OptionMap options;
};

using Ints = std::vector<int64_t>;

// One of every method. N is a power of four.
std::vector<MethodCase> EveryMethod(int64_t N) {
  int64_t side = 1;
  while (side * side < N) side *= 2;
  return {
      {"softmax", {{"causal", true}}},
      {"local", {{"window_left", int64_t{70}}, {"causal", true}}},
      {"relu_attention", {}},
      {"linear_attention", {{"causal", true}}},
      {"axial", {{"grid", Ints{side, side}}, {"axis", int64_t{0}}}},
      {"bigbird", {}},
      {"block_sparse", {}},
      {"blockwise", {{"num_blocks", int64_t{4}}}},
      {"etc", {{"num_global", int64_t{8}}}},
      {"image_local_1d", {}},
      {"image_local_2d",
       {{"grid", Ints{side, side}}, {"query_shape", Ints{8, 8}}, {"memory_flange", Ints{4, 4}}}},
      {"longformer", {}},
      {"random", {{"num_random", int64_t{8}}}},
      {"sparse_fixed", {}},
      {"sparse_strided", {}}};
}

std::unique_ptr<Request> MakeRequest(const MethodCase& c, Direction direction, int64_t N,
                                     int64_t H = 2) {
  auto request = std::make_unique<Request>();
  request->call.method = c.method;
  request->call.options = c.options;
  request->call.direction = direction;
  const Shape shape = {1, H, N, 64};
  for (const char* name : {"q", "k", "v"}) request->Add(name, shape);
  if (direction == Direction::kBackward) request->Add("grad_out", shape);
  if (c.method == "block_sparse") {
    const int64_t blocks = (N + 63) / 64;
    request->layout.resize(static_cast<size_t>(blocks * blocks));
    for (size_t i = 0; i < request->layout.size(); ++i) request->layout[i] = i % 3 == 0;
    request->call.tensors["layout"] =
        DenseView(request->layout.data(), DType::kU8, {1, blocks, blocks});
  }
  return request;
}

std::unique_ptr<Engine> NewEngine() {
  auto engine = Engine::Create({.cpu = {.threads = 2}, .poison_memory = true, .retain_bytes = 0});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// Planned and run on a stream of its own.
absl::StatusOr<Execution> Execute(Engine& engine, const Request& request, RunControl* control) {
  auto plan = engine.MakePlan(request.call);
  if (!plan.ok()) return plan.status();
  Stream stream(engine.backend(), &engine.pool(), control);
  const Problem problem{*plan, request.call.tensors};
  return engine.Execute(stream, {&problem, 1});
}

void ExpectSameBits(const Execution& a, const Execution& b) {
  ASSERT_EQ(a.results[0].size(), b.results[0].size());
  for (size_t i = 0; i < a.results[0].size(); ++i) {
    const Result &x = a.results[0][i], &y = b.results[0][i];
    ASSERT_EQ(x.view.bytes(), y.view.bytes());
    EXPECT_EQ(std::memcmp(x.view.data, y.view.data, x.view.bytes()), 0) << x.info.name;
  }
}

constexpr Direction kDirections[] = {Direction::kForward, Direction::kBackward};

TEST(EngineStreams, EveryMethodIsTried) {
  std::set<std::string> tried;
  for (const MethodCase& c : EveryMethod(256)) tried.insert(c.method);
  for (const auto& method : AllMethods()) EXPECT_TRUE(tried.contains(method->info().id));
}

// Who computes an item, and on top of what, changes no bit.
TEST(EngineStreams, RunsBesideOthersGiveTheSameBitsAsAlone) {
  const std::unique_ptr<Engine> engine = NewEngine();
  for (const Direction direction : kDirections) {
    std::vector<std::unique_ptr<Request>> requests;
    std::vector<Execution> alone;
    for (const MethodCase& c : EveryMethod(256)) {
      requests.push_back(MakeRequest(c, direction, 256));
      auto execution = Execute(*engine, *requests.back(), nullptr);
      ASSERT_TRUE(execution.ok()) << c.method << ": " << execution.status();
      alone.push_back(*std::move(execution));
    }
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < 3; ++lane) {
      lanes.emplace_back([&, lane] {
        for (size_t i = 0; i < requests.size(); ++i) {
          const size_t n = (i + 5 * lane) % requests.size();
          RunControl control(/*priority=*/static_cast<int>(n % 2), 1.0 + lane);
          auto beside = Execute(*engine, *requests[n], &control);
          ASSERT_TRUE(beside.ok()) << beside.status();
          SCOPED_TRACE(requests[n]->call.method);
          ExpectSameBits(*beside, alone[n]);
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
  }
  EXPECT_EQ(engine->pool().stats().used_bytes, 0);
}

double ProcessSeconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A request of minutes held its processors until it was done, whoever had gone.
TEST(EngineStreams, ACancelledRunReturnsSoonAndFreesAll) {
  const std::unique_ptr<Engine> engine = NewEngine();
  constexpr int64_t N = 1 << 16;
  const std::vector<MethodCase> cases = {{"softmax", {}},
                                         {"local", {{"window_left", int64_t{N / 8}}}},
                                         {"random", {{"num_random", int64_t{256}}}}};
  for (const MethodCase& c : cases) {
    for (const Direction direction : kDirections) {
      SCOPED_TRACE(c.method);
      const auto request = MakeRequest(c, direction, N, /*H=*/1);
      RunControl control;
      double cancelled_at = 0;
      const double begin = ProcessSeconds();
      std::thread client([&] {
        while (ProcessSeconds() < begin + 0.15) std::this_thread::sleep_for(1ms);
        cancelled_at = ProcessSeconds();
        control.Cancel();
      });
      const auto execution = Execute(*engine, *request, &control);
      const double returned_at = ProcessSeconds();
      client.join();
      EXPECT_EQ(execution.status(), absl::CancelledError("request: stopped"));
      // All of it is seconds; a slow machine leaves room for ten times of what is promised.
      EXPECT_LT(returned_at - cancelled_at, 0.5);
      EXPECT_EQ(engine->pool().stats().used_bytes, 0);
    }
  }
}

TEST(EngineStreams, ARunEndsAtItsDeadline) {
  const std::unique_ptr<Engine> engine = NewEngine();
  const auto request = MakeRequest({"softmax", {}}, Direction::kForward, 1 << 16, /*H=*/1);
  RunControl control;
  control.StopAt(RunControl::Clock::now() + 50ms);
  const double begin = ProcessSeconds();
  const auto execution = Execute(*engine, *request, &control);
  EXPECT_EQ(execution.status(), absl::CancelledError("request: stopped"));
  EXPECT_LT(ProcessSeconds() - begin, 1);
  EXPECT_EQ(engine->pool().stats().used_bytes, 0);
}

// What a stopped run has built of a pattern must not be found by the next.
TEST(EngineStreams, AStoppedRunLeavesNoPartOfAPattern) {
  const std::unique_ptr<Engine> fresh = NewEngine(), engine = NewEngine();
  for (const MethodCase& c : EveryMethod(4096)) {
    SCOPED_TRACE(c.method);
    const auto request = MakeRequest(c, Direction::kForward, 4096, /*H=*/1);
    const auto want = Execute(*fresh, *request, nullptr);
    ASSERT_TRUE(want.ok()) << want.status();
    // Ends at ever later places of the run.
    for (const auto end : {0us, 50us, 200us, 800us}) {
      RunControl control;
      control.StopAt(RunControl::Clock::now() + end);
      const auto stopped = Execute(*engine, *request, &control);
      EXPECT_TRUE(stopped.ok() || absl::IsCancelled(stopped.status())) << stopped.status();
    }
    const auto got = Execute(*engine, *request, nullptr);
    ASSERT_TRUE(got.ok()) << got.status();
    ExpectSameBits(*got, *want);
  }
}

}  // namespace
}  // namespace attnd::testing
