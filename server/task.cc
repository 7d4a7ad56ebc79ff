#include "server/task.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/log.h"
#include "server/no_memory.h"
#include "server/reasons.h"

namespace attnd {

absl::Status WhyCancelled(TimePoint started, TimePoint deadline, TimePoint now) {
  // The caller cancels a call slightly before the deadline that the server sees: gRPC rounds a
  // timeout up by up to one percent when it is sent, and counts it from the arrival.
  const auto slack = std::chrono::milliseconds(10) + (deadline - started) / 100;
  if (deadline - slack <= now) {
    return ErrorOf(absl::StatusCode::kDeadlineExceeded,
                   "request: the deadline passed before it could run");
  }
  return ErrorOf(absl::StatusCode::kCancelled, "request: cancelled by the client");
}

absl::Status CheckAlive(const Task& task, TimePoint now) {
  // Checked first, since gRPC cancels a call at its deadline.
  if (task.deadline <= now) {
    return ErrorOf(absl::StatusCode::kDeadlineExceeded,
                   "request: the deadline passed before it could run");
  }
  if (task.cancelled->load(std::memory_order_relaxed)) {
    return ErrorOf(absl::StatusCode::kCancelled, "request: cancelled by the client");
  }
  return absl::OkStatus();
}

absl::Status Hopeless(double own, double ahead, double left) {
  return absl::DeadlineExceededError(absl::StrFormat(
      "request: the deadline must leave the predicted %.3g s (%.3g s of them for requests ahead), "
      "got %.3g s",
      own + ahead, ahead, left));
}

Refusal RefusalOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return Refusal::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return Refusal::kDeadline;
    case absl::StatusCode::kResourceExhausted:
      return IsPermanent(status) ? Refusal::kSeconds : Refusal::kBytes;
    case absl::StatusCode::kUnavailable:
      return Refusal::kDevice;
    default:
      return Refusal::kInvalid;
  }
}

void Finish(std::unique_ptr<Task> task, absl::Status status, std::vector<Result> results,
            const Phases& phases) noexcept {
  try {
    task->done(std::move(status), std::move(results), phases);
  } catch (const std::exception&) {
    Log(LogLevel::kError, "an answer was lost");
  }
}

}  // namespace attnd
