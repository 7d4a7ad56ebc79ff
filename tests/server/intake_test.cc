// When a call may read: the byte budget, the order of waiting calls, and the time that a message
// may take.
#include "server/intake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/reasons.h"
#include "tests/server/fake_clock.h"

namespace attnd {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

struct Call final : Intake::Reader {
  void OnRoom(Budget::Share given) override { share.emplace(std::move(given)); }
  void OnOverdue(const absl::Status& status) override { overdue = status; }
  int64_t arrived_bytes() const override { return arrived; }
  bool reads() const { return share.has_value(); }

  std::optional<Budget::Share> share;
  absl::Status overdue;
  int64_t arrived = -1;
};

class IntakeTest : public testing::Test {
 protected:
  bool Enter(Call* call, int64_t bytes, bool may_be_refused = true) {
    return intake_.Enter(call, {bytes, may_be_refused, "a"}).ok();
  }
  bool EnterFrom(const char* client, Call* call, int64_t bytes) {
    return intake_.Enter(call, {bytes, /*may_be_refused=*/true, client}).ok();
  }
  // The message arrived and its request was answered.
  void End(Call* call) {
    intake_.Leave(call);
    call->share.reset();
    intake_.Serve();
  }

  FakeClock clock_;
  Budget budget_{64 * kMiB};
  Intake intake_{{}, &budget_, &clock_};
};

TEST_F(IntakeTest, AMessageIsChargedTwiceItsSizeAndASmallOneNothing) {
  Call large, small;
  ASSERT_TRUE(Enter(&large, 24 * kMiB));
  EXPECT_TRUE(large.reads());
  EXPECT_EQ(budget_.used(), 48 * kMiB);
  ASSERT_TRUE(Enter(&small, Intake::kFreeBytes));
  EXPECT_TRUE(small.reads());
  EXPECT_EQ(budget_.used(), 48 * kMiB);
}

TEST_F(IntakeTest, FourWaitInOrderAndTheRestIsRefused) {
  Call calls[16];
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Enter(&calls[i], 24 * kMiB)) << i;
  for (int i = 5; i < 16; ++i) {
    const absl::Status status = intake_.Enter(&calls[i], {24 * kMiB, true, "a"});
    EXPECT_EQ(status.message(),
              "request: 4 requests wait to be read already, 16777216 bytes of 67108864 are free, "
              "retry later");
    EXPECT_TRUE(absl::IsResourceExhausted(status));
    EXPECT_FALSE(IsPermanent(status));
  }
  EXPECT_EQ(intake_.waiting(), 4);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(calls[i].reads()) << i;
    EXPECT_EQ(i < 4 && calls[i + 1].reads(), false) << i;
    EXPECT_EQ(budget_.used(), 48 * kMiB);
    End(&calls[i]);
  }
  EXPECT_EQ(intake_.waiting(), 0);
  EXPECT_EQ(budget_.used(), 0);
}

TEST_F(IntakeTest, SmallOnesPassALargeOneSixteenTimes) {
  Call reading, large, medium, free, small[20];
  ASSERT_TRUE(Enter(&reading, 24 * kMiB));
  ASSERT_TRUE(Enter(&large, 30 * kMiB));
  ASSERT_TRUE(Enter(&medium, 8 * kMiB));
  EXPECT_FALSE(medium.reads());  // more than a quarter
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Enter(&small[i], kMiB));
    EXPECT_EQ(small[i].reads(), i < Intake::kMostPasses) << i;
    if (small[i].reads()) {
      End(&small[i]);
    } else {
      intake_.Leave(&small[i]);
    }
  }
  ASSERT_TRUE(Enter(&free, 100));
  EXPECT_TRUE(free.reads());
  EXPECT_FALSE(large.reads());
  End(&reading);
  EXPECT_TRUE(large.reads());
}

