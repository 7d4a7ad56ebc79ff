// A lane on the real engine; the test runs its batches.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "server/lane.h"
#include "tests/engine/cpu_engine.h"
#include "tests/server/puppet_method.h"
#include "tests/server/task_fixture.h"

namespace attnd {

struct Answer {
  int count = 0;
  absl::Status status;
  std::vector<Result> results;
  Phases phases;
  int64_t input_bytes_left = 0;  // of the lane at the answer
};

// The bytes of a request's tensors, each received at an odd address.
struct TensorBytes {
  std::map<std::string, std::vector<std::byte>> bytes;

  void Add(const std::string& name, const std::vector<float>& values) {
    std::vector<std::byte>& to = bytes[name];
    to.resize(values.size() * sizeof(float) + 1);
    if (!values.empty()) std::memcpy(to.data() + 1, values.data(), to.size() - 1);
  }
  // In pieces of 1, 2, 4, ... bytes.
  Spans SpansOf(const std::string& name) const {
    std::span<const std::byte> rest(bytes.at(name));
    rest = rest.subspan(1);
    Spans spans;
    for (size_t piece = 1; !rest.empty(); piece *= 2) {
      const size_t size = std::min(piece, rest.size());
      spans.push_back(rest.first(size));
      rest = rest.subspan(size);
    }
    return spans;
  }
};

class LaneTest : public ::testing::Test {
 protected:
  LaneTest() {
    engine_ = CpuEngine({.threads = 2, .poison_memory = true});
    // Seconds are predicted from the speed of this machine, which may be slow at the moment: they
    // must not decide which requests share a batch.
    batcher_.emplace(Batcher::Options{.max_batch_seconds = std::numeric_limits<double>::infinity()},
                     &clock_);
    lane_.emplace(Lane::Parts{
        .engine = engine_.get(), .batcher = &*batcher_, .metrics = &metrics_, .clock = &clock_});
  }
  void LimitSeconds(double seconds, int sharing_runs = 1) {
    lane_.emplace(Lane::Parts{.engine = engine_.get(),
                              .batcher = &*batcher_,
                              .metrics = &metrics_,
                              .clock = &clock_,
                              .max_request_seconds = seconds,
                              .sharing_runs = sharing_runs});
  }

  std::unique_ptr<Task> Make(const std::string& name, std::shared_ptr<const Plan> plan,
                             std::shared_ptr<TensorBytes> payload) {
    std::unique_ptr<Task> task = NewTask(std::move(plan), clock_, /*charged_bytes=*/1000);
    for (const auto& [tensor, unused] : payload->bytes) {
      task->payloads[tensor] = payload->SpansOf(tensor);
    }
    task->payload_owner = std::move(payload);
    task->done = [this, name](absl::Status status, std::vector<Result> results,
                              const Phases& phases) {
      const MutexLock lock(&answers_mu_);
      Answer& answer = answers_[name];
      answer = {answer.count + 1, std::move(status), std::move(results), phases,
                lane_->input_bytes()};
    };
    return task;
  }

  std::unique_ptr<Task> MakePuppet(const std::string& name, float first, int64_t n = 4) {
    auto payload = std::make_shared<TensorBytes>();
    std::vector<float> values(n, 1.0F);
    values[0] = first;
    payload->Add("q", values);
    return Make(name, puppet_.MakePlan(n), std::move(payload));
  }

  // A request for a method of the registry with made-up q, k, v [1,H,n,D].
  std::unique_ptr<Task> MakeReal(const std::string& name, const std::string& method, int64_t H,
                                 int64_t n, int64_t D, float seed, OptionMap options = {}) {
    Call call{.method = method, .options = std::move(options)};
    auto payload = std::make_shared<TensorBytes>();
    for (const char* tensor : {"q", "k", "v"}) {
      std::vector<float> values(H * n * D);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = std::sin(seed * static_cast<float>(i + 1));
      }
      seed += 0.25F;
      payload->Add(tensor, values);
      call.tensors[tensor] = DenseView(nullptr, DType::kF32, {1, H, n, D});
    }
    auto plan = engine_->MakePlan(call);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return Make(name, *plan, std::move(payload));
  }

  // Submits the tasks and runs a batch, as the lane's thread does.
  template <class... Tasks>
  void Run(Tasks... tasks) {
    for (std::unique_ptr<Task>* task : {&tasks...}) {
      ASSERT_TRUE(batcher_->Submit(*task).ok());
    }
    RunNext();
  }
  void RunNext() { lane_->RunBatch(batcher_->TryPull()); }

  static std::string Bytes(const Result& result) {
    return {result.view.As<char>(), static_cast<size_t>(result.view.bytes())};
  }

  FakeClock clock_;
  PuppetMethod puppet_;
  std::unique_ptr<Engine> engine_;
  Metrics metrics_{{.version = "0", .devices = {{"cpu", 1e6}}, .methods = {"local", "softmax"}}};
  std::optional<Batcher> batcher_;
  Mutex answers_mu_;
  std::map<std::string, Answer> answers_;  // read when no lane runs
  std::optional<Lane> lane_;
};

}  // namespace attnd
