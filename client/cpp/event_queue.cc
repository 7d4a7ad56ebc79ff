#include "event_queue.h"

#include <utility>

namespace attnd::client {
namespace {

constexpr std::chrono::milliseconds kLook{1};
// RunSoon waits for no more events than these.
constexpr int kMostEventsBeforeSoon = 8;

gpr_timespec In(std::chrono::nanoseconds time) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(time.count(), GPR_TIMESPAN));
}

}  // namespace

EventQueue::~EventQueue() {
  Shutdown();
  while (Next()) {
  }
}

void EventQueue::RunWhen(std::function<bool()> ready, std::function<void()> run) {
  waiting_.push_back({std::move(ready), std::move(run)});
}

bool EventQueue::Next() {
  Event* event = nullptr;
  bool ok = false;
  const auto status = Take(&event, &ok);
  if (status == grpc::CompletionQueue::SHUTDOWN) return false;
  if (status == grpc::CompletionQueue::GOT_EVENT) event->Run(ok);
  RunReady();
  return true;
}

grpc::CompletionQueue::NextStatus EventQueue::Take(Event** event, bool* ok) {
  const auto take = [&](gpr_timespec until) {
    void* tag = nullptr;
    const auto status = tags_.AsyncNext(&tag, ok, until);
    *event = static_cast<Event*>(tag);
    return status;
  };
  const gpr_timespec past = gpr_inf_past(GPR_CLOCK_MONOTONIC);
  const auto spin_until = std::chrono::steady_clock::now() + spin_;
  while (!soon_.empty() || spin_.count() > 0) {
    const auto status = take(past);
    const bool is_late = !soon_.empty() && ++events_before_soon_ == kMostEventsBeforeSoon;
    if (status == grpc::CompletionQueue::TIMEOUT || is_late) RunAllSoon();
    if (status != grpc::CompletionQueue::TIMEOUT) return status;
    if (std::chrono::steady_clock::now() >= spin_until) break;
  }
  return take(waiting_.empty() ? gpr_inf_future(GPR_CLOCK_MONOTONIC) : In(kLook));
}

void EventQueue::RunAllSoon() {
  events_before_soon_ = 0;
  for (const std::function<void()>& run : std::exchange(soon_, {})) run();
}

void EventQueue::RunReady() {
  // What runs may add to waiting_.
  for (size_t i = 0; i < waiting_.size();) {
    if (!waiting_[i].ready()) {
      ++i;
      continue;
    }
    const auto run = std::move(waiting_[i].run);
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    run();
  }
}

}  // namespace attnd::client