// Regression: streams that announced much and sent nothing kept all others waiting, one after the
// other.
TEST_F(IntakeTest, AClientThatDidNotSendIsPassedByAllOthers) {
  // Given: a client with an overdue message, and with another one that finds no room.
  Call silent, reading, waiting;
  ASSERT_TRUE(EnterFrom("silent", &silent, 24 * kMiB));
  clock_.Advance(60s);
  intake_.Sweep();
  ASSERT_FALSE(silent.overdue.ok());
  silent.share.reset();
  ASSERT_TRUE(EnterFrom("b", &reading, 24 * kMiB));
  ASSERT_TRUE(EnterFrom("silent", &waiting, 24 * kMiB));
  ASSERT_FALSE(waiting.reads());
  // Then: any number of others pass it, for a minute.
  for (int i = 0; i < 3 * Intake::kMostPasses; ++i) {
    Call small;
    ASSERT_TRUE(EnterFrom("c", &small, kMiB));
    EXPECT_TRUE(small.reads()) << i;
    End(&small);
  }
  End(&reading);
  EXPECT_TRUE(waiting.reads());
}

TEST_F(IntakeTest, ClientsTakeTurns) {
  Call reading, of_a[3], of_b;
  ASSERT_TRUE(EnterFrom("a", &reading, 24 * kMiB));
  for (Call& call : of_a) ASSERT_TRUE(EnterFrom("a", &call, 24 * kMiB));
  ASSERT_TRUE(EnterFrom("b", &of_b, 24 * kMiB));
  End(&reading);
  EXPECT_TRUE(of_a[0].reads());
  // It does not pass the two that came before it.
  intake_.Leave(&of_a[0]);
  Call held;
  ASSERT_TRUE(EnterFrom("a", &held, kMiB));
  EXPECT_TRUE(held.reads());
  of_a[0].share.reset();
  intake_.Serve();
  EXPECT_TRUE(of_b.reads());
  EXPECT_FALSE(of_a[1].reads());
}

// Regression: one client held all places, and the others were refused.
TEST_F(IntakeTest, AClientWithManyPlacesMakesRoomForAnother) {
  Call reading, of_a[5], of_b[3];
  ASSERT_TRUE(EnterFrom("a", &reading, 30 * kMiB));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(EnterFrom("a", &of_a[i], 24 * kMiB));
  EXPECT_FALSE(EnterFrom("a", &of_a[4], 24 * kMiB));
  EXPECT_TRUE(EnterFrom("b", &of_b[0], 24 * kMiB));
  EXPECT_TRUE(absl::IsResourceExhausted(of_a[3].overdue));
  EXPECT_TRUE(EnterFrom("b", &of_b[1], 24 * kMiB));
  EXPECT_TRUE(absl::IsResourceExhausted(of_a[2].overdue));
  EXPECT_FALSE(EnterFrom("b", &of_b[2], 24 * kMiB));  // two each
  EXPECT_TRUE(of_a[1].overdue.ok() && of_b[0].overdue.ok());
  EXPECT_EQ(intake_.waiting(), 4);
}

// Regression: one call that declared the whole budget and sent nothing held it for minutes.
TEST_F(IntakeTest, WhileRoomIsShortAMessageMustMakeProgress) {
  Call idle, busy, waiting;
  idle.arrived = busy.arrived = 1000;
  ASSERT_TRUE(Enter(&idle, 16 * kMiB));
  ASSERT_TRUE(Enter(&busy, 14 * kMiB));
  clock_.Advance(2s);
  intake_.Sweep();
  EXPECT_TRUE(idle.overdue.ok());  // no call waits
  ASSERT_TRUE(Enter(&waiting, 16 * kMiB));
  for (int second = 0; second < 4; ++second) {
    clock_.Advance(1s);
    busy.arrived += Intake::kLeastRate + 1;
    intake_.Sweep();
  }
  EXPECT_EQ(idle.overdue, absl::ResourceExhaustedError(
                              "request: its message must arrive at 1048576 bytes/s while others "
                              "wait for room, got 0, retry later"));
  EXPECT_TRUE(busy.overdue.ok());
  idle.share.reset();
  intake_.Serve();
  EXPECT_TRUE(waiting.reads());
}

