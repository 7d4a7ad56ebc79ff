#include "kernels/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "kernels/core/exceptions.h"
#include "kernels/core/run_control.h"
#include "kernels/core/stopped.h"
#include "kernels/engine/formula.h"
#include "kernels/engine/notes.h"
#include "kernels/engine/plan_cache.h"
#include "kernels/engine/validate.h"
#include "kernels/method/registry.h"
#include "kernels/method/seq_groups.h"
#include "kernels/ops/status_of.h"
#include "kernels/pattern/cache.h"

namespace attnd {
namespace {

// Of the freed memory that is kept for reuse a run counts on no more: after other work little is
// kept.
constexpr int64_t kMostCountedBytes = int64_t{512} << 20;

// What a plan keeps of lists of options.
int64_t BytesOf(const OptionMap& options) {
  int64_t bytes = 0;
  for (const auto& [name, value] : options) {
    const auto* list = std::get_if<std::vector<int64_t>>(&value);
    if (list != nullptr) bytes += static_cast<int64_t>(list->size() * sizeof(int64_t));
  }
  return bytes;
}

// Everything by which a batch could differ in code or launch arguments; sizes B, H, Nq and Nk are
// ragged and stay out. Options enter as parsed: a default that is spelled out is one left out.
std::string BucketOf(const Plan& plan) {
  const auto first = plan.tensors.find("q");
  const View& q = first != plan.tensors.end() ? first->second : plan.tensors.at("v");
  std::vector<std::string> tensors;
  for (const auto& [name, view] : plan.tensors) {
    const bool of_q = view.dtype == q.dtype || !IsFloat(view.dtype);
    tensors.push_back(of_q ? name : absl::StrCat(name, ":", Name(view.dtype)));
  }
  return absl::StrCat(plan.method->info().id, "/", Name(plan.direction), "/", Name(q.dtype),
                      q.layout == Layout::kBHND ? "/BHND" : "/BNHD", "/D", plan.shape.D, "/Dv",
                      plan.shape.Dv, "/", absl::StrJoin(tensors, ","), "/",
                      plan.method->Describe(plan.options.get(), plan.shape.D), "/",
                      plan.method->Branch(plan.shape, plan.options.get()),
                      plan.is_deterministic ? "" : "/any order");
}

// Copies the views; what they point to only of integer tensors, whose values a plan reads.
void CopyTensors(const std::map<std::string, View>& sent, Plan* plan) {
  plan->integers.reserve(sent.size());  // views point into it
  for (const auto& [name, view] : sent) {
    View& own = plan->tensors[name] = view;
    plan->input_bytes += view.bytes();
    own.data = nullptr;
    if (view.dtype != DType::kI32 || view.shape.rank != 1 || view.data == nullptr) continue;
    if (!PlanReads(name)) continue;
    std::vector<int32_t>& values = plan->integers.emplace_back();
    for (int64_t i = 0; i < view.shape[0]; ++i) {
      values.push_back(static_cast<int32_t>(IntAt(view, i)));
    }
    own = DenseView(values.data(), view.dtype, view.shape);
  }
}

// Of the way of inputs to the device and of results to the host. Integers stay on the host.
absl::Status PredictTransfers(Stream& dry, const Plan& plan) {
  Device& device = dry.device();
  if (device.info().has_host_memory) return absl::OkStatus();
  const auto none = [](int64_t bytes) {
    return std::span<std::byte>(static_cast<std::byte*>(nullptr), static_cast<size_t>(bytes));
  };
  for (const auto& [name, view] : plan.tensors) {
    if (!IsFloat(view.dtype)) continue;
    const std::span<const std::byte> pieces[] = {none(view.bytes())};
    ATTND_RETURN_IF_ERROR(StatusOf(device.Upload(dry, nullptr, pieces, nullptr)));
  }
  for (const OutputInfo& output : plan.outputs) {
    const int64_t bytes = output.shape.size() * SizeOf(output.dtype);
    ATTND_RETURN_IF_ERROR(StatusOf(device.Download(dry, nullptr, none(bytes))));
  }
  return absl::OkStatus();
}

// The dry run: what comes out, and what it takes.
absl::Status Predict(Device& device, RunControl* control, Plan* plan) {
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, view] : plan->tensors) {
    View without_data = view;
    without_data.data = nullptr;
    tensors[name] = Tensor({without_data}, {nullptr});
  }
  Stream dry(device, /*memory=*/nullptr, control);
  const RunScope scope(control);
  absl::StatusOr<RunResult> run = RunFormula(dry, /*caches=*/{}, *plan, tensors, {&plan->shape, 1});
  if (dry.stopped()) return StoppedStatus();
  ATTND_RETURN_IF_ERROR(run.status());
  for (const auto& [name, tensor] : run->outputs) {
    const View& view = tensor[0];
    plan->outputs.push_back({name, view.dtype, view.layout, view.shape});
    plan->output_bytes += view.bytes();
    // What Fetch brings to the host, or copies because it is an input.
    if (!device.info().has_host_memory || tensor.buffer(0) == nullptr) {
      plan->host_bytes += RoundedBytes(view.bytes());
    }
  }
  ATTND_RETURN_IF_ERROR(PredictTransfers(dry, *plan));
  const Work& work = dry.work();
  plan->workspace_bytes = dry.workspace().peak_bytes();
  plan->host_bytes += work.host_bytes;
  plan->tokens = plan->shape.B * plan->shape.Nq;
  plan->visible_pairs = run->forward_pairs;
  // A backward is credited with its gradients, not with the forward that it has to repeat.
  plan->flops =
      plan->direction == Direction::kBackward ? work.flops - run->forward_flops : work.flops;
  // A formula may know of pairs that no launch attends to.
  const ProblemCost cost = CostOf(*plan, *run, 0);
  plan->visible_pairs = cost.visible_pairs;
  plan->flops = cost.flops;
  plan->estimates_pairs = run->estimates_pairs;
  // What is kept for reuse serves the rest; half of it, since it is in pieces of other sizes.
  const int64_t kept = std::min(device.memory().retain_bytes() / 2, kMostCountedBytes);
  const int64_t fresh = std::max<int64_t>(0, plan->workspace_bytes - kept);
  const double rate = device.info().new_bytes_per_second;
  plan->seconds = work.seconds + (rate > 0 ? static_cast<double>(fresh) / rate : 0);
  return absl::OkStatus();
}

