// Turns between clients, and how long clients are remembered.
#include "server/turns.h"

#include <gtest/gtest.h>

#include <string>

namespace attnd {
namespace {

TEST(Turns, IdleClientsAreForgottenOnceThereAreMany) {
  Turns turns;
  Turns::Client* const waits = turns.Enter("waits");
  for (size_t i = 0; i < 5 * Turns::kMostIdle; ++i) {
    turns.Leave(turns.Enter(std::to_string(i)));
    ASSERT_LE(turns.size(), Turns::kMostIdle + 2);
  }
  EXPECT_EQ(turns.Waiting("waits"), 1);
  EXPECT_EQ(turns.Enter("waits"), waits);
  EXPECT_EQ(turns.Largest(), waits);
}

TEST(Turns, OneLongRequestCostsTheTurnsOfSecondsNotOfMinutes) {
  Turns turns;
  Turns::Client* const long_one = turns.Enter("long");
  turns.Take(long_one, 600);
  EXPECT_DOUBLE_EQ(long_one->served, Turns::kMostDebtSeconds);
}

// With more clients virtual time passes more slowly, so the debt is smaller.
TEST(Turns, TheDebtOfALongRequestIsMadeUpInSomeSecondsAmongMany) {
  Turns turns;
  for (int i = 0; i < 3; ++i) turns.Enter(std::to_string(i));
  Turns::Client* const long_one = turns.Enter("long");
  turns.Take(long_one, 600);
  EXPECT_DOUBLE_EQ(long_one->served, Turns::kMostDebtSeconds / 4);
  for (int i = 3; i < 100; ++i) turns.Enter(std::to_string(i));
  Turns::Client* const other = turns.Enter("other");
  turns.Take(other, 600);
  EXPECT_DOUBLE_EQ(other->served, Turns::kLeastDebtSeconds);
  // A client that neither waits nor runs does not count.
  for (int i = 0; i < 100; ++i) turns.Leave(turns.Enter(std::to_string(i)));
}

// Regression: the record of a client was removed as idle while its batch ran.
TEST(Turns, AClientThatRunsIsRemembered) {
  Turns turns;
  Turns::Client* const runs = turns.Enter("runs");
  turns.Open(runs);
  turns.Leave(runs);
  for (size_t i = 0; i < 2 * Turns::kMostIdle; ++i) turns.Leave(turns.Enter(std::to_string(i)));
  EXPECT_EQ(turns.Enter("runs"), runs);
  turns.Leave(runs);
  turns.End(runs, 0);
  EXPECT_EQ(runs->running, 0);
  for (size_t i = 0; i < 2 * Turns::kMostIdle; ++i) turns.Leave(turns.Enter(std::to_string(i)));
  EXPECT_LE(turns.size(), Turns::kMostIdle + 1);
}

TEST(Turns, ARunningClientHasNotPausedAndKeepsItsTurn) {
  Turns turns;
  Turns::Client* const runs = turns.Enter("runs");
  turns.Take(runs, 0.25);
  turns.Open(runs);
  turns.Leave(runs);
  Turns::Client* const other = turns.Enter("other");
  turns.Take(other, 1);
  turns.Take(other, 1);
  EXPECT_EQ(turns.Enter("runs"), runs);
  EXPECT_DOUBLE_EQ(runs->served, 0.25);
  turns.Leave(runs);
  turns.End(runs, 0);
  // After a pause it starts where the last one served began, at 1.
  EXPECT_DOUBLE_EQ(turns.Enter("runs")->served, 1);
}

TEST(Turns, LongBatchesAreCountedUntilTheyEnd) {
  Turns turns;
  Turns::Client* const client = turns.Enter("a");
  for (const double seconds : {0.06, 30.0}) {
    turns.Open(client);
    turns.Begin(client, seconds);
  }
  EXPECT_EQ(client->longer, (Places::Counts{2, 2, 1, 1}));
  turns.End(client, 30);
  EXPECT_EQ(client->longer, (Places::Counts{1, 1, 0, 0}));
  turns.End(client, 0.06);
  EXPECT_EQ(client->longer, Places::Counts{});
  EXPECT_EQ(client->running, 0);
}

TEST(Turns, TheLargestHasTheMostWaitingRequests) {
  Turns turns;
  EXPECT_EQ(turns.Largest(), nullptr);
  Turns::Client* const one = turns.Enter("one");
  turns.Leave(one);
  EXPECT_EQ(turns.Largest(), nullptr);
  turns.Enter("one");
  Turns::Client* const two = turns.Enter("two");
  turns.Enter("two");
  EXPECT_EQ(turns.Largest(), two);
  turns.Enter("one");
  turns.Enter("one");
  EXPECT_EQ(turns.Largest(), one);
  EXPECT_EQ(turns.Waiting("two"), 2);
  EXPECT_EQ(turns.Waiting("three"), 0);
}

}  // namespace
}  // namespace attnd
