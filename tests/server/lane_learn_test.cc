// What predictions learn from the runs of lanes.
#include <cmath>

#include "tests/server/lane_fixture.h"

namespace attnd {
namespace {

class LaneLearnTest : public LaneTest {
 protected:
  LaneLearnTest() {
    lane_.emplace(Lane::Parts{.engine = engine_.get(),
                              .batcher = &*batcher_,
                              .metrics = &metrics_,
                              .clock = &clock_,
                              .predictions = &predictions_,
                              .threads = 2});
  }
  std::unique_ptr<Task> MakePredicted(const std::string& name, float first) {
    std::unique_ptr<Task> task = MakePuppet(name, first);
    task->plan = puppet_.MakePlan(4, /*seconds=*/0.01);
    return task;
  }
  // The predicted seconds for a planned second of this kind.
  static double Ratio(const Predictions& predictions, const Plan& kind) {
    return predictions.Of(kind).likely / kind.seconds;
  }

  Predictions predictions_{&clock_};
};

TEST_F(LaneLearnTest, ABatchUpdatesTheRatioOfItsSeconds) {
  const std::shared_ptr<const Plan> kind = puppet_.MakePlan(4, 1);
  puppet_.on_run = [this] { clock_.Advance(80ms); };
  Run(MakePredicted("a", 1), MakePredicted("b", 1));
  // A quarter of the way from 1 to 80 ms / (10 ms + 10 ms), as logarithms.
  EXPECT_NEAR(Ratio(predictions_, *kind), std::pow(4, 0.25), 1e-9);

  // Nothing is learned from a failed run, and the run before it does not count again. No time
  // passes, so nothing is forgotten.
  puppet_.on_run = {};
  Run(MakePredicted("bad", PuppetMethod::kBad));
  EXPECT_FALSE(answers_["bad"].status.ok());
  EXPECT_NEAR(Ratio(predictions_, *kind), std::pow(4, 0.25), 1e-9);
}

// Regression: elapsed time, during which other runs had a share, counted as the time of the run.
TEST_F(LaneLearnTest, BesideOthersTheTimeOfItsThreadsCounts) {
  std::unique_ptr<Task> other = MakePuppet("other", 1);
  ASSERT_TRUE(batcher_->Submit(other).ok());
  const Batcher::Batch beside = batcher_->TryPull();
  ASSERT_EQ(beside.tasks.size(), 1u);
  // The first run takes longer than predicted, so others may start.
  clock_.Advance(10s);
  std::unique_ptr<Task> task = MakeReal("real", "softmax", 8, 2048, 64, 0.1F);
  const std::shared_ptr<const Plan> plan = task->plan;
  ASSERT_GT(plan->seconds, 2 * Predictions::kShort);
  // The fake clock stands still: the elapsed time of the run is 0.
  Run(std::move(task));
  batcher_->Ended(beside.run);
  ASSERT_TRUE(answers_["real"].status.ok()) << answers_["real"].status;
  EXPECT_GT(Ratio(predictions_, *plan), std::pow(Predictions::kLeast, 0.25) + 0.01);
}

}  // namespace
}  // namespace attnd
