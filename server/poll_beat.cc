#include "server/poll_beat.h"

#include <chrono>
#include <string>

namespace attnd {

void PollBeat::Ask() {
  if (is_asked_.load()) return;
  asked_at_ = std::chrono::steady_clock::now();
  is_asked_.store(true);
  try {
    transport_->Post([this] { Answer(); });
  } catch (...) {
    is_asked_.store(false);
    throw;
  }
}

void PollBeat::Answer() {
  metrics_->RecordPollDelay(Seconds(std::chrono::steady_clock::now() - asked_at_));
  answers_.fetch_add(1);
  is_asked_.store(false);
}

Watchdog::Part PollBeat::part() {
  return {.name = "transport",
          .is_busy = [this] { return is_asked_.load(); },
          .progress = [this] { return answers_.load(); },
          .doing = [this] { return std::string(transport_->running()); }};
}

}  // namespace attnd