std::string MethodIds() {
  std::vector<std::string> ids;
  for (const auto& method : AllMethods()) ids.push_back(method->info().id);
  return absl::StrJoin(ids, ", ");
}

}  // namespace

bool PlanReads(absl::string_view tensor) {
  constexpr absl::string_view kRead[] = {"q_lengths",    "kv_lengths",    "mem_lengths",
                                         "cmem_lengths", "causal_offset", "cu_seqlens_q",
                                         "cu_seqlens_k"};
  return std::find(std::begin(kRead), std::end(kRead), tensor) != std::end(kRead);
}

int64_t PlanWork(const Call& call) {
  // A list is read and sorted; of its values that differ so many are described one by one. Steps
  // measured with tests/plan, backwards of methods with several parts.
  struct Cost {
    int64_t of_each, described;
  };
  constexpr Cost kSequences = {12, kPlannedProblems}, kRows = {2, kPlannedSeqs},
                 kValues = {2, kPlannedSources};
  constexpr int64_t kBase = 200, kReadInAStep = 8;
  const auto list = [](int64_t n, const Cost& cost) {
    return n / kReadInAStep + cost.of_each * std::min<int64_t>(n, cost.described);
  };
  int64_t steps = kBase;
  for (const auto& [name, view] : call.tensors) {
    if (view.shape.rank != 1 || view.data == nullptr || !PlanReads(name)) continue;
    steps += list(view.shape[0], name.starts_with("cu_seqlens") ? kSequences : kRows);
  }
  for (const auto& [name, value] : call.options) {
    const auto* values = std::get_if<std::vector<int64_t>>(&value);
    if (values != nullptr) steps += list(static_cast<int64_t>(values->size()), kValues);
  }
  return steps;
}

struct Engine::Impl {
  // Order matters: what the devices hold of patterns goes before they do.
  std::vector<std::unique_ptr<Device>> devices;
  BufferPool host;  // results and integers beside devices whose memory is not the host's
  PatternCache patterns;
  DrawCache draws;
  const bool keep_plans;
  PlanCache plans;

  Impl(std::vector<std::unique_ptr<Device>> of, const EngineOptions& options)
      : devices(std::move(of)), host(options.host_retain_bytes), keep_plans(options.keep_plans) {}

  using PlanOr = absl::StatusOr<std::shared_ptr<const Plan>>;
  using PlansOr = absl::StatusOr<std::vector<std::shared_ptr<const Plan>>>;

  std::string DeviceNames() const;
  PlansOr MakePlans(const Call& call, RunControl* control);
  PlanOr MakePlanOn(size_t device, const Call& call, RunControl* control);
  absl::StatusOr<Execution> Execute(Stream& stream, std::span<const Problem> batch);
  absl::Status Fetch(Stream& stream, std::vector<std::vector<Result>>* results);
};

Engine::Engine(std::vector<std::unique_ptr<Device>> devices, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(devices), options)) {}
Engine::~Engine() = default;

