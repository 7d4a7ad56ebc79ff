// Several lanes at once: a sweep reaches the runs of all lanes and the waiting requests.
#include "server/lanes.h"

#include <future>
#include <thread>

#include "tests/server/lane_fixture.h"

namespace attnd {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Pair;

class LanesTest : public LaneTest {
 protected:
  LanesTest() {
    puppet_.on_run = [this, release = release_.get_future().share()] {
      began_.fetch_add(1);
      release.wait();
    };
    EXPECT_TRUE(lanes_.Start().ok());
  }
  ~LanesTest() override {
    if (!is_released_) Release();
  }

  // Runs on one of the lanes until Release.
  void Occupy(std::unique_ptr<Task> task) {
    const int before = began_;
    ASSERT_TRUE(batcher_->Submit(task).ok());
    while (began_ == before) std::this_thread::yield();
    // The run takes longer than predicted, so others may start.
    clock_.Advance(10ms);
  }
  void Release() {
    is_released_ = true;
    release_.set_value();
    batcher_->Close();
    lanes_.Join();
  }

  Metrics counted_{{.version = "0", .devices = {{"cpu"}}, .lanes = 2, .methods = {"softmax"}}};
  std::promise<void> release_;
  bool is_released_ = false;
  std::atomic<int> began_ = 0;
  Lanes lanes_{
      Lane::Parts{
          .engine = engine_.get(), .batcher = &*batcher_, .metrics = &counted_, .clock = &clock_},
      2};
};

// Regression: cancelled requests were answered on the first lane only.
TEST_F(LanesTest, ASweepReachesEveryLaneAndTheQueue) {
  std::vector<std::shared_ptr<std::atomic<bool>>> cancelled;
  const auto make = [&](const std::string& name) {
    std::unique_ptr<Task> task = MakePuppet(name, 1);
    cancelled.push_back(task->cancelled);
    return task;
  };
  Occupy(make("one"));
  Occupy(make("two"));
  std::unique_ptr<Task> waits = make("waits");
  ASSERT_TRUE(batcher_->Submit(waits).ok());
  EXPECT_EQ(lanes_.input_bytes(), 2 * RoundedBytes(16));
  lanes_.Sweep();
  EXPECT_THAT(answers_, IsEmpty());

  for (const auto& one : cancelled) one->store(true);
  lanes_.Sweep();
  for (const char* name : {"one", "two", "waits"}) {
    EXPECT_TRUE(absl::IsCancelled(answers_[name].status)) << name;
  }
  EXPECT_EQ(batcher_->depth().requests, 0);

  Release();
  for (const auto& [name, answer] : answers_) EXPECT_EQ(answer.count, 1) << name;
  EXPECT_EQ(lanes_.input_bytes(), 0);
  const auto busy = [](int lane, const char* seconds) {
    return HasSubstr(absl::StrCat("attnd_lane_busy_seconds_total{device=\"cpu\",lane=\"", lane,
                                  "\"} ", seconds, "\n"));
  };
  EXPECT_THAT(*counted_.Text(), AnyOf(AllOf(busy(0, "0.02"), busy(1, "0.01")),
                                      AllOf(busy(0, "0.01"), busy(1, "0.02"))));
}

// No event starts the waiting request: Watch does, after some time.
TEST_F(LanesTest, ALateRunLetsTheNextStart) {
  for (const char* name : {"one", "two"}) {
    std::unique_ptr<Task> task = MakePuppet(name, 1);
    ASSERT_TRUE(batcher_->Submit(task).ok());
    while (began_ == 0) std::this_thread::yield();
  }
  EXPECT_EQ(batcher_->waiting(), 1);
  clock_.Advance(10ms);
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (began_ < 2 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(began_, 2);
}

TEST_F(LanesTest, EachIsWatched) {
  Occupy(MakePuppet("one", 1));
  Occupy(MakePuppet("two", 1));
  Watchdog dog({});
  lanes_.WatchBy(&dog);
  const auto stuck = [&] {
    int parts = 0;
    for (const auto& [name, seconds] : dog.stuck_seconds()) parts += seconds > 0 ? 1 : 0;
    return parts;
  };
  for (int i = 0; i < 20000 && stuck() < 2; ++i) dog.Look();
  EXPECT_THAT(dog.stuck_seconds(),
              ElementsAre(Pair("lane 0", testing::Gt(0)), Pair("lane 1", testing::Gt(0))));
}

}  // namespace
}  // namespace attnd
