#include "server/lane.h"

#include <cassert>
#include <new>
#include <string>
#include <utility>

#include "kernels/core/status.h"
#include "kernels/method/method.h"
#include "proto/wire/codec.h"
#include "server/lane_gathered.h"
#include "server/no_memory.h"
#include "server/reasons.h"
#include "server/thread.h"

namespace attnd {
namespace {

// Looks of the watchdog during which a stopped run may go on.
constexpr int kMostLooksAfterStop = 60;

// Answers up to this size take less time than waking another lane.
constexpr int64_t kQuickAnswers = 1 << 20;  // bytes

int64_t BytesOf(const Execution& execution) {
  int64_t bytes = 0;
  for (const std::vector<Result>& results : execution.results) {
    for (const Result& result : results) bytes += result.view.bytes();
  }
  return bytes;
}

}  // namespace

Lane::Lane(const Parts& parts) : parts_(parts) {}

Lane::~Lane() { Join(); }

absl::Status Lane::Start() {
  absl::StatusOr<std::thread> thread =
      StartThread(absl::StrCat("lane-", parts_.index), [this] { Loop(); });
  ATTND_RETURN_IF_ERROR(thread.status());
  thread_ = *std::move(thread);
  return absl::OkStatus();
}

void Lane::Join() {
  if (thread_.joinable()) thread_.join();
}

void Lane::Loop() {
  heart_.Attach();
  for (;;) {
    Batcher::Batch batch;
    UntilMemory([&] { batch = parts_.batcher->Pull(); });
    if (batch.tasks.empty()) return;
    RunBatch(std::move(batch));
  }
}

void Lane::RunBatch(Batcher::Batch batch) noexcept {
  const TimePoint taken = parts_.clock->Now();
  MarkBusy(batch);
  parts_.metrics->RecordDispatch(batch.reason);
  RunControl control(batch.level, batch.seconds);
  std::vector<Gathered> all;
  measured_.reset();
  run_ = batch.run;
  requests_ = batch.tasks.size();
  was_alone_.reset();
  try {
    all.resize(batch.tasks.size());
    TimePoint last_deadline = TimePoint::min(), first_admitted = taken;
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].task = std::move(batch.tasks[i]);
      all[i].phases.queue_seconds = Seconds(taken - all[i].task->admitted);
      last_deadline = std::max(last_deadline, all[i].task->deadline);
      first_admitted = std::min(first_admitted, all[i].task->admitted);
    }
    // Time spent in the queue counts as waiting, so that running batches do not pass it over again.
    if (taken - first_admitted >= Batcher::kPatience) control.AddWaited(taken - first_admitted);
    StopAt(last_deadline, &control);
    Publish(&all, &control);
    Run(&all, taken, &control);
  } catch (const std::exception&) {
    // No memory for the batch.
    for (std::unique_ptr<Task>& task : batch.tasks) {
      if (task != nullptr) Finish(std::move(task), NoMemory(), {}, {});
    }
    for (Gathered& one : all) {
      if (one.task != nullptr) Answer(&one, NoMemory(), {});
    }
  }
  Publish(nullptr, nullptr);
  parts_.metrics->AddBusySeconds(parts_.index, Seconds(parts_.clock->Now() - taken));
  Learn(control, EndRun());
  heart_.Idle();
}

void Lane::MarkBusy(const Batcher::Batch& batch) noexcept {
  if (batch.tasks.empty()) return;
  int64_t tokens = 0;
  for (const std::unique_ptr<Task>& task : batch.tasks) tokens += task->plan->tokens;
  // A string of the registry, which outlives every lane.
  const std::string& method = batch.tasks[0]->plan->method->info().id;
  heart_.Busy(method.c_str(), static_cast<int64_t>(batch.tasks.size()), tokens);
}

// Stops the run at the last deadline of its tasks, or once it has computed for twice the limit of a
// request. Time that it waited for other runs does not count; where that is unknown, it may be that
// of all that share the device.
void Lane::StopAt(TimePoint last_deadline, RunControl* control) const {
  if (parts_.max_request_seconds > 0) {
    const std::chrono::duration<double> most(2 * parts_.max_request_seconds * parts_.sharing_runs);
    control->StopAfter(std::chrono::duration_cast<TimePoint::duration>(most));
  }
  if (last_deadline == TimePoint::max()) return;
  control->StopAt(RunControl::Clock::now() + (last_deadline - parts_.clock->Now()));
}

void Lane::Publish(std::vector<Gathered>* batch, RunControl* control) {
  const MutexLock lock(&mu_);
  running_ = batch;
  control_ = control;
  looks_after_stop_ = 0;
}