size_t Engine::devices() const { return impl_->devices.size(); }
Device& Engine::device(size_t i) { return *impl_->devices[i]; }
int64_t Engine::cached_pattern_bytes() const { return CachedPatternBytes(); }
int64_t Engine::cached_draw_bytes() const { return CachedDrawBytes(); }
PoolStats Engine::host_memory() const { return impl_->host.stats(); }

void Engine::TrimMemory(int64_t least) {
  for (const std::unique_ptr<Device>& device : impl_->devices) device->memory().Trim(least);
  impl_->host.Trim(least);
}

absl::StatusOr<std::vector<std::shared_ptr<const Plan>>> Engine::MakePlans(const Call& call,
                                                                           RunControl* control) {
  return WithoutExceptions("engine: ", [&] { return impl_->MakePlans(call, control); });
}

absl::StatusOr<std::shared_ptr<const Plan>> Engine::MakePlan(const Call& call,
                                                             RunControl* control) {
  auto plans = MakePlans(call, control);
  ATTND_RETURN_IF_ERROR(plans.status());
  return *std::ranges::min_element(*plans, {}, [](const auto& plan) { return plan->seconds; });
}

std::string Engine::Impl::DeviceNames() const {
  return absl::StrJoin(devices, ", ", [](std::string* out, const auto& device) {
    out->append(device->info().name);
  });
}

Engine::Impl::PlansOr Engine::Impl::MakePlans(const Call& call, RunControl* control) {
  std::vector<std::shared_ptr<const Plan>> plans;
  absl::Status first;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!call.device.empty() && devices[i]->info().name != call.device) continue;
    PlanOr plan = MakePlanOn(i, call, control);
    if (plan.ok()) {
      plans.push_back(*std::move(plan));
    } else if (first.ok()) {
      first = plan.status();
    }
    // What is wrong with a call is wrong on every device.
    if (absl::IsInvalidArgument(first) || absl::IsCancelled(first)) return first;
  }
  if (!plans.empty()) return plans;
  if (!first.ok()) return first;
  Reasons reasons("request");
  reasons.Invalid("device must be ", DeviceNames(), " or empty, got \"", call.device, "\"");
  return reasons.status();
}

Engine::Impl::PlanOr Engine::Impl::MakePlanOn(size_t device, const Call& call,
                                              RunControl* control) {
  if (control != nullptr && control->stopped()) return StoppedStatus();
  std::string key = keep_plans ? PlanCache::KeyOf(call, device) : std::string();
  if (!key.empty()) {
    if (std::shared_ptr<const Plan> plan = plans.Find(key)) return plan;
  }
  const Method* method = FindMethod(call.method);
  if (method == nullptr) {
    Reasons reasons("request");
    reasons.Invalid("method must be one of ", MethodIds(), ", got \"", call.method, "\"");
    return reasons.status();
  }
  Reasons reasons(method->info().id);
  auto plan = std::make_shared<Plan>();
  plan->method = method;
  plan->direction = call.direction;
  plan->is_deterministic = call.is_deterministic || call.direction == Direction::kForward;
  plan->device = device;
  plan->options = method->Parse(call.options, &reasons);
  if (call.direction == Direction::kBackward && !method->info().support.backward) {
    reasons.Unserved("backward is not served by this version");
  }
  CheckTensors(*method, call, &reasons);
  method->Check(ShapeOf(method->info(), call.tensors), plan->options.get(), &reasons);
  if (!reasons.empty()) return reasons.status();

  CopyTensors(call.tensors, plan.get());
  plan->shape = ShapeOf(method->info(), plan->tensors);
  plan->notes = NotesOf(*method, plan->shape, plan->options.get());
  plan->bucket = BucketOf(*plan);
  plan->host_bytes = BytesOf(call.options);
  // Batches share a stream, and so a device.
  if (devices.size() > 1) plan->bucket = absl::StrCat("#", device, "/", plan->bucket);
  ATTND_RETURN_IF_ERROR(Predict(*devices[device], control, plan.get()));
  if (!key.empty()) plans.Add(std::move(key), plan);
  return std::shared_ptr<const Plan>(std::move(plan));
}

