#include "server/planner.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "server/thread.h"

namespace attnd {
namespace {

// The most that a step of PlanWork takes, to convert work to the seconds of turns.
constexpr double kSecondsPerStep = 1e-6;

}  // namespace

Planner::~Planner() { Close(); }

absl::Status Planner::Start() {
  absl::StatusOr<std::thread> thread = StartThread("planner", [this] { Loop(); });
  ATTND_RETURN_IF_ERROR(thread.status());
  thread_ = *std::move(thread);
  return absl::OkStatus();
}

absl::Status Planner::Check(const Job& job) const {
  int64_t all = 0, own = 0;
  for (const Waiting& other : waiting_) {
    if (other.job.is_of_stream != job.is_of_stream) continue;
    all += 1;
    own += other.client->name == job.client ? 1 : 0;
  }
  const int64_t most = job.is_of_stream ? options_.max_streams : options_.max_waiting;
  if (!closed_ && all < most && 2 * own < most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("request: ", all,
                                                   " requests wait to be planned, ", own,
                                                   " of them from this address, retry later"));
}

absl::Status Planner::Submit(Job& job) {
  assert(job.control != nullptr);
  {
    const MutexLock lock(&mu_);
    ATTND_RETURN_IF_ERROR(Check(job));
    // What may throw for lack of memory comes first.
    Waiting& place = waiting_.emplace_back();
    try {
      place.client = turns_.Enter(job.client);
    } catch (...) {
      waiting_.pop_back();
      throw;
    }
    place.job = std::move(job);
  }
  wake_.NotifyOne();
  return absl::OkStatus();
}

// The oldest cancelled job, else the oldest of the client whose turn it is.
Planner::Job Planner::Take() {
  auto next = waiting_.begin();
  for (auto it = next; it != waiting_.end(); ++it) {
    if (it->job.control->stopped()) {
      next = it;
      break;
    }
    if (it->client->served < next->client->served) next = it;
  }
  Job job = std::move(next->job);
  turns_.Take(next->client, kSecondsPerStep * static_cast<double>(job.work));
  turns_.Leave(next->client);
  waiting_.erase(next);
  return job;
}

void Planner::Loop() {
  heart_.Attach();
  for (;;) {
    Job job;
    {
      const MutexLock lock(&mu_);
      running_ = nullptr;
      while (waiting_.empty()) {
        if (closed_) return;
        wake_.Wait(&mu_);
      }
      job = Take();
      running_ = job.control;
      if (closed_) running_->Cancel();
    }
    heart_.Busy("a plan");
    job.run();
    heart_.Idle();
  }
}

void Planner::Close() {
  {
    const MutexLock lock(&mu_);
    closed_ = true;
    if (running_ != nullptr) running_->Cancel();
  }
  wake_.NotifyOne();
  if (thread_.joinable()) thread_.join();
}

int64_t Planner::waiting() const {
  const MutexLock lock(&mu_);
  return static_cast<int64_t>(waiting_.size());
}

}  // namespace attnd
