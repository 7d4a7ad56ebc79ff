// Makes plans that would block the polling thread for too long.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "kernels/core/mutex.h"
#include "kernels/core/run_control.h"
#include "server/heartbeat.h"
#include "server/turns.h"

namespace attnd {

// A thread that runs one job after the other; clients take turns by the work of their jobs. Submit
// never blocks: the number of waiting jobs is bounded, and one client has at most half of the
// places. Jobs of streams have separate places, enough for all streams, since each has one job at a
// time.
//
// A job whose control is cancelled still runs, so that its caller is answered: it runs next and
// returns soon. Thread safe.
class Planner {
 public:
  struct Options {
    int64_t max_waiting = 256;
    int64_t max_streams = 2048;  // waiting jobs of streams
  };
  struct Job {
    std::string client;
    int64_t work = 0;  // as PlanWork
    bool is_of_stream = false;
    std::shared_ptr<RunControl> control;  // never null; Cancel makes the job return soon
    std::function<void()> run;            // never throws; on the planner's thread
  };

  explicit Planner(const Options& options) : options_(options) {}
  // Close.
  ~Planner();

  // RESOURCE_EXHAUSTED: no thread.
  [[nodiscard]] absl::Status Start();
  // RESOURCE_EXHAUSTED: no place, `job` is unchanged.
  absl::Status Submit(Job& job);
  // Cancels the waiting jobs and returns when all have run.
  void Close();

  int64_t waiting() const;

  // For the watchdog, which the planner outlives.
  Watchdog::Part part() const { return Watchdog::PartOf("planner", &heart_); }

 private:
  struct Waiting {
    Job job;
    Turns::Client* client = nullptr;
  };

  void Loop();
  absl::Status Check(const Job& job) const ATTND_REQUIRES(mu_);
  Job Take() ATTND_REQUIRES(mu_);

  const Options options_;

  mutable Mutex mu_;
  CondVar wake_;
  std::deque<Waiting> waiting_ ATTND_GUARDED_BY(mu_);  // oldest first
  Turns turns_ ATTND_GUARDED_BY(mu_);
  bool closed_ ATTND_GUARDED_BY(mu_) = false;
  std::shared_ptr<RunControl> running_ ATTND_GUARDED_BY(mu_);

  Heart heart_;

  std::thread thread_;
};

}  // namespace attnd