Watchdog::Part Lane::part() {
  const std::string& device = parts_.engine->device(parts_.device).info().name;
  const std::string where = device == "cpu" ? "" : absl::StrCat(" of ", device);
  Watchdog::Part part = Watchdog::PartOf(absl::StrCat("lane ", parts_.index, where), &heart_);
  part.progress = [this] { return Progress(); };
  return part;
}

// A run that goes on long after it was stopped makes no progress, however busy it is.
int64_t Lane::Progress() {
  const MutexLock lock(&mu_);
  if (control_ == nullptr) return heart_.progress();
  if (control_->stopped() && ++looks_after_stop_ > kMostLooksAfterStop) return -1;
  return heart_.progress() + static_cast<int64_t>(control_->spent_seconds() * 1e9);
}

void Lane::Run(std::vector<Gathered>* batch, TimePoint taken, RunControl* control) {
  Group group;
  group.reserve(batch->size());
  for (Gathered& one : *batch) group.push_back(&one);
  Device& device = parts_.engine->device(parts_.device);
  Stream stream(device, &device.memory(), control);
  while (!group.empty()) {
    DropDead(&group);
    Group later = GatherAll(&group, stream);
    FinishUploads(&group, stream);
    const TimePoint start = parts_.clock->Now();
    for (Gathered* one : group) one->phases.gather_seconds = Seconds(start - taken);
    Group without_memory;
    Compute(std::move(group), start, stream,
            later.empty() && group.size() == 1 ? nullptr : &without_memory);
    for (Gathered* one : without_memory) Compute({one}, start, stream, nullptr);
    group = std::move(later);
  }
}

void Lane::DropDead(Group* group) {
  const TimePoint now = parts_.clock->Now();
  std::erase_if(*group, [&](Gathered* one) {
    absl::Status status = CheckAlive(*one->task, now);
    if (status.ok()) return false;
    Answer(one, std::move(status), {});
    return true;
  });
}

// What finds no memory alone is left to the caller in `without_memory`; null: it is answered.
void Lane::Compute(Group group, TimePoint start, Stream& stream, Group* without_memory) {
  DropDead(&group);
  if (group.empty()) return;
  absl::StatusOr<Execution> execution = Guarded([&]() -> absl::StatusOr<Execution> {
    std::vector<Problem> problems;
    problems.reserve(group.size());
    for (const Gathered* one : group) problems.push_back(one->problem);
    return parts_.engine->Execute(stream, problems);
  });
  if (execution.ok()) return AnswerAll(group, *std::move(execution), start);
  if (stream.stopped()) {
    for (Gathered* one : group) Answer(one, WhyStopped(*one->task), {});
    return;
  }
  const absl::Status status = WhyFailed(execution.status());
  const bool lacks_memory = absl::IsResourceExhausted(status);
  if (absl::IsUnavailable(status) || (group.size() == 1 && !lacks_memory)) {
    for (Gathered* one : group) Answer(one, status, {});
  } else if (group.size() > 1) {
    const auto parts = lacks_memory ? 2 : static_cast<std::ptrdiff_t>(group.size());
    const auto size = static_cast<std::ptrdiff_t>(group.size());
    for (std::ptrdiff_t i = 0; i < parts; ++i) {
      const auto begin = group.begin();
      Compute(Group(begin + i * size / parts, begin + (i + 1) * size / parts), start, stream,
              without_memory);
    }
    measured_.reset();
  } else if (without_memory != nullptr) {
    without_memory->push_back(group[0]);
  } else {
    Answer(group[0], status, {});
  }
}

// An error of a call of the device, or that it has failed for good.
absl::Status Lane::WhyFailed(absl::Status status) {
  if (!absl::IsInternal(status) && !absl::IsResourceExhausted(status)) return status;
  parts_.metrics->RecordDeviceError(parts_.device, absl::IsInternal(status)
                                                       ? Metrics::DeviceError::kFailed
                                                       : Metrics::DeviceError::kMemory);
  const absl::Status failure = CheckDevice();
  return failure.ok() ? status : failure;
}

absl::Status Lane::CheckDevice() const {
  const Device& device = parts_.engine->device(parts_.device);
  const std::string failure = device.failure();
  if (failure.empty()) return absl::OkStatus();
  const absl::Status status =
      absl::UnavailableError(absl::StrCat("device: ", device.info().name, " failed: ", failure));
  parts_.batcher->Fail(status);
  if (parts_.device_failed) parts_.device_failed(status);
  return status;
}

