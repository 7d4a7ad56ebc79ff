// The part of a lane that brings the inputs of a batch to its device.
#include <utility>

#include "kernels/core/status.h"
#include "server/lane.h"
#include "server/lane_gathered.h"
#include "server/no_memory.h"

namespace attnd {

// Returns those, of the end of the group, whose inputs find no memory beside the others.
Lane::Group Lane::GatherAll(Group* group, Stream& stream) {
  Group gathered, later;
  for (Gathered* one : *group) {
    absl::Status status =
        later.empty() ? Guarded([&] { return Gather(one, stream); }) : absl::OkStatus();
    const bool lacks_memory = absl::IsResourceExhausted(status) && !gathered.empty();
    if (lacks_memory) {
      parts_.metrics->RecordDeviceError(parts_.device, Metrics::DeviceError::kMemory);
    }
    if (!later.empty() || lacks_memory) {
      ReleaseInputs(one);
      later.push_back(one);
    } else if (status.ok()) {
      gathered.push_back(one);
    } else if (absl::IsCancelled(status)) {
      Answer(one, WhyStopped(*one->task), {});
    } else {
      Answer(one, WhyFailed(std::move(status)), {});
    }
  }
  *group = std::move(gathered);
  return later;
}

// The one copy of a payload on its way from the socket to the kernel.
absl::Status Lane::Gather(Gathered* one, Stream& stream) {
  Task& task = *one->task;
  one->problem.plan = task.plan;
  for (const auto& [name, view] : task.plan->tensors) {
    const Spans& spans = task.payloads[name];
    // The transport has checked the sizes; this check protects memory.
    if (SizeOf(spans) != view.bytes()) {
      return absl::InternalError(absl::StrCat("request: ", name, " must have ", view.bytes(),
                                              " bytes, got ", SizeOf(spans)));
    }
    // Counted before the copy, so that the metrics never count it as workspace.
    const int64_t bytes = RoundedBytes(view.bytes());
    const bool on_host = Engine::StaysOnHost(stream, view.dtype);
    (on_host ? one->host_input_bytes : one->input_bytes) += bytes;
    (on_host ? host_input_bytes_ : input_bytes_).fetch_add(bytes, std::memory_order_relaxed);
    absl::StatusOr<std::shared_ptr<Buffer>> buffer =
        parts_.engine->Upload(stream, view.dtype, spans, task.payload_owner);
    if (absl::IsResourceExhausted(buffer.status())) {
      return absl::ResourceExhaustedError(absl::StrCat("request: no memory for ", name, " (",
                                                       view.bytes(), " bytes), retry later"));
    }
    ATTND_RETURN_IF_ERROR(buffer.status());
    View filled = view;
    filled.data = (*buffer)->data();
    one->inputs.push_back(*std::move(buffer));
    one->problem.tensors[name] = filled;
  }
  task.payloads.clear();
  task.payload_owner.reset();
  return absl::OkStatus();
}

// A failed upload is reported only once, so no task may run again after it.
void Lane::FinishUploads(Group* group, Stream& stream) {
  absl::Status status = parts_.engine->WaitForUploads(stream);
  if (status.ok()) return;
  if (!absl::IsCancelled(status)) status = WhyFailed(std::move(status));
  for (Gathered* one : *group) {
    Answer(one, absl::IsCancelled(status) ? WhyStopped(*one->task) : status, {});
  }
  group->clear();
}

void Lane::ReleaseInputs(Gathered* one) noexcept {
  one->problem.tensors.clear();
  one->inputs.clear();
  input_bytes_.fetch_sub(std::exchange(one->input_bytes, 0), std::memory_order_relaxed);
  host_input_bytes_.fetch_sub(std::exchange(one->host_input_bytes, 0), std::memory_order_relaxed);
}

}  // namespace attnd
