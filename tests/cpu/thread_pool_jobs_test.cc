// Several jobs on one pool: their order, stopping, and that none starves.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace attnd {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds kForever = 1h;  // a patience that never ends

// Waits for what another thread does; false when that takes longer than a test may.
bool Await(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// What happened, in order.
class Log {
 public:
  void Add(const std::string& event) {
    const std::lock_guard lock(mu_);
    events_.push_back(event);
  }
  std::vector<std::string> events() {
    const std::lock_guard lock(mu_);
    return events_;
  }

 private:
  std::mutex mu_;
  std::vector<std::string> events_;
};

// Callers of jobs whose first item each caller holds until `open`, so that the rest are left to the
// pool's worker, which is held up by an item of the least urgent job until then.
class Held {
 public:
  explicit Held(std::chrono::nanoseconds patience) : pool_(2, patience) {
    std::atomic<int> begun = 0;
    auto* count = &begun;
    callers_.emplace_back([this, count] {
      pool_.ParallelFor(
          2, /*parallel=*/true,
          [&](int64_t, int) {
            ++*count;
            held_ = Await([&] { return released_.load(); }) && held_;
          },
          &last_);
    });
    EXPECT_TRUE(Await([&] { return begun == 2; }));
  }

  // A job of `items` items more than its caller holds, each of which takes at least so long.
  void Add(const std::string& name, RunControl* run, int64_t items,
           std::chrono::milliseconds each = 0ms) {
    std::atomic<bool> begun = false;
    callers_.emplace_back([this, name, run, items, each, flag = &begun] {
      bool is_first = true;
      pool_.ParallelFor(
          items + 1, /*parallel=*/true,
          [&, this](int64_t, int thread) {
            if (thread == 0 && is_first) {
              is_first = false;
              *flag = true;
              held_ = Await([&] { return open_.load(); }) && held_;
            } else {
              log_.Add(name);
              std::this_thread::sleep_for(each);
              ++logged_;
            }
          },
          run);
    });
    EXPECT_TRUE(Await([&] { return begun.load(); }));
  }

  // Lets the worker choose until `items` are done.
  std::vector<std::string> Run(int items) {
    released_ = true;
    EXPECT_TRUE(Await([&] { return logged_ >= items; }));
    const std::vector<std::string> events = log_.events();
    open_ = true;
    for (std::thread& caller : callers_) caller.join();
    EXPECT_TRUE(held_);
    return events;
  }

 private:
  ThreadPool pool_;
  RunControl last_{/*priority=*/-100};
  Log log_;
  std::atomic<bool> released_ = false, open_ = false, held_ = true;
  std::atomic<int> logged_ = 0;
  std::vector<std::thread> callers_;
};

TEST(ThreadPoolJobs, WorkersTakeTheMostUrgentItem) {
  RunControl low(/*priority=*/-1, /*predicted_seconds=*/1), long_run(0, 100), short_run(0, 10),
      high(1, 1000);
  Held held(kForever);
  held.Add("low", &low, 2);
  held.Add("long", &long_run, 2);
  held.Add("short", &short_run, 2);
  held.Add("high", &high, 2);
  EXPECT_EQ(held.Run(8), (std::vector<std::string>{"high", "high", "short", "short", "long", "long",
                                                   "low", "low"}));
}

TEST(ThreadPoolJobs, TheRestOfAPredictionFallsByTheTimeSpent) {
  RunControl begun(0, 100), fresh(0, 60);
  begun.AddSpent(100s);  // of two threads: 50 s are left
  Held held(kForever);
  held.Add("fresh", &fresh, 2);
  held.Add("begun", &begun, 2);
  EXPECT_EQ(held.Run(4), (std::vector<std::string>{"begun", "begun", "fresh", "fresh"}));
}

// One item each time that it was passed over for as long as the patience, here none.
TEST(ThreadPoolJobs, ItemsThatWereLeftBehindGetTheirTurn) {
  RunControl urgent(1), patient(0);
  Held held(0ns);
  held.Add("patient", &patient, 1);
  held.Add("urgent", &urgent, 3);
  EXPECT_EQ(held.Run(4), (std::vector<std::string>{"urgent", "patient", "urgent", "urgent"}));
}

// It goes on for an eighth of the patience, and for twice the patience once its run has waited for
// as long as it takes.
TEST(ThreadPoolJobs, TheLongerARunWaitedTheMoreItemsItGetsInItsTurn) {
  const auto order = [](RunControl* patient) {
    RunControl urgent(1);
    Held held(400ms);
    held.Add("patient", patient, 3, 60ms);
    held.Add("urgent", &urgent, 2, 400ms);
    return held.Run(5);
  };
  RunControl begun(0, 10);
  EXPECT_EQ(order(&begun),
            (std::vector<std::string>{"urgent", "patient", "urgent", "patient", "patient"}));
  // Its items take a quarter of its turn. A busy machine may delay them beyond it, not every time.
  const std::vector<std::string> expected = {"urgent", "patient", "patient", "patient", "urgent"};
  std::vector<std::string> found;
  for (int tried = 0; tried < 5 && found != expected; ++tried) {
    RunControl starved(0, 10);
    starved.AddWaited(10s);
    found = order(&starved);
  }
  EXPECT_EQ(found, expected);
}

// Each item began the time anew: it went on until nothing was left.
TEST(ThreadPoolJobs, ItsTurnEndsHoweverShortTheItemsAre) {
  RunControl urgent(1), patient(0, 1000);
  Held held(160ms);
  held.Add("patient", &patient, 100, 5ms);
  held.Add("urgent", &urgent, 2, 200ms);
  std::vector<std::string> events = held.Run(102);
  const auto second = std::find(events.begin() + 1, events.end(), "urgent");
  // Of the 100 items 20 ms take four.
  EXPECT_GE(second - events.begin(), 2);
  EXPECT_LE(second - events.begin(), 50);
}

// A pool of one thread: an urgent caller finds it busy with a long item.
TEST(ThreadPoolJobs, AtACheckPointACallerLetsTheMoreUrgentFinish) {
  ThreadPool pool(1, kForever);
  RunControl slow(0, 100), fast(0, 1);
  Log log;
  std::atomic<bool> slow_begun = false, fast_begun = false;
  std::thread slow_caller([&] {
    pool.ParallelFor(
        1, /*parallel=*/true,
        [&](int64_t, int) {
          slow_begun = true;
          EXPECT_TRUE(Await([&] { return fast_begun.load(); }));
          EXPECT_FALSE(CheckPoint());
          log.Add("slow");
        },
        &slow);
  });
  EXPECT_TRUE(Await([&] { return slow_begun.load(); }));
  pool.ParallelFor(
      3, /*parallel=*/true,
      [&](int64_t, int) {
        fast_begun = true;
        std::this_thread::sleep_for(5ms);  // time in which the other would go on
        log.Add("fast");
      },
      &fast);
  slow_caller.join();
  EXPECT_EQ(log.events(), (std::vector<std::string>{"fast", "fast", "fast", "slow"}));
}

TEST(ThreadPoolJobs, ACallerThatWaitedForItsPatienceGoesOn) {
  ThreadPool pool(1, 1ms);
  RunControl slow(0, 100), fast(0, 1);
  std::atomic<bool> slow_begun = false, fast_begun = false, slow_done = false;
  std::thread slow_caller([&] {
    pool.ParallelFor(
        1, /*parallel=*/true,
        [&](int64_t, int) {
          slow_begun = true;
          EXPECT_TRUE(Await([&] { return fast_begun.load(); }));
          EXPECT_FALSE(CheckPoint());
          slow_done = true;
        },
        &slow);
  });
  EXPECT_TRUE(Await([&] { return slow_begun.load(); }));
  // The urgent item ends only after the other has gone on.
  pool.ParallelFor(
      1, /*parallel=*/true,
      [&](int64_t, int) {
        fast_begun = true;
        EXPECT_TRUE(Await([&] { return slow_done.load(); }));
      },
      &fast);
  slow_caller.join();
}

// The worker is inside an item of the slow job, and the fast one needs two threads at once.
TEST(ThreadPoolJobs, AtACheckPointAWorkerRunsMoreUrgentItemsOnTop) {
  ThreadPool pool(2, kForever);
  RunControl slow(0, 100), fast(0, 1);
  std::atomic<int> slow_begun = 0, fast_begun = 0, thread_of_worker = 0;
  std::atomic<bool> fast_done = false;
  std::thread slow_caller([&] {
    pool.ParallelFor(
        2, /*parallel=*/true,
        [&](int64_t, int) {
          ++slow_begun;
          EXPECT_TRUE(Await([&] {
            EXPECT_FALSE(CheckPoint());
            return fast_done.load();
          }));
        },
        &slow);
  });
  EXPECT_TRUE(Await([&] { return slow_begun == 2; }));
  pool.ParallelFor(
      2, /*parallel=*/true,
      [&](int64_t, int thread) {
        ++fast_begun;
        if (thread != 0) thread_of_worker = thread;
        EXPECT_TRUE(Await([&] { return fast_begun == 2; }));
      },
      &fast);
  fast_done = true;
  slow_caller.join();
  EXPECT_EQ(thread_of_worker, 1);
}

TEST(ThreadPoolJobs, AStoppedJobSkipsItemsThatHaveNotBegun) {
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    RunControl run;
    std::atomic<int> runs = 0, stopped = 0;
    pool.ParallelFor(
        1000, /*parallel=*/true,
        [&](int64_t, int) {
          if (++runs == 10) run.Cancel();
          if (CheckPoint()) ++stopped;
        },
        &run);
    EXPECT_GE(runs, 10);
    EXPECT_LE(runs, 9 + threads);
    EXPECT_GE(stopped, 1);
    // A later job may read what was left out.
    for (const bool parallel : {false, true}) {
      pool.ParallelFor(
          5, parallel, [&](int64_t, int) { ADD_FAILURE(); }, &run);
    }
    runs = 0;
    pool.ParallelFor(100, /*parallel=*/true, [&](int64_t, int) { ++runs; });
    EXPECT_EQ(runs, 100);
  }
}

