// Shares of the byte budget: taken, resized, moved, returned, waited for.
#include "server/budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace attnd {
namespace {

TEST(Budget, SharesAddUpAndComeBack) {
  Budget budget(100);
  std::optional<Budget::Share> a = budget.Take(60);
  ASSERT_TRUE(a.has_value());
  EXPECT_FALSE(budget.Take(41).has_value());
  std::optional<Budget::Share> b = budget.Take(40);
  ASSERT_TRUE(b.has_value());
  EXPECT_TRUE(budget.Take(0).has_value());
  EXPECT_EQ(budget.used(), 100);

  EXPECT_FALSE(a->Resize(61));
  EXPECT_EQ(a->bytes(), 60);
  EXPECT_TRUE(a->Resize(20));
  EXPECT_TRUE(b->Resize(80));
  EXPECT_EQ(budget.used(), 100);

  a = Budget::Share();
  EXPECT_EQ(budget.used(), 80);
  b.reset();
  EXPECT_EQ(budget.used(), 0);
}

TEST(Budget, AMovedShareIsGivenBackOnce) {
  Budget budget(100);
  {
    Budget::Share a = *budget.Take(30);
    Budget::Share b = std::move(a);
    EXPECT_EQ(b.bytes(), 30);
    b = *budget.Take(50);
    EXPECT_EQ(budget.used(), 50);
  }
  EXPECT_EQ(budget.used(), 0);
}

TEST(Budget, AShareOfNoBudgetCannotGrow) {
  Budget::Share none;
  EXPECT_TRUE(none.Resize(0));
  EXPECT_FALSE(none.Resize(1));
}

TEST(Budget, AShareMayOutliveIt) {
  Budget::Share share;
  {
    Budget budget(10);
    share = *budget.Take(10);
  }
  EXPECT_TRUE(share.Resize(3));
}

TEST(Budget, AWaiterIsWokenWhenThereIsRoom) {
  Budget budget(100);
  std::optional<Budget::Share> all = budget.Take(100);
  ASSERT_FALSE(budget.TakeOrWait(10).has_value());
  std::thread owner([&] { all.reset(); });
  EXPECT_TRUE(budget.WaitForRoom());
  EXPECT_TRUE(budget.TakeOrWait(10).has_value());
  owner.join();

  std::thread closer([&] { budget.Close(); });
  EXPECT_FALSE(budget.WaitForRoom());
  closer.join();
}

// No share is lost or counted twice, and a waiter is always woken in the end.
TEST(BudgetThreads, TakersAndAWaiter) {
  Budget budget(1000);
  constexpr int kRounds = 2000;
  std::vector<std::thread> takers;
  for (int t = 0; t < 3; ++t) {
    takers.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        if (std::optional<Budget::Share> share = budget.Take(i % 400 + t)) {
          (void)share->Resize(i % 900);
          ASSERT_LE(budget.used(), 1000);
        }
      }
    });
  }
  std::atomic<int> served = 0;
  std::thread waiter([&] {
    while (served < 200) {
      while (!budget.TakeOrWait(1000).has_value()) {
        if (!budget.WaitForRoom()) return;
      }
      served += 1;
    }
  });
  for (std::thread& taker : takers) taker.join();
  waiter.join();
  EXPECT_EQ(served, 200);
  EXPECT_EQ(budget.used(), 0);
}

}  // namespace
}  // namespace attnd
