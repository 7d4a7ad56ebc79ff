// Regression: /healthz answered ok while the polling thread or a lane was stuck. The test calls
// Look instead of sleeping.
#include "server/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace attnd {
namespace {

using testing::ElementsAre;
using testing::Pair;
using namespace std::chrono_literals;

void LookTimes(Watchdog* dog, int times) {
  for (int i = 0; i < times; ++i) dog->Look();
}

// The first look sees the beat that Busy makes.
constexpr int kUntilStuck = Watchdog::kStuckTicks + 1;

TEST(HeartbeatTest, ABusyPartThatDoesNotBeatIsStuck) {
  Heart lane, planner;
  Watchdog dog({});
  dog.Watch(Watchdog::PartOf("lane 0", &lane));
  dog.Watch(Watchdog::PartOf("planner", &planner));

  lane.Busy("local", 3, 96);
  LookTimes(&dog, kUntilStuck - 1);
  EXPECT_TRUE(dog.Check().ok());
  dog.Look();

  EXPECT_EQ(dog.Check(),
            absl::UnavailableError("lane 0 is stuck for 3 s in local, 3 requests, 96 tokens"));
  EXPECT_THAT(dog.stuck_seconds(), ElementsAre(Pair("lane 0", 3.5), Pair("planner", 0)));

  lane.Idle();
  dog.Look();
  EXPECT_TRUE(dog.Check().ok());
}

TEST(HeartbeatTest, APartThatBeatsOrIsIdleIsNotStuck) {
  Heart lane, idle;
  Watchdog dog({});
  dog.Watch(Watchdog::PartOf("lane 0", &lane));
  dog.Watch(Watchdog::PartOf("lane 1", &idle));
  lane.Busy("softmax");
  for (int i = 0; i < 10 * kUntilStuck; ++i) {
    if (i % (Watchdog::kStuckTicks - 1) == 0) lane.Beat();
    dog.Look();
    ASSERT_TRUE(dog.Check().ok()) << i;
  }
}

TEST(HeartbeatTest, AnotherPieceOfWorkIsProgress) {
  Heart lane;
  Watchdog dog({});
  dog.Watch(Watchdog::PartOf("lane 0", &lane));
  for (int i = 0; i < 10 * kUntilStuck; ++i) {
    lane.Idle();
    lane.Busy("softmax");
    dog.Look();
    ASSERT_TRUE(dog.Check().ok()) << i;
  }
}

TEST(HeartbeatTest, ProcessorTimeOfTheThreadIsProgress) {
  Heart heart;
  heart.Attach();
  heart.Busy("softmax");
  const int64_t before = heart.progress();
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (heart.progress() == before && std::chrono::steady_clock::now() < end) continue;
  EXPECT_GT(heart.progress(), before);
}

TEST(HeartbeatTest, EndsTheProcessOnlyAfterTheTimeThatWasAskedFor) {
  Heart lane;
  int exits = 0;
  Watchdog dog({.exit_after = 10s, .exit = [&] { ++exits; }});
  dog.Watch(Watchdog::PartOf("lane 0", &lane));
  lane.Busy("softmax");
  LookTimes(&dog, 20);
  EXPECT_EQ(exits, 0);
  dog.Look();
  EXPECT_EQ(exits, 1);
}

TEST(HeartbeatTest, NeverEndsTheProcessUnasked) {
  Heart lane;
  int exits = 0;
  Watchdog dog({.exit = [&] { ++exits; }});
  dog.Watch(Watchdog::PartOf("lane 0", &lane));
  lane.Busy("softmax");
  LookTimes(&dog, 1000);
  EXPECT_FALSE(dog.Check().ok());
  EXPECT_EQ(exits, 0);
}

TEST(HeartbeatTest, TheThreadLooks) {
  Heart lane;
  std::atomic<int> looks = 0;
  Watchdog dog({.before_look = [&] { looks.fetch_add(1); }});
  dog.Watch(Watchdog::PartOf("lane 0", &lane));
  ASSERT_TRUE(dog.Start().ok());
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (looks == 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_GT(looks, 0);
  EXPECT_TRUE(dog.Check().ok());
}

// In real time: after a stop of the whole process, the first look comes late.
TEST(HeartbeatTest, ALateLookIsWaitedFor) {
  std::atomic<bool> holds = true;
  Watchdog dog({.before_look = [&] {
    while (holds) std::this_thread::sleep_for(1ms);
  }});
  ASSERT_TRUE(dog.Start().ok());
  std::this_thread::sleep_for(Watchdog::kStuckTicks * Watchdog::kPeriod + 100ms);
  EXPECT_EQ(dog.Check(), absl::UnavailableError("the watchdog is stuck"));
  std::thread look([&] {
    std::this_thread::sleep_for(100ms);
    holds = false;
  });
  EXPECT_TRUE(dog.Check().ok());
  look.join();
}

}  // namespace
}  // namespace attnd
