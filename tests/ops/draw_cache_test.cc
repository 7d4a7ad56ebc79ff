// Tables that are kept for the next request: which, how many bytes, and not a part of one.
#include "kernels/ops/draw_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/plain/check_observer.h"

namespace attnd::testing {
namespace {

using Table = DrawCache::Table;

DrawParams Named(const std::string& name) { return {.seed = 1, .name = name}; }

// Of normals: 4096 bytes, and less than 1000 for the key and the lists.
const Shape kSmall = {32, 32};
constexpr int64_t kRoomForTwo = 2 * (4096 + 1000);

TEST(DrawCache, DrawsATableOnce) {
  DrawCache cache;
  const Table first = cache.Get(Named("a"), kSmall);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(*first, DrawTable(Named("a"), kSmall));
  const int64_t bytes = CachedDrawBytes();
  EXPECT_EQ(cache.Get(Named("a"), kSmall), first);
  EXPECT_EQ(CachedDrawBytes(), bytes);
}

TEST(DrawCache, EveryParameterMakesAnotherTable) {
  std::vector<std::pair<DrawParams, Shape>> tables;
  for (const Distribution distribution :
       {Distribution::kUniform, Distribution::kNormal, Distribution::kTruncatedNormal,
        Distribution::kGumbel, Distribution::kOrthogonalRows}) {
    DrawParams params = {.seed = 1, .name = "a", .suffix = "#1", .distribution = distribution};
    tables.emplace_back(params, Shape{3, 4});
    tables.emplace_back(params, Shape{4, 3});
    tables.emplace_back(params, Shape{1, 3, 4});
    params.name = "a#1", params.suffix = "";
    tables.emplace_back(params, Shape{3, 4});
    params.name = "b";
    tables.emplace_back(params, Shape{3, 4});
    params.seed = 2;
    tables.emplace_back(params, Shape{3, 4});
    params.low = -1;
    tables.emplace_back(params, Shape{3, 4});
    params.high = 2;
    tables.emplace_back(params, Shape{3, 4});
    params.deviation = 2;
    tables.emplace_back(params, Shape{3, 4});
    params.norms = RowNorms::kSqrtD;
    tables.emplace_back(params, Shape{3, 4});
  }
  DrawCache cache;
  for (int round = 0; round < 2; ++round) {
    for (const auto& [params, shape] : tables) {
      EXPECT_EQ(*cache.Get(params, shape), DrawTable(params, shape))
          << static_cast<int>(params.distribution) << params.name << params.suffix;
    }
  }
}

TEST(DrawCache, TheLeastRecentlyUsedLeavesFirst) {
  const int64_t before = CachedDrawBytes();
  {
    DrawCache cache(kRoomForTwo);
    const auto bytes = [&] { return CachedDrawBytes() - before; };
    const Table a = cache.Get(Named("a"), kSmall);
    const int64_t one = bytes();
    EXPECT_GT(one, 4096);
    const Table b = cache.Get(Named("b"), kSmall);
    EXPECT_EQ(bytes(), 2 * one);
    EXPECT_EQ(cache.Get(Named("a"), kSmall), a);
    const Table c = cache.Get(Named("c"), kSmall);
    EXPECT_EQ(bytes(), 2 * one);
    EXPECT_EQ(cache.Get(Named("a"), kSmall), a);
    EXPECT_EQ(cache.Get(Named("c"), kSmall), c);
    const Table again = cache.Get(Named("b"), kSmall);
    EXPECT_NE(again, b) << "kept, although it was used least recently";
    EXPECT_EQ(*again, *b);
    EXPECT_EQ(cache.Get(Named("c"), kSmall), c);
    EXPECT_NE(cache.Get(Named("a"), kSmall), a);
    EXPECT_EQ(bytes(), 2 * one);
    EXPECT_LE(2 * one, kRoomForTwo);
  }
  EXPECT_EQ(CachedDrawBytes(), before);
}

TEST(DrawCache, ATableAboveTheBoundLeavesTheOthers) {
  DrawCache cache(kRoomForTwo);
  const Table a = cache.Get(Named("a"), kSmall);
  const int64_t before = CachedDrawBytes();
  const Table large = cache.Get(Named("large"), {3, 1024});
  EXPECT_EQ(*large, DrawTable(Named("large"), {3, 1024}));
  EXPECT_EQ(CachedDrawBytes(), before);
  EXPECT_NE(cache.Get(Named("large"), {3, 1024}), large);
  EXPECT_EQ(cache.Get(Named("a"), kSmall), a);
}

TEST(DrawCache, HasRoomForTwoOfTheLargest) {
  const int64_t before = CachedDrawBytes();
  DrawCache cache;
  DrawParams params = {.name = "a", .distribution = Distribution::kUniform};
  const Table a = cache.Get(params, {kMostDrawn});
  params.name = "b";
  const Table b = cache.Get(params, {kMostDrawn});
  EXPECT_EQ(cache.Get(params, {kMostDrawn}), b);
  params.name = "a";
  EXPECT_EQ(cache.Get(params, {kMostDrawn}), a);
  EXPECT_LE(CachedDrawBytes() - before, int64_t{129} << 20);
}

// A part of a table must not serve the next request.
TEST(DrawCache, AStoppedDrawStoresNothing) {
  for (const Distribution distribution : {Distribution::kNormal, Distribution::kOrthogonalRows}) {
    DrawCache cache;
    const DrawParams params = {.seed = 1, .name = "a", .distribution = distribution};
    const Shape shape = {256, 64};
    const int64_t before = CachedDrawBytes();
    {
      int checks = 0;
      const CheckObserver observer([&] { return ++checks == 10; });
      const auto run = observer.NewRun();
      const RunScope scope(run.get());
      EXPECT_EQ(cache.Get(params, shape), nullptr);
      EXPECT_EQ(checks, 10);
      EXPECT_EQ(NewTable(params, shape), nullptr);
    }
    EXPECT_EQ(CachedDrawBytes(), before);
    const Table whole = cache.Get(params, shape);
    ASSERT_NE(whole, nullptr);
    EXPECT_EQ(*whole, DrawTable(params, shape));
  }
}

TEST(DrawCache, TwoDrawsAtOnceStoreOneTable) {
  const Shape shape = {64, 64};
  int64_t before = CachedDrawBytes();
  DrawCache alone;
  ASSERT_NE(alone.Get(Named("a"), shape), nullptr);
  const int64_t one = CachedDrawBytes() - before;
  before = CachedDrawBytes();

  // Both wait at their first check point, as they begin to draw.
  Meeting drawing;
  static thread_local bool has_come;
  const CheckObserver observer([&] {
    if (!std::exchange(has_come, true)) {
      EXPECT_TRUE(drawing.Come()) << "one draws at a time";
    }
    return false;
  });
  DrawCache cache;
  Table tables[2];
  std::vector<std::thread> threads;
  for (Table& table : tables) {
    threads.emplace_back([&] {
      const auto run = observer.NewRun();
      const RunScope scope(run.get());
      table = cache.Get(Named("a"), shape);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_NE(tables[0], nullptr);
  EXPECT_EQ(*tables[0], DrawTable(Named("a"), shape));
  EXPECT_EQ(tables[0], tables[1]);
  EXPECT_EQ(cache.Get(Named("a"), shape), tables[0]);
  EXPECT_EQ(CachedDrawBytes() - before, one);
}

}  // namespace
}  // namespace attnd::testing
