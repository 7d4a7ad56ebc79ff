// Runs that are stopped, and small runs beside a large one, through the engine, two threads:
//
//   runs_bench cancel     milliseconds from Cancel to the return of Execute, a line a method
//   runs_bench beside     latency of N 128 forwards, alone and beside a softmax of a million
//   tokens,
//                         and the share of the processors that the large one keeps
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "kernels/core/run_control.h"
#include "kernels/engine/engine.h"
#include "tests/engine/cpu_engine.h"

namespace attnd {
namespace {

using Clock = std::chrono::steady_clock;
using Ints = std::vector<int64_t>;

constexpr int kThreads = 2;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Request {
  Call call;
  std::map<std::string, std::vector<float>> data;

  Request(const std::string& method, const OptionMap& options, Direction direction,
          const Shape& shape) {
    call = {.method = method, .options = options, .direction = direction, .tensors = {}};
    std::minstd_rand random(1);
    for (const char* name : {"q", "k", "v", "grad_out"}) {
      if (direction == Direction::kForward && std::strcmp(name, "grad_out") == 0) continue;
      std::vector<float>& values = data[name];
      values.resize(static_cast<size_t>(shape.size()));
      for (float& x : values) x = static_cast<float>(random()) / 2e9f - 0.5f;
      call.tensors[name] = DenseView(values.data(), DType::kF32, shape);
    }
  }
};

absl::Status Run(Engine& engine, const Request& request, RunControl* control) {
  auto plan = engine.MakePlan(request.call);
  if (!plan.ok()) return plan.status();
  Stream stream(engine.device(), &engine.device().memory(), control);
  const Problem problem{*plan, request.call.tensors};
  return engine.Execute(stream, {&problem, 1}).status();
}

void Cancel(Engine& engine) {
  struct Case {
    const char* method;
    OptionMap options;
    int64_t N, H;
  };
  const std::vector<Case> cases = {
      {"softmax", {}, 65536, 8},
      {"softmax", {{"causal", true}}, 1 << 20, 1},
      {"linear_attention", {{"causal", true}}, 65536, 8},
      {"linear_attention", {{"causal", true}}, 1 << 20, 1},
      {"longformer", {}, 65536, 8},
      {"longformer", {}, 1 << 20, 1},
      {"bigbird", {}, 65536, 8},
      {"bigbird", {}, 1 << 20, 1},
      {"random", {{"num_random", int64_t{32}}}, 65536, 8},
      {"random", {{"num_random", int64_t{16}}}, 1 << 20, 1},
      {"sparse_fixed", {}, 65536, 8},
      {"sparse_strided", {}, 65536, 8},
      {"etc", {{"num_global", int64_t{64}}}, 65536, 8},
      {"image_local_2d", {{"grid", Ints{256, 256}}}, 65536, 8},
      {"axial", {{"grid", Ints{256, 256}}, {"axis", int64_t{0}}}, 65536, 8},
      {"blockwise", {{"num_blocks", int64_t{8}}}, 65536, 8}};
  std::printf("%-17s %-9s %8s %3s %9s %9s %9s\n", "method", "", "N", "H", "run s", "median ms",
              "max ms");
  std::mt19937 random(1);
  for (const Case& c : cases) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const Request request(c.method, c.options, direction, {1, c.H, c.N, 64});
      const auto plan = engine.MakePlan(request.call);
      if (!plan.ok()) {
        std::printf("%s: %s\n", c.method, std::string(plan.status().message()).c_str());
        continue;
      }
      const double most = std::min((*plan)->seconds * 0.8, 0.5);
      std::vector<double> took;
      for (int round = 0; round < 9; ++round) {
        RunControl control;
        Clock::time_point at;
        const double delay = std::uniform_real_distribution<double>(0.002, most)(random);
        std::thread client([&] {
          std::this_thread::sleep_for(std::chrono::duration<double>(delay));
          at = Clock::now();
          control.Cancel();
        });
        const absl::Status status = Run(engine, request, &control);
        const auto returned = Clock::now();
        client.join();
        if (!status.ok())
          took.push_back(1e3 * std::chrono::duration<double>(returned - at).count());
      }
      std::sort(took.begin(), took.end());
      if (took.empty()) took = {-1};
      std::printf("%-17s %-9s %8ld %3ld %9.2f %9.1f %9.1f\n", c.method,
                  direction == Direction::kForward ? "forward" : "backward", static_cast<long>(c.N),
                  static_cast<long>(c.H), (*plan)->seconds, took[took.size() / 2], took.back());
      std::fflush(stdout);
    }
  }
}

void Small(Engine& engine, const char* name) {
  const Request request("softmax", {}, Direction::kForward, {1, 8, 128, 64});
  const auto plan = engine.MakePlan(request.call);
  const Problem problem{*plan, request.call.tensors};
  std::vector<double> took;
  for (int i = 0; i < 1000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    const auto begin = Clock::now();
    RunControl control(0, (*plan)->seconds);
    Stream stream(engine.device(), &engine.device().memory(), &control);
    if (!engine.Execute(stream, {&problem, 1}).ok()) std::abort();
    took.push_back(1e3 * SecondsSince(begin));
  }
  std::sort(took.begin(), took.end());
  std::printf("%-8s p50 %.3f ms, p99 %.3f ms, max %.3f ms\n", name, took[500], took[989],
              took[999]);
}

void Beside(Engine& engine) {
  Small(engine, "alone");
  RunControl control(0, 600);
  std::thread large([&] {
    const Request request("softmax", {}, Direction::kForward, {1, 1, 1 << 20, 64});
    std::ignore = Run(engine, request, &control);
  });
  while (control.spent_seconds() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto share = [&](const auto& work) {
    const double spent = control.spent_seconds();
    const auto begin = Clock::now();
    work();
    return (control.spent_seconds() - spent) / SecondsSince(begin) / kThreads;
  };
  const double alone = share([] { std::this_thread::sleep_for(std::chrono::seconds(4)); });
  const double beside = share([&] { Small(engine, "beside"); });
  std::printf("large: %.3f of the threads alone, %.3f beside\n", alone, beside);
  control.Cancel();
  large.join();
}

int Main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  const auto engine = CpuEngine({.threads = kThreads});
  if (what != "cancel" && what != "beside") {
    std::fprintf(stderr, "usage: runs_bench cancel|beside\n");
    return 2;
  }
  what == "cancel" ? Cancel(*engine) : Beside(*engine);
  return 0;
}

}  // namespace
}  // namespace attnd

int main(int argc, char** argv) { return attnd::Main(argc, argv); }
