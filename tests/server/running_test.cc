// What is known of the batches that run.
#include "server/running.h"

#include <gtest/gtest.h>

#include <limits>

namespace attnd {
namespace {

using namespace std::chrono_literals;

constexpr double kSoon = 0.005;

class RunningTest : public testing::Test {
 protected:
  uint64_t Begin(double seconds, int level = 0, bool is_long = false) {
    return running_.Begin({.started = start_,
                           .seconds = {seconds, seconds, seconds},
                           .level = level,
                           .is_long = is_long});
  }

  const TimePoint start_{1000s};
  Running running_{3};
};

// What shared the machine was taken for what a run takes alone.
TEST_F(RunningTest, TwoThatRunBesideEachOtherWereNotAlone) {
  const uint64_t first = Begin(1);
  EXPECT_TRUE(running_.End(first, start_).was_alone);
  const uint64_t long_one = Begin(1), beside = Begin(1);
  EXPECT_FALSE(running_.End(beside, start_).was_alone);
  EXPECT_FALSE(running_.End(long_one, start_).was_alone);
  EXPECT_TRUE(running_.empty());
  EXPECT_TRUE(running_.End(Begin(1), start_).was_alone);
}

TEST_F(RunningTest, SecondsLeftAreThoseOfAll) {
  EXPECT_DOUBLE_EQ(running_.SecondsLeft(start_), 0);
  Begin(5);
  Begin(3);
  EXPECT_DOUBLE_EQ(running_.SecondsLeft(start_ + 1s), 6);
  // The second is 2 s late: it counts as taking as long again.
  EXPECT_DOUBLE_EQ(running_.SecondsLeft(start_ + 5s), 2);
}

TEST_F(RunningTest, BeforeARequestAreHigherLevelsAndShorterOnesOfItsOwn) {
  Begin(10, /*level=*/0);
  Begin(7, /*level=*/1);
  EXPECT_DOUBLE_EQ(running_.SecondsBefore(start_, /*level=*/0, /*seconds=*/20), 17);
  EXPECT_DOUBLE_EQ(running_.SecondsBefore(start_, 0, 10), 7);
  EXPECT_DOUBLE_EQ(running_.SecondsBefore(start_, 1, 5), 0);
  EXPECT_DOUBLE_EQ(running_.SecondsBefore(start_, 2, 100), 0);
  // The last place: even the most urgent waits for the first that ends.
  Begin(4, /*level=*/-1);
  EXPECT_DOUBLE_EQ(running_.SecondsBefore(start_, 2, 100), 4);
  EXPECT_DOUBLE_EQ(running_.SecondsBefore(start_, 0, 20), 17);
}

TEST_F(RunningTest, EachCountsAsItsKindDoes) {
  running_.Begin({.started = start_, .seconds = {.likely = 10, .ahead = 5}});
  running_.Begin({.started = start_, .seconds = {.likely = 20, .ahead = 15}});
  EXPECT_DOUBLE_EQ(running_.SecondsBefore(start_, 0, 30), 20);
  EXPECT_DOUBLE_EQ(running_.SecondsBefore(start_, 0, 20), 5);
  EXPECT_DOUBLE_EQ(running_.SecondsBefore(start_ + 4s, 0, 30), 15);
  // The last place: the first that ends counts 0.9 s.
  running_.Begin({.started = start_, .seconds = {.likely = 1, .ahead = 0.9}});
  EXPECT_DOUBLE_EQ(running_.SecondsBefore(start_, 1, 0), 0.9);
}

TEST_F(RunningTest, RoomIsThereOnceWhatRunsGoesOnForLonger) {
  EXPECT_TRUE(running_.RoomAt(start_, kSoon).is_open);
  EXPECT_TRUE(running_.RoomAt(start_, kSoon).is_first);
  EXPECT_EQ(running_.RoomAt(start_, kSoon).level, std::numeric_limits<int>::min());
  const uint64_t short_one = Begin(kSoon, /*level=*/2);
  EXPECT_FALSE(running_.RoomAt(start_, kSoon).is_open);
  running_.End(short_one, start_);

  Begin(0.5, 1);
  Begin(8, -1, /*is_long=*/true);
  const Running::Room room = running_.RoomAt(start_, kSoon);
  EXPECT_TRUE(room.is_open);
  EXPECT_FALSE(room.is_first);
  EXPECT_EQ(room.level, 1);
  EXPECT_DOUBLE_EQ(room.seconds, 0.5);
  // Of three places two may be long; one client has one of them.
  EXPECT_EQ(room.long_places, 1);
  EXPECT_EQ(room.long_per_client, 1);
  Begin(9);
  EXPECT_FALSE(running_.RoomAt(start_, kSoon).is_open);
}

}  // namespace
}  // namespace attnd
