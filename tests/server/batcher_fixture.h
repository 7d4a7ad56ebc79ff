// A batcher on a fake clock; the test acts as its lanes.
#pragma once

#include "tests/server/task_fixture.h"

namespace attnd {

struct Request {
  std::string name;
  std::string bucket = "a";
  int priority = 0;
  std::chrono::milliseconds deadline{0};  // from now; 0: none
  int64_t bytes = 1;
  double seconds = 0;
  std::string client = "a";
};

class BatcherTest : public testing::Test {
 protected:
  void Start(Batcher::Options options) {
    options.refused = [this](Refusal refusal) { refusals_.push_back(refusal); };
    batcher_ = std::make_unique<Batcher>(options, &clock_);
  }
  void TearDown() override {
    for (const auto& [name, run] : running_) batcher_->Ended(run);
    while (!Pull().empty()) {
    }
  }

  std::unique_ptr<Task> Make(const Request& request) {
    auto plan = std::make_shared<Plan>();
    plan->bucket = request.bucket;
    plan->seconds = request.seconds;
    std::unique_ptr<Task> task = NewTask(plan, clock_, request.bytes);
    task->priority = request.priority;
    if (request.deadline > 0ms) task->deadline = clock_.Now() + request.deadline;
    task->client = request.client;
    cancelled_[request.name] = task->cancelled;
    names_[task.get()] = request.name;
    task->done = [this, name = request.name](absl::Status status, std::vector<Result> results,
                                             const Phases& phases) {
      EXPECT_THAT(results, IsEmpty());
      // Would deadlock if `done` were called with the lock held.
      batcher_->depth();
      waited_[name] = phases.queue_seconds;
      answers_.push_back(absl::StrCat(name, " ", absl::StatusCodeToString(status.code())));
    };
    return task;
  }

  absl::Status Submit(const Request& request) {
    std::unique_ptr<Task> task = Make(request);
    absl::Status status = batcher_->Submit(task);
    EXPECT_EQ(task == nullptr, status.ok()) << "ownership moves only on OK";
    return status;
  }

  // The names of the next batch, which runs until End.
  std::vector<std::string> Begin() {
    batch_ = batcher_->TryPull();
    reason_ = batch_.reason;
    std::vector<std::string> names;
    for (std::unique_ptr<Task>& task : batch_.tasks) names.push_back(names_.at(task.get()));
    if (!names.empty()) running_[names[0]] = batch_.run;
    return names;
  }
  void End(const std::string& first) {
    batcher_->Ended(running_.at(first));
    running_.erase(first);
  }

  // The names of the next batch, which ends at once.
  std::vector<std::string> Pull() {
    std::vector<std::string> names = Begin();
    if (!names.empty()) End(names[0]);
    return names;
  }

  FakeClock clock_;
  std::unique_ptr<Batcher> batcher_;
  std::map<const Task*, std::string> names_;
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> cancelled_;
  std::vector<std::string> answers_;
  std::map<std::string, double> waited_;  // of the answered ones, in seconds
  std::vector<Refusal> refusals_;
  std::map<std::string, uint64_t> running_;  // batches, by their first request
  Batcher::Batch batch_;                     // the last one
  Batcher::Reason reason_ = Batcher::Reason::kIdle;
};

}  // namespace attnd
