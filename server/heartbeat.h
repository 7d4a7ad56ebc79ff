// Whether the threads that every request needs still make progress.
#pragma once

#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/core/mutex.h"

namespace attnd {

// What a thread is doing, written by the thread and read by the watchdog. A few relaxed stores for
// each piece of work. One thread writes, any thread reads.
class Heart {
 public:
  // Called by the thread itself when it starts: from then on its processor time counts as progress,
  // too, so that a long piece of work needs no beats. Without it only beats count.
  void Attach() noexcept;

  // Work began. `what` outlives the heart: a method id of the registry or a literal. `requests`,
  // `tokens`: of the batch; 0: does not apply.
  void Busy(const char* what, int64_t requests = 0, int64_t tokens = 0) noexcept {
    requests_.store(requests, std::memory_order_relaxed);
    tokens_.store(tokens, std::memory_order_relaxed);
    what_.store(what, std::memory_order_relaxed);
    Beat();
  }
  // The work made progress.
  void Beat() noexcept {
    beats_.store(beats_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void Idle() noexcept { what_.store(nullptr, std::memory_order_relaxed); }

  bool is_busy() const noexcept { return what_.load(std::memory_order_relaxed) != nullptr; }
  // Beats plus nanoseconds of processor time; any change is progress.
  int64_t progress() const noexcept;
  // "local, 3 requests, 4096 tokens"; empty: idle.
  std::string doing() const;

 private:
  std::atomic<const char*> what_{nullptr};
  std::atomic<int64_t> beats_{0}, requests_{0}, tokens_{0};
  std::atomic<bool> has_clock_{false};
  std::atomic<clockid_t> clock_{0};
};

// Looks at parts of the process every kPeriod. A part that is busy and makes no progress for
// kStuckTicks looks in a row is stuck. Looks are counted instead of seconds: a process that was
// stopped or got no processor time has not looked either, and its parts are not stuck.
class Watchdog {
 public:
  static constexpr std::chrono::milliseconds kPeriod{500};
  static constexpr int kStuckTicks = 7;  // about 3.5 s

  // One thread, or several that can only be stuck together. The functions are called on the
  // watchdog's thread, and must neither block nor throw.
  struct Part {
    std::string name;                    // "lane 0", "lane 6 of cuda:0"; a label of metrics
    std::function<bool()> is_busy;       // false: it need not make progress
    std::function<int64_t()> progress;   // any change is progress
    std::function<std::string()> doing;  // what it is doing; null: unknown
  };
  // `heart` outlives the watchdog.
  static Part PartOf(std::string name, const Heart* heart);

  struct Options {
    // A part that is stuck for this long ends the process; 0: never.
    std::chrono::milliseconds exit_after{0};
    std::function<void()> exit;         // does not return, except in tests
    std::function<void()> before_look;  // null: nothing
  };

  explicit Watchdog(Options options);
  ~Watchdog();  // stops

  // Before Start.
  void Watch(Part part);

  // Starts a thread that looks. RESOURCE_EXHAUSTED: no thread.
  [[nodiscard]] absl::Status Start();
  void Stop();

  // One look. For tests, with a watchdog that was not started.
  void Look();

  // OK, or UNAVAILABLE with what is stuck: "lane 0 is stuck for 5 s in local, 3 requests, 96
  // tokens". Waits up to a second for a look if the last one is long ago. Any thread.
  absl::Status Check() const;

  // How long each part has been stuck; 0: it is not. Any thread.
  std::vector<std::pair<std::string, double>> stuck_seconds() const;

 private:
  struct Watched {
    Part part;
    int64_t progress = 0;
    int silent = 0;  // looks in a row that saw it busy at the same progress
    bool is_reported = false;
  };
  static bool IsStuck(const Watched& one) { return one.silent >= kStuckTicks; }
  static std::string Describe(const Watched& one);
  void Update(Watched* one) ATTND_REQUIRES(mu_);
  void Loop();

  const Options options_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  std::vector<Watched> parts_ ATTND_GUARDED_BY(mu_);
  int64_t looks_ ATTND_GUARDED_BY(mu_) = 0;
  std::chrono::steady_clock::time_point last_look_ ATTND_GUARDED_BY(mu_);
  bool looks_alone_ ATTND_GUARDED_BY(mu_) = false;  // the thread runs
  bool is_stopped_ ATTND_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace attnd