TEST(ThreadPoolJobs, AParkedCallerThatIsStoppedReturns) {
  ThreadPool pool(1, 1ms);
  RunControl slow(0, 100), fast(0, 1);
  std::atomic<bool> slow_begun = false, slow_returned = false;
  std::thread slow_caller([&] {
    pool.ParallelFor(
        1, /*parallel=*/true,
        [&](int64_t, int) {
          slow_begun = true;
          EXPECT_TRUE(Await([] { return CheckPoint(); }));
        },
        &slow);
    slow_returned = true;
  });
  EXPECT_TRUE(Await([&] { return slow_begun.load(); }));
  pool.ParallelFor(
      1, /*parallel=*/true,
      [&](int64_t, int) {
        slow.Cancel();
        EXPECT_TRUE(Await([&] { return slow_returned.load(); }));
      },
      &fast);
  slow_caller.join();
}

TEST(ThreadPoolJobs, AnExceptionReachesTheCallerOfItsJobOnly) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> thrown = 0, runs = 0;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      RunControl run(0, 1 + caller);
      for (int round = 0; round < 50; ++round) {
        try {
          pool.ParallelFor(
              20, /*parallel=*/true,
              [&](int64_t item, int) {
                CheckPoint();
                if (caller % 2 == 0 && item == 7) throw std::runtime_error("seven");
                if (caller % 2 == 1) ++runs;
              },
              &run);
        } catch (const std::runtime_error&) {
          ++thrown;
          EXPECT_EQ(caller % 2, 0);
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(thrown, 2 * 50);
  EXPECT_EQ(runs, 2 * 50 * 20);
}

// More callers than places, of all urgencies and lengths, some stopped: every item of the others
// runs once, and a thread number is never in use twice inside one job.
TEST(ThreadPoolJobs, ManyCallersKeepTheirItemsAndThreadsApart) {
  ThreadPool pool(4, 50us);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 20; ++caller) {
    callers.emplace_back([&, caller] {
      for (int round = 0; round < 20; ++round) {
        RunControl run(caller % 3, caller);
        const bool stops = caller % 5 == 4;
        const int64_t items = 1 + (caller * 7 + round * 13) % 40;
        std::vector<std::atomic<int>> runs(items), inside(4);
        pool.ParallelFor(
            items, /*parallel=*/true,
            [&](int64_t item, int thread) {
              EXPECT_EQ(inside[thread]++, 0);
              ++runs[item];
              for (int i = 0; i < 20; ++i) EXPECT_TRUE(!CheckPoint() || stops);
              if (stops && item == items / 2) run.Cancel();
              --inside[thread];
            },
            &run);
        for (const auto& count : runs) EXPECT_TRUE(count == 1 || (stops && count == 0));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadPoolJobs, CountsTheTimeOfItemsForTheirRun) {
  ThreadPool pool(2);
  RunControl run(0, 100);
  pool.ParallelFor(
      4, /*parallel=*/true, [&](int64_t, int) { std::this_thread::sleep_for(2ms); }, &run);
  EXPECT_GE(run.spent_seconds(), 0.008);
  EXPECT_LT(run.RemainingSeconds(2), 100);
}

}  // namespace
}  // namespace attnd
