// How many batches of each length may run at a time.
#include "server/places.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

TEST(Places, TheLongerTheFewer) {
  const Places six(6), two(2), one(1);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(six.Longer(i), 5 - static_cast<int>(i));
    EXPECT_EQ(six.LongerOfClient(i), std::max(1, 4 - static_cast<int>(i)));
    EXPECT_EQ(two.Longer(i), 1);
    EXPECT_EQ(one.Longer(i), 1);
    EXPECT_EQ(one.LongerOfClient(i), 1);
  }
}

TEST(Places, ShorterWorkFindsAPlaceBesideLongerWork) {
  const Places places(6);
  Places::Counts all{}, own{};
  EXPECT_EQ(places.Longest(all, own), std::numeric_limits<double>::infinity());
  Places::Add(600, 1, &all);
  EXPECT_EQ(places.Longest(all, own), std::numeric_limits<double>::infinity());
  Places::Add(600, 1, &all);
  EXPECT_EQ(places.Longest(all, own), 20);
  Places::Add(20, 1, &all);
  EXPECT_EQ(places.Longest(all, own), 1);
  Places::Add(1, 1, &all);
  EXPECT_EQ(places.Longest(all, own), 0.05);
  Places::Add(0.05, 1, &all);
  EXPECT_EQ(places.Longest(all, own), 0.005);
  Places::Add(0.05, -1, &all);
  EXPECT_EQ(places.Longest(all, own), 0.05);
  Places::Add(600, -1, &all);
  EXPECT_EQ(places.Longest(all, own), std::numeric_limits<double>::infinity());
}

TEST(Places, OneClientLeavesOneOfEachKind) {
  const Places places(6);
  Places::Counts counts{};
  Places::Add(600, 1, &counts);
  EXPECT_EQ(places.Longest(counts, counts), 20);
  Places::Add(20, 1, &counts);
  EXPECT_EQ(places.Longest(counts, counts), 1);
  Places::Add(0.1, 1, &counts);
  EXPECT_EQ(places.Longest(counts, counts), 0.05);
  EXPECT_EQ(places.Longest(counts, Places::Counts{}), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace attnd