absl::StatusOr<Execution> Engine::Impl::Execute(Stream& stream, std::span<const Problem> batch) {
  stream.workspace().Reset();
  stream.work() = {};
  Execution execution;
  if (batch.empty()) return execution;
  const Plan& first = *batch[0].plan;
  std::vector<ProblemShape> shapes;
  for (const Problem& problem : batch) {
    if (devices[problem.plan->device].get() != &stream.device()) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch: stream must be of the device of its plans, ",
                       devices[problem.plan->device]->info().name, ", got one of ",
                       stream.device().info().name));
    }
    if (problem.plan->bucket != first.bucket) {
      return absl::InvalidArgumentError(absl::StrCat("batch: buckets must be equal, got ",
                                                     first.bucket, " and ", problem.plan->bucket));
    }
    shapes.push_back(problem.plan->shape);
  }
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, unused] : first.tensors) {
    std::vector<View> views;
    for (const Problem& problem : batch) views.push_back(problem.tensors.at(name));
    tensors[name] = Tensor(std::move(views), std::vector<std::shared_ptr<Buffer>>(batch.size()));
  }
  absl::StatusOr<RunResult> run = RunFormula(stream, {&patterns, &draws}, first, tensors, shapes);
  ATTND_RETURN_IF_ERROR(run.status());

  execution.results.resize(batch.size());
  for (size_t p = 0; p < batch.size(); ++p) {
    const std::vector<OutputInfo>& infos = batch[p].plan->outputs;
    for (size_t i = 0; i < infos.size(); ++i) {
      const Tensor& tensor = run->outputs[i].second;
      execution.results[p].push_back({infos[i], tensor[p], tensor.buffer(p)});
    }
  }
  ATTND_RETURN_IF_ERROR(Fetch(stream, &execution.results));
  if (stream.stopped()) return StoppedStatus();
  // What attend counts as it runs is complete by now.
  for (size_t p = 0; p < batch.size(); ++p) {
    execution.costs.push_back(CostOf(*batch[p].plan, *run, p));
  }
  execution.peak_workspace_bytes = stream.workspace().peak_bytes();
  return execution;
}

// Patterns are built from integers, before the stream waits.
bool Engine::StaysOnHost(const Stream& stream, DType dtype) {
  return !IsFloat(dtype) && !stream.shares_host_memory();
}

absl::StatusOr<std::shared_ptr<Buffer>> Engine::Upload(
    Stream& stream, DType dtype, std::span<const std::span<const std::byte>> pieces,
    std::shared_ptr<const void> source) {
  int64_t bytes = 0;
  for (const auto& piece : pieces) bytes += static_cast<int64_t>(piece.size());
  Device& device = stream.device();
  const bool stays = StaysOnHost(stream, dtype);
  std::shared_ptr<Buffer> buffer =
      stays ? impl_->host.Allocate(bytes) : device.memory().Allocate(bytes, stream.queue());
  if (buffer == nullptr) return absl::ResourceExhaustedError("no memory left");
  if (!stays) {
    ATTND_RETURN_IF_ERROR(
        StatusOf(device.Upload(stream, buffer->data(), pieces, std::move(source))));
    return buffer;
  }
  auto* to = static_cast<std::byte*>(buffer->data());
  for (const auto& piece : pieces) to = std::copy(piece.begin(), piece.end(), to);
  return buffer;
}

absl::Status Engine::WaitForUploads(Stream& stream) { return StatusOf(stream.Wait()); }

// Brings results of a device to the host, and waits for all that was asked of it.
absl::Status Engine::Impl::Fetch(Stream& stream, std::vector<std::vector<Result>>* results) {
  Device& device = stream.device();
  // Copies that were asked for write to `results`, also where this ends early.
  struct Guard {
    Stream& stream;
    ~Guard() { static_cast<void>(stream.Wait()); }
  } const waits{stream};
  for (std::vector<Result>& of_problem : *results) {
    for (Result& result : of_problem) {
      // A result may be an input, such as a gradient that is the incoming one: nothing keeps it.
      if (device.info().has_host_memory && result.buffer != nullptr) continue;
      std::shared_ptr<Buffer> buffer = host.Allocate(result.view.bytes());
      if (buffer == nullptr) return absl::ResourceExhaustedError("no memory left for results");
      const std::span<std::byte> bytes(static_cast<std::byte*>(buffer->data()),
                                       static_cast<size_t>(result.view.bytes()));
      const void* const source = std::exchange(result.view.data, bytes.data());
      ATTND_RETURN_IF_ERROR(StatusOf(device.Download(stream, source, bytes)));
      // The device's buffer may go: the download was asked of its stream.
      result.buffer = std::move(buffer);
    }
  }
  return StatusOf(stream.Wait());
}

absl::StatusOr<Execution> Engine::Execute(Stream& stream, std::span<const Problem> batch) {
  const RunScope scope(stream.control());
  absl::StatusOr<Execution> execution =
      WithoutExceptions("engine: ", [&] { return impl_->Execute(stream, batch); });
  // Work of a failed run may still use the inputs.
  if (!execution.ok()) static_cast<void>(stream.Wait());
  return execution;
}

}  // namespace attnd
