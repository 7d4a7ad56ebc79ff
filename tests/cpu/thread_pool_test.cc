#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>
#include <vector>

namespace attnd {
namespace {

TEST(ThreadPool, RunsEveryItemOnceOnKnownThreads) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t items : {0, 1, 2, 63, 1000}) {
      std::vector<std::atomic<int>> runs(items);
      std::atomic<bool> known = true;
      pool.ParallelFor(items, /*parallel=*/true, [&](int64_t item, int thread) {
        ++runs[item];
        if (thread < 0 || thread >= threads) known = false;
      });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
      EXPECT_TRUE(known);
    }
  }
}

TEST(ThreadPool, DrawsItemsInIndexOrder) {
  ThreadPool pool(1);
  std::vector<int64_t> order;
  pool.ParallelFor(5, /*parallel=*/true, [&](int64_t item, int) { order.push_back(item); });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST(ThreadPool, SerialWorkStaysOnTheCaller) {
  ThreadPool pool(3);
  const auto caller = std::this_thread::get_id();
  pool.ParallelFor(100, /*parallel=*/false, [&](int64_t, int thread) {
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(ThreadPool, TwoThreadsReallyWorkAtTheSameTime) {
  ThreadPool pool(2);
  std::atomic<int> arrived = 0;
  // Each item waits for the other: with one thread this would never end.
  pool.ParallelFor(2, /*parallel=*/true, [&](int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

TEST(ThreadPool, ManyShortJobsNeverMixUp) {
  // A worker that wakes up late must not run a finished job's function: each has its own counter.
  ThreadPool pool(3);
  for (int job = 0; job < 20000; ++job) {
    std::atomic<int64_t> sum = 0;
    const int64_t items = job % 5;
    pool.ParallelFor(items, /*parallel=*/true, [&](int64_t item, int) { sum += item + 1; });
    ASSERT_EQ(sum, items * (items + 1) / 2);
  }
}

TEST(ThreadPool, WakesSleepingWorkers) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // well beyond the spinning
    std::atomic<int> arrived = 0;
    pool.ParallelFor(2, /*parallel=*/true, [&](int64_t, int) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
  }
}

TEST(ThreadPool, WaitsForAnItemThatOutlastsTheSpinning) {
  ThreadPool pool(2);
  std::atomic<int> arrived = 0, done = 0;
  pool.ParallelFor(2, /*parallel=*/true, [&](int64_t, int thread) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();  // so that the worker has one of the two
    if (thread != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ++done;
  });
  EXPECT_EQ(done, 2);
}

TEST(ThreadPool, FlushesDenormalsDuringTheCallOnly) {
#if defined(__SSE2__)
  ThreadPool pool(2);
  const volatile float tiny = 1e-38f, tenth = 0.1f;
  ASSERT_NE(tiny * tenth, 0.0f);
  for (const bool parallel : {false, true}) {
    std::atomic<int> nonzero = 0;
    pool.ParallelFor(64, parallel, [&](int64_t, int) {
      if (tiny * tenth != 0.0f) ++nonzero;
    });
    EXPECT_EQ(nonzero, 0);
    EXPECT_NE(tiny * tenth, 0.0f);
  }
#endif
}

TEST(ThreadPool, CountsLaunches) {
  ThreadPool pool(2);
  EXPECT_EQ(pool.launches(), 0);
  pool.ParallelFor(10, /*parallel=*/true, [](int64_t, int) {});
  pool.ParallelFor(10, /*parallel=*/false, [](int64_t, int) {});
  EXPECT_EQ(pool.launches(), 2);
}

TEST(ThreadPool, HandsExceptionsToTheCaller) {
  ThreadPool pool(2);
  const auto throws = [](int64_t item, int) {
    if (item == 7) throw std::runtime_error("seven");
  };
  EXPECT_THROW(pool.ParallelFor(20, /*parallel=*/true, throws), std::runtime_error);
  std::atomic<int> runs = 0;
  pool.ParallelFor(20, /*parallel=*/true, [&](int64_t, int) { ++runs; });
  EXPECT_EQ(runs, 20);
}

}  // namespace
}  // namespace attnd
