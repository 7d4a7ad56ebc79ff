// Plans that take longer than the polling thread may stand still.
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
// never blocks: what waits is bounded, and one client has at most half of the places. Jobs of
// streams have places of their own, enough for all streams: one has at most one job at a time.
//
// A job whose control is cancelled is still run, so that its caller is answered: it is the next,
// and returns soon. Thread safe.
class Planner {
 public:
  struct Options {
    int64_t max_waiting = 256;
    int64_t max_streams = 2048;  // that wait
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
  // RESOURCE_EXHAUSTED: no place, `job` is left as it was.
  absl::Status Submit(Job& job);
  // Cancels what waits, ends when all has run.
  void Close();

  int64_t waiting() const;

  // For the watchdog, which it outlives.
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
