// Figures of running batches, from which the queue decides what may start beside them.
#include "server/running.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>

namespace attnd {
namespace {

using namespace std::chrono_literals;

constexpr double kSoon = 0.005;

class RunningTest : public testing::Test {
 protected:
  uint64_t Begin(double seconds, int level = 0) {
    return running_.Begin(
        {.started = start_, .seconds = {seconds, seconds, seconds}, .level = level});
  }

  const TimePoint start_{1000s};
  Running running_{3};
};

// Regression: the time of a run that shared the machine counted as that of a run alone.
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
  // The second is 2 s late: it is assumed to take 2 s more.
  EXPECT_DOUBLE_EQ(running_.SecondsLeft(start_ + 5s), 2);
}

TEST_F(RunningTest, RunsThatARequestCannotStartBesideAreBeforeIt) {
  Begin(10, /*level=*/0);
  Begin(7, /*level=*/1);
  const auto before = [&](int level, double seconds) {
    return running_.Before(start_, "a", level, seconds);
  };
  EXPECT_DOUBLE_EQ(before(/*level=*/0, /*seconds=*/10).own, 10);
  EXPECT_DOUBLE_EQ(before(0, 10).patient, 7);
  // It starts beside after kPatience, and ends first.
  EXPECT_DOUBLE_EQ(before(0, 9).own, 0);
  EXPECT_DOUBLE_EQ(before(0, 9).patient, 17);
  // Half of the seconds left: it starts beside at once.
  EXPECT_DOUBLE_EQ(before(0, 5).patient, 7);
  EXPECT_DOUBLE_EQ(running_.Before(start_ + 1s, "a", 0, 5).patient, 9 + 6);
  EXPECT_DOUBLE_EQ(before(1, 7).own, 7);
  EXPECT_DOUBLE_EQ(before(1, 7).patient, 0);
  EXPECT_DOUBLE_EQ(before(2, 100).own + before(2, 100).patient, 0);
}

// It waits for the end of a long run of its own client.
TEST_F(RunningTest, PatienceDoesNotHelpBesideLongWorkOfItsOwnClient) {
  Turns::Client client{.name = "a"};
  running_.Begin({.started = start_, .seconds = {10, 10, 10}, .client = &client});
  EXPECT_DOUBLE_EQ(running_.Before(start_, "a", 0, 9).own, 10);
  EXPECT_DOUBLE_EQ(running_.Before(start_, "b", 0, 9).own, 0);
  EXPECT_DOUBLE_EQ(running_.Before(start_, "b", 0, 9).patient, 10);
}

TEST_F(RunningTest, EachCountsAsItsKindDoes) {
  running_.Begin({.started = start_, .seconds = {.likely = 10, .ahead = 5}});
  running_.Begin({.started = start_, .seconds = {.likely = 20, .ahead = 15}});
  EXPECT_DOUBLE_EQ(running_.Before(start_, "a", 0, 30).own, 20);
  EXPECT_DOUBLE_EQ(running_.Before(start_, "a", 0, 9).patient, 5);
  EXPECT_DOUBLE_EQ(running_.Before(start_ + 4s, "a", 0, 30).own, 15);
}

// Regression: two long requests of a client delayed its others, and the prediction ignored that.
TEST_F(RunningTest, APlaceIsFreeWhenTheFirstOfItsKindEnds) {
  Running running(6);
  Turns::Client client{.name = "a"}, other{.name = "b"};
  const auto begin = [&](double seconds, Turns::Client* of) {
    return running.Begin({.started = start_, .seconds = {seconds, seconds, seconds}, .client = of});
  };
  const auto wait = [&](const std::string& of, double seconds) {
    return running.SecondsToPlace(start_, of, seconds);
  };
  EXPECT_DOUBLE_EQ(wait("a", 100), 0);
  begin(600, &client);
  // One client may have one of the two places above 20 s.
  EXPECT_DOUBLE_EQ(wait("a", 21), 600);
  EXPECT_DOUBLE_EQ(wait("a", 20), 0);
  EXPECT_DOUBLE_EQ(wait("b", 21), 0);
  begin(300, &other);
  EXPECT_DOUBLE_EQ(wait("c", 21), 300);
  EXPECT_DOUBLE_EQ(wait("c", 20), 0);
  const uint64_t third = begin(2, &client);
  EXPECT_DOUBLE_EQ(wait("c", 20), 2);
  EXPECT_DOUBLE_EQ(wait("c", 1), 0);
  begin(1, &client);
  EXPECT_DOUBLE_EQ(wait("c", 0.1), 1);
  EXPECT_DOUBLE_EQ(wait("c", 0.05), 0);
  begin(0.04, &client);
  EXPECT_DOUBLE_EQ(wait("c", 0.006), 0.04);
  EXPECT_DOUBLE_EQ(wait("c", 0.005), 0);
  begin(0.001, &client);
  EXPECT_DOUBLE_EQ(wait("c", 0), 0.001);
  running.End(third, start_);
  EXPECT_DOUBLE_EQ(wait("c", 20), 0);
}

// Regression: a long run counted as undone until its end, so the pace fell and fell beside it.
TEST_F(RunningTest, ThePaceIsThatOfAllThatRanTogether) {
  const auto at = [&](double seconds) {
    return start_ +
           std::chrono::duration_cast<TimePoint::duration>(std::chrono::duration<double>(seconds));
  };
  const uint64_t first = Begin(6), beside = Begin(2);
  running_.End(beside, at(2));
  EXPECT_DOUBLE_EQ(running_.PaceAt(at(2)), 1);
  running_.End(first, at(8));
  EXPECT_NEAR(running_.PaceAt(at(8)), 1, 1e-9);
  const uint64_t slow = running_.Begin({.started = at(10), .seconds = {4, 4, 4}});
  running_.End(slow, at(18));
  EXPECT_NEAR(running_.PaceAt(at(18)), 0.5, 0.02);
  EXPECT_DOUBLE_EQ(running_.PaceAt(at(24)), 1);
}

TEST_F(RunningTest, ThereIsRoomOnceTheRunsGoOnForLonger) {
  EXPECT_TRUE(running_.RoomAt(start_, kSoon).is_open);
  EXPECT_TRUE(running_.RoomAt(start_, kSoon).is_first);
  EXPECT_EQ(running_.RoomAt(start_, kSoon).level, std::numeric_limits<int>::min());
  const uint64_t short_one = Begin(kSoon, /*level=*/2);
  EXPECT_FALSE(running_.RoomAt(start_, kSoon).is_open);
  running_.End(short_one, start_);

  Begin(0.5, 1);
  Begin(8, -1);
  const Running::Room room = running_.RoomAt(start_, kSoon);
  EXPECT_TRUE(room.is_open);
  EXPECT_FALSE(room.is_first);
  EXPECT_EQ(room.level, 1);
  EXPECT_DOUBLE_EQ(room.seconds, 0.5);
  EXPECT_EQ(room.longer, (Places::Counts{2, 2, 1, 0}));
  Begin(9);
  EXPECT_FALSE(running_.RoomAt(start_, kSoon).is_open);
}

}  // namespace
}  // namespace attnd
