#include "server/lane.h"

#include <pthread.h>

#include <cassert>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "kernels/core/status.h"
#include "proto/wire/codec.h"

namespace attnd {
namespace {

// What libraries throw becomes an error of the request.
template <class F>
auto Guarded(const F& run) -> decltype(run()) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("request: the server has no memory for it, retry later");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("request: ", e.what()));
  }
}

}  // namespace

// A task and, once gathered, its tensors in device memory.
struct Lane::Gathered {
  std::unique_ptr<Task> task;
  Phases phases;
  Problem problem;
  std::vector<std::shared_ptr<Buffer>> inputs;
  int64_t input_bytes = 0;
};

Lane::Lane(const Parts& parts)
    : parts_(parts), stream_(parts.engine->backend(), &parts.engine->pool()) {}

Lane::~Lane() { Join(); }

absl::Status Lane::Start() {
  try {
    thread_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(absl::StrCat("lane: cannot start a thread: ", e.what()));
  }
}

void Lane::Join() {
  if (thread_.joinable()) thread_.join();
}

void Lane::Loop() {
  pthread_setname_np(pthread_self(), absl::StrCat("lane-", parts_.index).c_str());
  for (;;) {
    Batcher::Batch batch = parts_.batcher->Pull();
    if (batch.tasks.empty()) return;
    RunBatch(std::move(batch));
  }
}

void Lane::RunBatch(Batcher::Batch batch) noexcept {
  const TimePoint taken = parts_.clock->Now();
  parts_.metrics->RecordDispatch(batch.reason);
  std::vector<Gathered> waiting(batch.tasks.size());
  for (size_t i = 0; i < waiting.size(); ++i) {
    waiting[i].task = std::move(batch.tasks[i]);
    waiting[i].phases.queue_seconds = Seconds(taken - waiting[i].task->admitted);
  }
  DropDead(&waiting);
  std::vector<Gathered> gathered;
  for (Gathered& one : waiting) {
    absl::Status status = Guarded([&] { return Gather(&one); });
    if (status.ok()) {
      gathered.push_back(std::move(one));
    } else {
      Answer(std::move(one), std::move(status), {});
    }
  }
  const TimePoint start = parts_.clock->Now();
  for (Gathered& one : gathered) one.phases.gather_seconds = Seconds(start - taken);
  Compute(std::move(gathered), start);
  parts_.metrics->AddBusySeconds(parts_.index, Seconds(parts_.clock->Now() - taken));
}

// The one copy of a payload on its way from the socket to the kernel.
absl::Status Lane::Gather(Gathered* one) {
  Task& task = *one->task;
  one->problem.plan = task.plan;
  for (const auto& [name, view] : task.plan->tensors) {
    const Spans& spans = task.payloads[name];
    // The transport has checked the sizes; this guards memory.
    if (SizeOf(spans) != view.bytes()) {
      return absl::InternalError(absl::StrCat("request: ", name, " must have ", view.bytes(),
                                              " bytes, got ", SizeOf(spans)));
    }
    std::shared_ptr<Buffer> buffer = parts_.engine->pool().Allocate(view.bytes());
    if (buffer == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("request: no memory for ", name, " (",
                                                       view.bytes(), " bytes), retry later"));
    }
    one->input_bytes += buffer->bytes();
    input_bytes_.fetch_add(buffer->bytes(), std::memory_order_relaxed);
    View filled = view;
    filled.data = buffer->data();
    one->inputs.push_back(std::move(buffer));
    ATTND_RETURN_IF_ERROR(parts_.engine->backend().Upload(stream_, filled.data, spans));
    one->problem.tensors[name] = filled;
  }
  task.payloads.clear();
  task.payload_owner.reset();
  return absl::OkStatus();
}

void Lane::DropDead(std::vector<Gathered>* batch) {
  const TimePoint now = parts_.clock->Now();
  std::vector<Gathered> alive;
  for (Gathered& one : *batch) {
    absl::Status status = CheckAlive(*one.task, now);
    if (status.ok()) {
      alive.push_back(std::move(one));
      continue;
    }
    parts_.metrics->RecordRefusal(RefusalOf(status));
    Answer(std::move(one), std::move(status), {});
  }
  *batch = std::move(alive);
}

void Lane::Compute(std::vector<Gathered> batch, TimePoint start) {
  DropDead(&batch);
  if (batch.empty()) return;
  absl::StatusOr<Execution> execution = Guarded([&] { return Execute(batch); });
  if (execution.ok()) {
    AnswerAll(std::move(batch), *std::move(execution), start);
  } else if (batch.size() == 1) {
    Answer(std::move(batch[0]), execution.status(), {});
  } else {
    for (Gathered& one : batch) {
      std::vector<Gathered> alone;
      alone.push_back(std::move(one));
      Compute(std::move(alone), start);
    }
  }
}

absl::StatusOr<Execution> Lane::Execute(const std::vector<Gathered>& batch) {
  std::vector<Problem> problems;
  problems.reserve(batch.size());
  for (const Gathered& one : batch) problems.push_back(one.problem);
  return parts_.engine->Execute(stream_, problems);
}

void Lane::AnswerAll(std::vector<Gathered> batch, Execution execution, TimePoint start) {
  assert(execution.results.size() == batch.size());
  const TimePoint computed = parts_.clock->Now();
  const Plan& plan = *batch[0].task->plan;
  Metrics::BatchRun run{.method = plan.method->info().id,
                        .direction = plan.direction,
                        .requests = static_cast<int64_t>(batch.size()),
                        .peak_workspace_bytes = execution.peak_workspace_bytes,
                        .compute_seconds = Seconds(computed - start)};
  for (size_t i = 0; i < batch.size(); ++i) {
    batch[i].phases.taken = execution.taken[i];
    run.tokens += batch[i].task->plan->tokens;
    run.flops += execution.taken[i].flops;
  }
  parts_.metrics->RecordBatch(parts_.index, run);
  for (size_t i = 0; i < batch.size(); ++i) {
    Phases& phases = batch[i].phases;
    phases.compute_seconds = run.compute_seconds;
    phases.batch_requests = run.requests;
    phases.batch_tokens = run.tokens;
    phases.peak_workspace_bytes = run.peak_workspace_bytes;
    phases.computed = computed;
    parts_.metrics->RecordTask(*batch[i].task->plan, phases);
    Answer(std::move(batch[i]), absl::OkStatus(), std::move(execution.results[i]));
  }
}

void Lane::Answer(Gathered one, absl::Status status, std::vector<Result> results) noexcept {
  one.problem.tensors.clear();
  one.inputs.clear();
  input_bytes_.fetch_sub(one.input_bytes, std::memory_order_relaxed);
  Finish(std::move(one.task), std::move(status), std::move(results), one.phases);
}

}  // namespace attnd