absl::Status Lane::WhyStopped(const Task& task) const {
  ATTND_RETURN_IF_ERROR(CheckAlive(task, parts_.clock->Now()));
  return Permanent(absl::ResourceExhaustedError(absl::StrCat(
      "request: seconds must be <= ", parts_.max_request_seconds, ", got no result after ",
      parts_.sharing_runs == 1 ? "twice" : absl::StrCat(2 * parts_.sharing_runs, " times"),
      " that")));
}

void Lane::AnswerAll(const Group& group, Execution execution, TimePoint start) {
  assert(execution.results.size() == group.size());
  const TimePoint computed = parts_.clock->Now();
  const std::shared_ptr<const Plan> plan = group[0]->task->plan;
  Metrics::BatchRun run{.method = plan->method->info().id,
                        .direction = plan->direction,
                        .requests = static_cast<int64_t>(group.size()),
                        .peak_workspace_bytes = execution.peak_workspace_bytes,
                        .compute_seconds = Seconds(computed - start)};
  measured_ = {.plan = plan, .seconds = run.compute_seconds};
  // A plan predicts the way to such a device, too.
  const bool is_copied = !parts_.engine->device(parts_.device).info().has_host_memory;
  if (is_copied) measured_->seconds += group[0]->phases.gather_seconds;
  for (size_t i = 0; i < group.size(); ++i) {
    group[i]->phases.cost = execution.costs[i];
    run.tokens += group[i]->task->plan->tokens;
    run.flops += execution.costs[i].flops;
    measured_->predicted += group[i]->task->plan->seconds;
  }
  parts_.metrics->RecordBatch(parts_.index, run);
  // A client that gets an answer sends its next request: this lane will pull it, so the batcher
  // need not wake another one.
  if (group.size() == requests_ && BytesOf(execution) <= kQuickAnswers) EndRun();
  for (size_t i = 0; i < group.size(); ++i) {
    Phases& phases = group[i]->phases;
    phases.compute_seconds = run.compute_seconds;
    phases.batch_requests = run.requests;
    phases.batch_tokens = run.tokens;
    phases.peak_workspace_bytes = run.peak_workspace_bytes;
    phases.computed = computed;
    parts_.metrics->RecordTask(*group[i]->task->plan, phases);
    Answer(group[i], absl::OkStatus(), std::move(execution.results[i]));
  }
}

// Frees the inputs, and answers unless Sweep has done so.
void Lane::Answer(Gathered* one, absl::Status status, std::vector<Result> results) noexcept {
  ReleaseInputs(one);
  std::unique_ptr<Task> task;
  {
    const MutexLock lock(&mu_);
    task = std::move(one->task);
  }
  if (task->done == nullptr) return;
  if (!status.ok() && !absl::IsInternal(status)) {
    parts_.metrics->RecordRefusal(RefusalOf(status));
  }
  Finish(std::move(task), std::move(status), std::move(results), one->phases);
}

void Lane::Sweep() {
  struct Dead {
    std::unique_ptr<Task> task;  // holds only what an answer needs
    absl::Status status;
    Phases phases;
  };
  std::vector<Dead> dead;
  {
    const MutexLock lock(&mu_);
    if (running_ == nullptr) return;
    const TimePoint now = parts_.clock->Now();
    bool is_wanted = false;
    for (Gathered& one : *running_) {
      if (one.task == nullptr || one.task->done == nullptr) continue;
      absl::Status status = CheckAlive(*one.task, now);
      is_wanted = is_wanted || status.ok();
      if (status.ok()) continue;
      dead.push_back({std::make_unique<Task>(),
                      std::move(status),
                      {.queue_seconds = one.phases.queue_seconds}});
      dead.back().task->done = std::exchange(one.task->done, nullptr);
    }
    if (!is_wanted) control_->Cancel();
  }
  for (Dead& one : dead) {
    parts_.metrics->RecordRefusal(RefusalOf(one.status));
    Finish(std::move(one.task), std::move(one.status), {}, one.phases);
  }
}

// Whether the run was alone all the time. Only the first call notifies the batcher.
bool Lane::EndRun() {
  if (!was_alone_.has_value()) was_alone_ = parts_.batcher->Ended(run_);
  return *was_alone_;
}

// Learns from the elapsed time of a run that was alone, and from the time spent in its items
// otherwise, since a run takes longer beside others.
void Lane::Learn(const RunControl& control, bool was_alone) noexcept try {
  if (!measured_.has_value() || parts_.predictions == nullptr) return;
  const double shared = control.spent_seconds() / parts_.threads;
  if (!was_alone && shared == 0) return;
  parts_.predictions->Learn(*measured_->plan, measured_->predicted,
                            was_alone ? measured_->seconds : shared);
} catch (const std::bad_alloc&) {
  // No memory: learns from the next run instead.
}

}  // namespace attnd
