#include "event_queue.h"

#include <utility>

namespace attnd::client {
namespace {

constexpr std::chrono::milliseconds kLook{1};

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
  void* tag = nullptr;
  auto status = grpc::CompletionQueue::TIMEOUT;
  if (spin_.count() > 0) {
    const auto end = std::chrono::steady_clock::now() + spin_;
    do {
      status = tags_.AsyncNext(&tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC));
    } while (status == grpc::CompletionQueue::TIMEOUT && std::chrono::steady_clock::now() < end);
  }
  if (status == grpc::CompletionQueue::TIMEOUT) {
    status = tags_.AsyncNext(&tag, ok,
                             waiting_.empty() ? gpr_inf_future(GPR_CLOCK_MONOTONIC) : In(kLook));
  }
  *event = static_cast<Event*>(tag);
  return status;
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
