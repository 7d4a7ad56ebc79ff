// The planner: every job runs once, clients share its places and take turns.
#include "server/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <vector>

namespace attnd {
namespace {

using testing::ElementsAre;

class PlannerTest : public testing::Test {
 protected:
  Planner::Job Make(const std::string& name, const std::string& client, int64_t work = 1000) {
    Planner::Job job{.client = client, .work = work, .control = std::make_shared<RunControl>()};
    job.run = [this, name, control = job.control] {
      ran_.push_back(control->stopped() ? name + " stopped" : name);
    };
    return job;
  }
  absl::Status Submit(const std::string& name, const std::string& client, int64_t work = 1000) {
    Planner::Job job = Make(name, client, work);
    return planner_.Submit(job);
  }

  std::vector<std::string> ran_;  // written by the planner's thread; read after Close
  Planner planner_{{.max_waiting = 6, .max_streams = 8}};
};

TEST_F(PlannerTest, ClientsTakeTurnsByWork) {
  ASSERT_TRUE(Submit("a1", "a", 2000).ok());
  ASSERT_TRUE(Submit("a2", "a", 2000).ok());
  ASSERT_TRUE(Submit("b1", "b", 1000).ok());
  ASSERT_TRUE(Submit("b2", "b", 1000).ok());
  ASSERT_TRUE(planner_.Start().ok());
  std::promise<void> last;
  Planner::Job job = Make("", "c");
  job.run = [&] { last.set_value(); };
  ASSERT_TRUE(planner_.Submit(job).ok());
  last.get_future().wait();
  while (planner_.waiting() > 0) std::this_thread::yield();
  planner_.Close();
  EXPECT_THAT(ran_, ElementsAre("a1", "b1", "b2", "a2"));
}

TEST_F(PlannerTest, OneClientHasHalfOfThePlaces) {
  for (const char* name : {"1", "2", "3"}) ASSERT_TRUE(Submit(name, "a").ok());
  EXPECT_EQ(Submit("4", "a"),
            absl::ResourceExhaustedError("request: 3 requests wait to be planned, 3 of them from "
                                         "this address, retry later"));
  for (const char* name : {"5", "6"}) ASSERT_TRUE(Submit(name, "b").ok());
  ASSERT_TRUE(Submit("7", "c").ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Submit("8", "d")));
  ASSERT_TRUE(planner_.Start().ok());
  planner_.Close();
  EXPECT_EQ(ran_.size(), 6u);
}

// A stream without a place would end, with all its requests.
TEST_F(PlannerTest, StreamsHavePlacesOfTheirOwn) {
  const auto submit_stream = [&](const std::string& client) {
    Planner::Job job = Make("stream", client);
    job.is_of_stream = true;
    return planner_.Submit(job);
  };
  for (const char* name : {"1", "2", "3"}) ASSERT_TRUE(Submit(name, "a").ok());
  EXPECT_FALSE(Submit("4", "a").ok());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(submit_stream("a").ok()) << i;
  EXPECT_EQ(submit_stream("a"),
            absl::ResourceExhaustedError("request: 4 requests wait to be planned, 4 of them from "
                                         "this address, retry later"));
  EXPECT_TRUE(Submit("5", "b").ok());
  EXPECT_TRUE(submit_stream("b").ok());
  ASSERT_TRUE(planner_.Start().ok());
  planner_.Close();
  EXPECT_EQ(ran_.size(), 9u);
}

// It returns at once, so that its client is answered and its bytes are freed.
TEST_F(PlannerTest, ACancelledJobIsTheNext) {
  for (const char* name : {"1", "2", "3"}) {
    Planner::Job job = Make(name, "a");
    const std::shared_ptr<RunControl> control = job.control;
    ASSERT_TRUE(planner_.Submit(job).ok());
    if (std::string(name) == "3") control->Cancel();
  }
  ASSERT_TRUE(planner_.Start().ok());
  while (planner_.waiting() > 0) std::this_thread::yield();
  planner_.Close();
  ASSERT_EQ(ran_.size(), 3u);
  EXPECT_EQ(ran_.front(), "3 stopped");
}

TEST_F(PlannerTest, APlaceComesBackWithItsJob) {
  ASSERT_TRUE(planner_.Start().ok());
  for (int round = 0; round < 3; ++round) {
    for (const char* name : {"1", "2", "3"}) EXPECT_TRUE(Submit(name, "a").ok()) << round;
    while (planner_.waiting() > 0) std::this_thread::yield();
  }
  planner_.Close();
  EXPECT_EQ(ran_.size(), 9u);
}

TEST_F(PlannerTest, CloseStopsTheRunningJobAndAnswersWaitingOnes) {
  ASSERT_TRUE(planner_.Start().ok());
  std::promise<void> began;
  Planner::Job job = Make("", "a");
  job.run = [&, control = job.control] {
    began.set_value();
    while (!control->stopped()) std::this_thread::yield();
    ran_.push_back("endless stopped");
  };
  ASSERT_TRUE(planner_.Submit(job).ok());
  began.get_future().wait();
  ASSERT_TRUE(Submit("waits", "a").ok());
  planner_.Close();
  EXPECT_THAT(ran_, ElementsAre("endless stopped", "waits stopped"));
  EXPECT_TRUE(absl::IsResourceExhausted(Submit("late", "a")));
}

}  // namespace
}  // namespace attnd