// Regression: each call left a sixteenth of the budget free, but all of them together took all of
// it.
TEST_F(IntakeTest, MessagesLeaveASixteenthFree) {
  Call silent[16];
  int64_t sizes[] = {20, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  for (int i = 0; i < 16; ++i) (void)Enter(&silent[i], sizes[i] * kMiB);
  EXPECT_EQ(budget_.used(), 60 * kMiB);
  EXPECT_TRUE(budget_.Take(4 * kMiB).has_value());
  // The largest message also leaves it free.
  for (Call& call : silent) End(&call);
  const Budget::Share at_work = *budget_.Take(4 * kMiB);
  Call largest;
  ASSERT_TRUE(Enter(&largest, 64 * kMiB));
  EXPECT_TRUE(largest.reads());
}

// Regression: small requests, which never wait here, were refused for minutes while a message did
// not arrive.
TEST_F(IntakeTest, RequestsThatFindNoRoomForTheirWorkEndPatience) {
  Call silent;
  silent.arrived = 1000;
  ASSERT_TRUE(Enter(&silent, 24 * kMiB));
  for (int second = 0; second < 5; ++second) {
    clock_.Advance(1s);
    intake_.Sweep();
  }
  ASSERT_TRUE(silent.overdue.ok());
  for (int second = 0; second < 5; ++second) {
    clock_.Advance(1s);
    intake_.OnShortage();
    intake_.Sweep();
  }
  EXPECT_EQ(silent.overdue, absl::ResourceExhaustedError(
                                "request: its message must arrive at 1048576 bytes/s while others "
                                "wait for room, got 0, retry later"));
}

// Regression: a client with overdue messages took the room again with its next calls.
TEST_F(IntakeTest, AClientThatDidNotSendReadsHalfWhileOthersAreShort) {
  Call silent, again[2], waiting, honest;
  ASSERT_TRUE(EnterFrom("silent", &silent, 28 * kMiB));
  ASSERT_TRUE(EnterFrom("b", &honest, 10 * kMiB));
  clock_.Advance(60s);
  intake_.Sweep();
  ASSERT_FALSE(silent.overdue.ok());
  silent.share.reset();
  ASSERT_TRUE(EnterFrom("silent", &again[0], 12 * kMiB));
  ASSERT_TRUE(EnterFrom("silent", &again[1], 12 * kMiB));
  EXPECT_TRUE(again[0].reads());
  EXPECT_FALSE(again[1].reads());
  // Then: it does not block others, and comes after them.
  intake_.Serve();
  EXPECT_TRUE(honest.reads());
  End(&honest);
  ASSERT_TRUE(EnterFrom("b", &waiting, 16 * kMiB));
  EXPECT_TRUE(waiting.reads());
  // It is trusted again a minute later.
  again[0].arrived = 0;
  clock_.Advance(61s);
  intake_.Leave(&again[0]);
  End(&waiting);
  EXPECT_TRUE(again[1].reads());
}

TEST_F(IntakeTest, OneAboveTheBudgetIsRefusedForEver) {
  Call call;
  const absl::Status status = intake_.Enter(&call, {64 * kMiB + 1, true, "a"});
  EXPECT_EQ(status.message(),
            "request: needs more than 67108865 bytes, the server's budget is 67108864");
  EXPECT_TRUE(IsPermanent(status));
  // A message that fits alone, even if not with its copy, may try.
  EXPECT_TRUE(Enter(&call, 64 * kMiB));
  EXPECT_EQ(budget_.used(), 56 * kMiB);
}

TEST_F(IntakeTest, UndeclaredOnesShareHalfOfTheBudget) {
  Call undeclared[4], declared;
  for (Call& call : undeclared) ASSERT_TRUE(Enter(&call, Intake::kUndeclared));
  EXPECT_TRUE(undeclared[1].reads());
  EXPECT_FALSE(undeclared[2].reads());
  EXPECT_EQ(budget_.used(), 32 * kMiB);
  // Undeclared messages that wait for their half do not block declared ones.
  Budget::Share rest = *budget_.Take(32 * kMiB);
  ASSERT_TRUE(Enter(&declared, 10 * kMiB));
  EXPECT_FALSE(declared.reads());
  rest = {};
  intake_.Serve();
  EXPECT_TRUE(declared.reads());
  EXPECT_FALSE(undeclared[2].reads());
  // The end of a declared message makes no room in that half, that of an undeclared one does.
  End(&declared);
  EXPECT_FALSE(undeclared[2].reads());
  End(&undeclared[0]);
  EXPECT_TRUE(undeclared[2].reads());
}

TEST_F(IntakeTest, StreamsAreNeverRefused) {
  Call reading, unary[4], stream;
  ASSERT_TRUE(Enter(&reading, 32 * kMiB));
  for (Call& call : unary) ASSERT_TRUE(Enter(&call, 4 * kMiB));
  EXPECT_TRUE(Enter(&stream, 4 * kMiB, /*may_be_refused=*/false));
  EXPECT_EQ(intake_.waiting(), 5);
  End(&reading);
  EXPECT_TRUE(stream.reads());
}

// Regression: a thousand waiting streams blocked the polling thread for most of a second, since
// each arrival and end tried all of them.
TEST_F(IntakeTest, ThousandsThatWaitCostLittle) {
  // Given: many large ones, then many that may pass them if there is room.
  Call reading;
  ASSERT_TRUE(Enter(&reading, 28 * kMiB));
  std::vector<Call> calls(2000);
  const std::clock_t before = std::clock();
  for (size_t i = 0; i < calls.size(); ++i) {
    const int64_t bytes = (i < calls.size() / 2 ? 24 : 4) * kMiB;
    ASSERT_TRUE(Enter(&calls[i], bytes, /*may_be_refused=*/false));
  }
  EXPECT_EQ(intake_.waiting(), 2000);
  for (Call& call : calls) intake_.Leave(&call);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr double kSlower = 10;
#else
  constexpr double kSlower = 1;
#endif
  // It takes a tenth of a second; trying all of them takes ten.
  EXPECT_LT(static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC, 2 * kSlower);
}

TEST_F(IntakeTest, AMessageThatDoesNotArriveIsOverdue) {
  Call slow;
  ASSERT_TRUE(Enter(&slow, 24 * kMiB));
  clock_.Advance(54s);
  intake_.Sweep();
  EXPECT_TRUE(slow.overdue.ok());
  clock_.Advance(1s);
  intake_.Sweep();
  EXPECT_EQ(slow.overdue, absl::DeadlineExceededError(
                              "request: its message must arrive within 54 s, it did not"));
  // The reader has left already: Leave does nothing.
  intake_.Leave(&slow);
}

TEST_F(IntakeTest, WhileRoomIsShortPatienceIs) {
  Call idle[3];
  ASSERT_TRUE(Enter(&idle[0], 24 * kMiB));
  ASSERT_TRUE(Enter(&idle[1], 24 * kMiB));
  clock_.Advance(11s);
  intake_.Sweep();
  EXPECT_TRUE(idle[0].overdue.ok());
  clock_.Advance(1s);
  intake_.Sweep();
  EXPECT_EQ(idle[0].overdue,
            absl::ResourceExhaustedError("request: its message must arrive within 11 s while "
                                         "others wait for room, it did not, retry later"));
  // The waiting call reads as soon as the share is returned.
  idle[0].share.reset();
  intake_.Serve();
  EXPECT_TRUE(idle[1].reads());
}

TEST(Intake, TheDeclaredSizeIsADecimalNumber) {
  EXPECT_EQ(*ParseMessageBytes("0", 1000), 0);
  EXPECT_EQ(*ParseMessageBytes("1000", 1000), 1000);
  for (const char* text : {"", "-1", "+1", " 1", "1e3", "0x10", "12a", "1,000"}) {
    const absl::Status status = ParseMessageBytes(text, 1000).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("attnd-message-bytes must be a decimal number >= 0, got \""));
  }
  for (const char* text : {"1001", "99999999999999999999999999"}) {
    const absl::Status status = ParseMessageBytes(text, 1000).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status) && IsPermanent(status)) << text;
  }
}

}  // namespace
}  // namespace attnd
