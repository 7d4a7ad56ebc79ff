#include "server/tensor_request.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/core/status.h"
#include "kernels/method/method.h"
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"
#include "proto/wire/scratch.h"
#include "server/lanes.h"
#include "server/log.h"
#include "server/no_memory.h"
#include "server/plan_limits.h"
#include "server/planner.h"
#include "server/reasons.h"
#include "server/refusals.h"
#include "server/reply.h"

namespace attnd {
namespace {

// The metric label of a request, which may be refused later.
std::string LabelOf(const attn::v1::MethodSpec& spec) {
  const google::protobuf::FieldDescriptor* field = spec.GetReflection()->GetOneofFieldDescriptor(
      spec, spec.GetDescriptor()->FindOneofByName("method"));
  return field == nullptr ? "unknown" : field->name();
}

// Owned by a slice of a reply until gRPC releases it. The memory may outlive its lane and its
// batcher, but not its pool, which the engine owns.
struct Outgoing {
  std::shared_ptr<Engine> engine;  // destroyed last
  std::shared_ptr<Buffer> buffer;
  std::shared_ptr<void> charge;
};

attn::v1::Stats StatsOf(const Phases& phases, absl::string_view device) {
  attn::v1::Stats stats;
  stats.set_queue_seconds(phases.queue_seconds);
  stats.set_gather_seconds(phases.gather_seconds);
  stats.set_compute_seconds(phases.compute_seconds);
  stats.set_batch_requests(phases.batch_requests);
  stats.set_batch_tokens(phases.batch_tokens);
  stats.set_peak_workspace_bytes(phases.peak_workspace_bytes);
  stats.set_visible_pairs(phases.cost.visible_pairs);
  stats.set_flops(phases.cost.flops);
  stats.set_device(std::string(device));
  return stats;
}

}  // namespace

TensorRequest::TensorRequest(TensorContext* context, const Rpc* rpc, Direction direction,
                             TimePoint started, Frame frame)
    : context_(context),
      rpc_(rpc),
      direction_(direction),
      started_(started),
      frame_(std::move(frame)),
      client_(rpc->client()) {
  context_->open.Add(1);
  context_->metrics->AddInflight(1);
}

TensorRequest::~TensorRequest() {
  // Ends a request that has not ended: its answer waited on a stream that broke, or an exception
  // ended the call.
  const absl::StatusCode code = rpc_->code();
  End(/*delivered=*/false, code == absl::StatusCode::kOk ? absl::StatusCode::kInternal : code);
  context_->open.Add(-1);
}

absl::Status TensorRequest::Admit(std::optional<absl::string_view> device) const {
  if (context_->draining.load()) {
    context_->metrics->RecordRefusal(Refusal::kDraining);
    return DrainingStatus();
  }
  return Batcher::AdmitToAny(context_->BatchersOf(device), client_, context_->MaxPriority(client_),
                             rpc_->deadline());
}

absl::Status TensorRequest::AdmitHead(absl::string_view head) {
  const bool is_timed = rpc_->deadline() != TimePoint::max() || context_->max_request_seconds > 0;
  if (!is_timed && context_->devices.size() == 1) return absl::OkStatus();
  return direction_ == Direction::kForward ? AdmitHeadAs<attn::v1::ForwardRequest>(head)
                                           : AdmitHeadAs<attn::v1::BackwardRequest>(head);
}

template <class Request>
absl::Status TensorRequest::AdmitHeadAs(absl::string_view head) {
  Scratch<Request> request;
  if (!request->ParseFromArray(head.data(), static_cast<int>(head.size()))) return absl::OkStatus();
  if (context_->devices.size() > 1) ATTND_RETURN_IF_ERROR(Admit(request->device()));
  if (IntegersOf(request->tensors()) > 0) return absl::OkStatus();
  Scratch<attn::v1::EstimateRequest> estimate;
  *estimate->mutable_method() = request->method();
  *estimate->mutable_tensors() = request->tensors();
  for (attn::v1::Tensor& tensor : *estimate->mutable_tensors()) tensor.clear_raw_index();
  estimate->set_backward(direction_ == Direction::kBackward);
  estimate->set_device(request->device());
  if constexpr (requires { request->has_deterministic(); }) {
    if (request->has_deterministic()) estimate->set_deterministic(request->deterministic());
  }
  DecodedRequest decoded = DecodeEnvelope(*estimate, context_->decode(client_));
  if (WorkOf(decoded) > kSmallPlanWork ||
      !context_->AddPlan(client_, &decoded, /*control=*/nullptr).ok()) {
    return absl::OkStatus();
  }
  method_ = LabelOf(request->method());
  if (absl::Status status = CheckPlan(*context_, *decoded.plan); !status.ok()) {
    context_->metrics->RecordRefusal(RefusalOf(status));
    return status;
  }
  const int priority = std::min(request->priority(), context_->MaxPriority(client_));
  return context_->batchers[decoded.plan->device]->Admit(client_, priority, rpc_->deadline(),
                                                         decoded.plan.get());
}

absl::Status TensorRequest::Submit(const attn::v1::ForwardRequest& request, Payloads payloads,
                                   Done done) {
  return SubmitAs(request, std::move(payloads), std::move(done));
}

absl::Status TensorRequest::Submit(const attn::v1::BackwardRequest& request, Payloads payloads,
                                   Done done) {
  return SubmitAs(request, std::move(payloads), std::move(done));
}

template <class Request>
absl::Status TensorRequest::SubmitAs(const Request& request, Payloads payloads, Done done) {
  received_bytes_ = payloads.message_bytes;
  charge_ = std::make_shared<Charge>(Charge{.host = std::move(payloads.share), .device = {}});
  method_ = LabelOf(request.method());
  is_submitted_ = true;
  const bool is_later = plan_control_ != nullptr;
  const int64_t integers = IntegersOf(request.tensors());
  if (!is_later && integers > kSmallIntegers) {
    const auto held = std::make_shared<Request>(request);
    return Later(integers, done,
                 [this, held, raw = std::move(payloads.raw), owner = std::move(payloads.owner),
                  done]() mutable {
                   return Queue(DecodeEnvelope(*held, std::move(raw), context_->decode(client_)),
                                owner, done);
                 });
  }
  DecodedRequest decoded =
      DecodeEnvelope(request, std::move(payloads.raw), context_->decode(client_));
  const int64_t work = WorkOf(decoded);
  if (is_later || work <= kSmallPlanWork) {
    return Queue(std::move(decoded), std::move(payloads.owner), std::move(done));
  }
  const auto held = std::make_shared<DecodedRequest>(std::move(decoded));
  return Later(work, done, [this, held, owner = std::move(payloads.owner), done] {
    return Queue(std::move(*held), owner, done);
  });
}

absl::Status TensorRequest::Later(int64_t work, Done done, std::function<absl::Status()> submit) {
  is_submitted_ = true;
  plan_control_ = std::make_shared<RunControl>();
  if (rpc_->deadline() != TimePoint::max()) plan_control_->StopAt(rpc_->deadline());
  Planner::Job job{.client = client_, .work = work, .control = plan_control_};
  job.run = [this, submit = std::move(submit), done = std::move(done)] {
    const absl::Status status =
        Guarded([&] { return plan_control_->stopped() ? Stopped() : submit(); });
    if (!status.ok()) Answer(done, status, {}, {});
  };
  absl::Status status = context_->planner->Submit(job);
  if (!status.ok()) context_->metrics->RecordRefusal(Refusal::kQueueFull);
  return status;
}

absl::Status TensorRequest::Stopped() const {
  absl::Status status = WhyCancelled(started_, rpc_->deadline(), context_->clock->Now());
  context_->metrics->RecordRefusal(RefusalOf(status));
  return status;
}

// Plans, charges and queues the request; counts every refusal.
absl::Status TensorRequest::Queue(DecodedRequest decoded, std::shared_ptr<void> owner, Done done) {
  absl::Status status = context_->AddPlan(client_, &decoded, plan_control_.get());
  if (absl::IsCancelled(status)) return Stopped();
  if (status.ok()) status = CheckPlan(*context_, *decoded.plan);
  if (!status.ok()) {
    context_->metrics->RecordRefusal(RefusalOf(status));
    return status;
  }
  if (status = ChargeFor(*decoded.plan); !status.ok()) {
    context_->metrics->RecordRefusal(Refusal::kBytes);
    return status;
  }
  id_ = std::move(decoded.id);
  device_ = std::move(decoded.device);
  plan_ = std::move(decoded.plan);

  auto task = std::make_unique<Task>();
  task->plan = plan_;
  task->payloads = std::move(decoded.payloads);
  task->payload_owner = std::move(owner);
  task->priority = decoded.priority;
  task->admitted = context_->clock->Now();
  task->deadline = rpc_->deadline();
  task->cancelled = cancelled_;
  task->client = client_;
  task->charged_bytes = charge_->host.bytes() + charge_->device.bytes();
  task->charge = charge_;
  task->done = [this, done = std::move(done)](absl::Status result_status,
                                              std::vector<Result> results, const Phases& phases) {
    Answer(done, std::move(result_status), results, phases);
  };
  return context_->batchers[plan_->device]->Submit(task);
}

absl::Status TensorRequest::ChargeFor(const Plan& plan) {
  const PlanBytes need = BytesFor(*context_, plan, received_bytes_);
  Budget* const of_device = context_->device_budgets[plan.device];
  if (of_device == nullptr) return ChargeHost(need.host);
  std::optional<Budget::Share> share = of_device->Take(need.device);
  if (!share.has_value()) return NoDeviceRoom(*context_, plan.device, need.device);
  ATTND_RETURN_IF_ERROR(ChargeHost(need.host));
  charge_->device = *std::move(share);
  return absl::OkStatus();
}

absl::Status TensorRequest::ChargeHost(int64_t need) {
  if (charge_->host.Resize(need)) return absl::OkStatus();
  if (need <= context_->budget->total()) context_->intake->OnShortage();
  return NoHostRoom(*context_, need);
}

void TensorRequest::Refuse(const absl::Status& status) {
  charge_.reset();
  Decide(status, /*sent_bytes=*/0);
}

void TensorRequest::Refuse(const absl::Status& status, Refusal reason) {
  context_->metrics->RecordRefusal(reason);
  Refuse(status);
}

void TensorRequest::Cancel() {
  cancelled_->store(true);
  if (plan_control_ != nullptr) plan_control_->Cancel();
  if (!is_submitted_) return;
  for (Lanes* lanes : context_->lanes) lanes->Sweep();
}

void TensorRequest::Answer(const Done& done, absl::Status status, std::span<const Result> results,
                           const Phases& phases) {
  grpc::ByteBuffer reply;
  if (!status.ok()) {
    // Zero: the request was refused before it was queued.
    if (phases.queue_seconds > 0)
      context_->metrics->RecordQueued(method_, direction_, phases.queue_seconds);
  } else {
    try {
      reply = BuildReply(results, phases);
    } catch (const std::exception&) {
      status = NoMemory();
    }
  }
  charge_.reset();
  Decide(status, status.ok() ? static_cast<int64_t>(reply.Length()) : 0);
  done(status, reply);
}

// The payloads are sent from the output buffers, without a copy.
grpc::ByteBuffer TensorRequest::BuildReply(std::span<const Result> results, const Phases& phases) {
  std::vector<OutputInfo> infos;
  for (const Result& result : results) infos.push_back(result.info);
  attn::v1::Stats stats = StatsOf(phases, device_);
  const double answer_seconds = Seconds(context_->clock->Now() - phases.computed);
  stats.set_answer_seconds(answer_seconds);
  context_->metrics->RecordAnswer(method_, direction_, answer_seconds);

  std::string head = EncodeReplyHead(direction_, id_, infos, stats, plan_->notes);
  if (frame_) head = frame_(direction_, std::move(head));
  // Only the outputs are left; they are charged until gRPC releases them.
  (void)charge_->device.Resize(0);
  (void)charge_->host.Resize(std::min(charge_->host.bytes(), plan_->output_bytes));
  std::vector<Payload> payloads;
  for (const Result& result : results) {
    payloads.push_back(
        {.data = result.view.data,
         .bytes = static_cast<size_t>(result.view.bytes()),
         .owner = std::make_shared<Outgoing>(Outgoing{context_->engine, result.buffer, charge_})});
  }
  return Join(std::move(head), payloads);
}

void TensorRequest::Decide(const absl::Status& status, int64_t sent_bytes) {
  outcome_ = status;
  reply_bytes_ = sent_bytes;
  is_decided_.store(true, std::memory_order_release);
}

void TensorRequest::End(bool delivered, absl::StatusCode code) noexcept {
  if (std::exchange(has_ended_, true)) return;
  const TimePoint now = context_->clock->Now();
  // A code alone needs no memory.
  absl::Status status =
      is_decided_.load(std::memory_order_acquire) ? outcome_ : absl::Status(code, "");
  if (status.ok() && !delivered) {
    status = WhyCancelled(started_, rpc_->deadline(), now);
    context_->metrics->RecordRefusal(RefusalOf(status));
  }
  const int64_t sent_bytes = status.ok() ? reply_bytes_ : 0;
  const double seconds = Seconds(now - started_);
  context_->metrics->AddInflight(-1);
  context_->metrics->AddSentBytes(sent_bytes);
  context_->metrics->RecordRequest(method_, direction_, status.code(), seconds);
  if (context_->logs_requests || (!status.ok() && context_->refused_lines.Allow())) {
    LogEnd(status, seconds, sent_bytes);
  }
}

void TensorRequest::LogEnd(const absl::Status& status, double seconds,
                           int64_t sent_bytes) const noexcept try {
  Log(status.ok() ? LogLevel::kDebug : LogLevel::kInfo, "request",
      {{"method", method_},
       {"direction", std::string(Name(direction_))},
       {"code", absl::StatusCodeToString(status.code())},
       {"seconds", absl::StrCat(seconds)},
       {"received_bytes", absl::StrCat(received_bytes_)},
       {"sent_bytes", absl::StrCat(sent_bytes)},
       {"peer", rpc_->peer()},
       {"reason", std::string(status.message())}});
} catch (const std::bad_alloc&) {
  // No memory for the line; the request is counted all the same.
}

}  // namespace attnd
