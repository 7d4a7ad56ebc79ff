// What is remembered of clients.
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

}  // namespace
}  // namespace attnd
