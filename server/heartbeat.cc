#include "server/heartbeat.h"

#include <pthread.h>

#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/status.h"
#include "server/log.h"
#include "server/thread.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;

milliseconds TimeOf(int looks) { return looks * Watchdog::kPeriod; }

std::string SecondsOf(int looks) {
  return absl::StrCat(std::chrono::duration_cast<std::chrono::seconds>(TimeOf(looks)).count());
}

}  // namespace

void Heart::Attach() noexcept {
  clockid_t clock;
  if (pthread_getcpuclockid(pthread_self(), &clock) != 0) return;
  clock_.store(clock);
  has_clock_.store(true);
}

int64_t Heart::progress() const noexcept {
  timespec used{};
  // Fails for a thread that has ended meanwhile.
  if (has_clock_.load() && clock_gettime(clock_.load(), &used) != 0) used = {};
  return beats_.load(std::memory_order_relaxed) + used.tv_sec * 1'000'000'000 + used.tv_nsec;
}

std::string Heart::doing() const {
  const char* const what = what_.load(std::memory_order_relaxed);
  if (what == nullptr) return "";
  const int64_t requests = requests_.load(std::memory_order_relaxed);
  std::string text = what;
  if (requests > 0) {
    absl::StrAppend(&text, ", ", requests, requests == 1 ? " request, " : " requests, ",
                    tokens_.load(std::memory_order_relaxed), " tokens");
  }
  return text;
}

Watchdog::Part Watchdog::PartOf(std::string name, const Heart* heart) {
  return {.name = std::move(name),
          .is_busy = [heart] { return heart->is_busy(); },
          .progress = [heart] { return heart->progress(); },
          .doing = [heart] { return heart->doing(); }};
}

Watchdog::Watchdog(Options options) : options_(std::move(options)) {}
Watchdog::~Watchdog() { Stop(); }

void Watchdog::Watch(Part part) {
  const MutexLock lock(&mu_);
  parts_.push_back({.part = std::move(part)});
}

absl::Status Watchdog::Start() {
  {
    const MutexLock lock(&mu_);
    last_look_ = std::chrono::steady_clock::now();
    looks_alone_ = true;
  }
  absl::StatusOr<std::thread> thread = StartThread("watchdog", [this] { Loop(); });
  ATTND_RETURN_IF_ERROR(thread.status());
  thread_ = *std::move(thread);
  return absl::OkStatus();
}

void Watchdog::Stop() {
  {
    const MutexLock lock(&mu_);
    is_stopped_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::Loop() {
  for (;;) {
    {
      const MutexLock lock(&mu_);
      const auto next = std::chrono::steady_clock::now() + kPeriod;
      while (!is_stopped_ && std::chrono::steady_clock::now() < next) {
        changed_.WaitUntil(&mu_, next);
      }
      if (is_stopped_) return;
    }
    try {
      Look();
    } catch (const std::exception&) {
      // No memory for the text; the next look logs it.
    }
  }
}

void Watchdog::Look() {
  if (options_.before_look) options_.before_look();
  bool must_exit = false;
  {
    const MutexLock lock(&mu_);
    // Counted first, before a text for which there is no memory can throw.
    looks_ += 1;
    last_look_ = std::chrono::steady_clock::now();
    for (Watched& one : parts_) {
      Update(&one);
      must_exit = must_exit || (IsStuck(one) && options_.exit_after.count() > 0 &&
                                TimeOf(one.silent) >= options_.exit_after);
    }
  }
  changed_.NotifyAll();
  if (!must_exit) return;
  Log(LogLevel::kError, "stuck for too long: leaving without answering what is in flight");
  if (options_.exit) options_.exit();
}

void Watchdog::Update(Watched* one) {
  const int64_t progress = one->part.progress();
  const bool is_silent = one->part.is_busy() && progress == one->progress;
  const int before = std::exchange(one->silent, is_silent ? one->silent + 1 : 0);
  one->progress = progress;
  if (IsStuck(*one) && !std::exchange(one->is_reported, true)) {
    Log(LogLevel::kError, "stuck",
        {{"part", one->part.name},
         {"seconds", SecondsOf(one->silent)},
         {"in", one->part.doing ? one->part.doing() : ""}});
  } else if (one->silent == 0 && std::exchange(one->is_reported, false)) {
    Log(LogLevel::kWarning, "no longer stuck",
        {{"part", one->part.name}, {"seconds", SecondsOf(before)}});
  }
}

std::string Watchdog::Describe(const Watched& one) {
  const std::string doing = one.part.doing ? one.part.doing() : "";
  return absl::StrCat(one.part.name, " is stuck for ", SecondsOf(one.silent), " s",
                      doing.empty() ? "" : " in ", doing);
}

absl::Status Watchdog::Check() const {
  const auto now = std::chrono::steady_clock::now();
  const MutexLock lock(&mu_);
  // A process that was stopped has not looked yet, but its parts need not be stuck.
  const int64_t looks = looks_;
  const bool is_late = looks_alone_ && !is_stopped_ && now - last_look_ > TimeOf(kStuckTicks);
  while (is_late && looks_ == looks && std::chrono::steady_clock::now() < now + 2 * kPeriod) {
    changed_.WaitUntil(&mu_, now + 2 * kPeriod);
  }
  if (is_late && looks_ == looks) return absl::UnavailableError("the watchdog is stuck");
  std::vector<std::string> reasons;
  for (const Watched& one : parts_) {
    if (IsStuck(one)) reasons.push_back(Describe(one));
  }
  if (reasons.empty()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrJoin(reasons, "\n"));
}

std::vector<std::pair<std::string, double>> Watchdog::stuck_seconds() const {
  std::vector<std::pair<std::string, double>> seconds;
  const MutexLock lock(&mu_);
  for (const Watched& one : parts_) {
    const double stuck = std::chrono::duration<double>(TimeOf(one.silent)).count();
    seconds.emplace_back(one.part.name, IsStuck(one) ? stuck : 0.0);
  }
  return seconds;
}

}  // namespace attnd
