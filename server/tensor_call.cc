#include "server/tensor_call.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"
#include "server/log.h"
#include "server/reply.h"

namespace attnd {
namespace {

using attn::v1::BackwardRequest;
using attn::v1::ForwardRequest;

constexpr char kNoMessage[] = "request: message is required, got none";

// The metric label of a request that may turn out to be refused.
std::string MethodOf(const attn::v1::MethodSpec& spec) {
  const google::protobuf::FieldDescriptor* field = spec.GetReflection()->GetOneofFieldDescriptor(
      spec, spec.GetDescriptor()->FindOneofByName("method"));
  return field == nullptr ? "unknown" : field->name();
}

template <class Request>
absl::StatusOr<DecodedRequest> DecodeAs(const Received& received, const DecodeContext& context,
                                        std::string* method) {
  Request request;
  std::vector<Spans> raw;
  ATTND_RETURN_IF_ERROR(SplitMessage(received.pieces, &request, &raw));
  *method = MethodOf(request.method());
  return Decode(request, std::move(raw), context);
}

// A result's memory may leave after its lane and its batcher are gone, but not after its pool.
struct Outgoing {
  std::shared_ptr<Engine> engine;  // destroyed last
  std::shared_ptr<Buffer> buffer;
};

// Head, then for each tensor its field header and its payload from where the kernel wrote it.
grpc::ByteBuffer BuildReply(std::string head, std::span<const Result> results,
                            const std::shared_ptr<Engine>& engine) {
  std::vector<grpc::Slice> slices;
  for (const Result& result : results) {
    const int64_t bytes = result.view.bytes();
    head += RawFieldHeader(bytes);
    slices.emplace_back(head);
    head.clear();
    if (bytes > 0) {
      slices.push_back(Wrap(result.view.data, static_cast<size_t>(bytes),
                            std::make_shared<Outgoing>(Outgoing{engine, result.buffer})));
    }
  }
  if (!head.empty()) slices.emplace_back(head);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

attn::v1::Stats StatsOf(const Plan& plan, const Phases& phases, absl::string_view device) {
  attn::v1::Stats stats;
  stats.set_queue_seconds(phases.queue_seconds);
  stats.set_gather_seconds(phases.gather_seconds);
  stats.set_compute_seconds(phases.compute_seconds);
  stats.set_batch_requests(phases.batch_requests);
  stats.set_batch_tokens(phases.batch_tokens);
  stats.set_peak_workspace_bytes(phases.peak_workspace_bytes);
  stats.set_visible_pairs(plan.visible_pairs);
  stats.set_flops(plan.flops);
  stats.set_device(std::string(device));
  return stats;
}

class TensorCall final : public Handler {
 public:
  TensorCall(TensorContext* context, Direction direction)
      : context_(context), direction_(direction) {
    context_->open.Add(1);
    context_->metrics->AddInflight(1);
  }
  ~TensorCall() override { context_->open.Add(-1); }

  void OnHeaders(Rpc& rpc) override;
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override;
  void OnDone(Rpc& rpc, bool cancelled) override;

 private:
  absl::Status Admit() const;
  absl::Status Submit(Rpc& rpc, const grpc::ByteBuffer& message);
  absl::Status CheckSizes(const Plan& plan) const;
  void Answer(Rpc& rpc, const absl::Status& status, std::span<const Result> results,
              const Phases& phases) noexcept;
  void Refuse(Rpc& rpc, const absl::Status& status);
  void RecordUnread(const Rpc& rpc);
  void Record(const Rpc& rpc, const absl::Status& status, int64_t sent_bytes);

  TensorContext* const context_;
  const Direction direction_;

  // Written on the polling thread before the task is submitted.
  std::string id_, device_, method_ = "unknown";
  std::shared_ptr<const Plan> plan_;
  int64_t received_bytes_ = 0;

  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  // Polling thread only.
  bool submitted_ = false, lacks_message_ = false, is_done_ = false;
};

absl::Status TensorCall::Admit() const {
  if (context_->draining.load()) {
    context_->metrics->RecordRefusal(Refusal::kDraining);
    return absl::UnavailableError("request: the server is draining, send it to another one");
  }
  if (context_->batcher->waiting() >= context_->max_queue_requests) {
    context_->metrics->RecordRefusal(Refusal::kQueueFull);
    return absl::ResourceExhaustedError(absl::StrCat(
        "request: queue is full (", context_->max_queue_requests, " requests), retry later"));
  }
  return absl::OkStatus();
}

void TensorCall::OnHeaders(Rpc& rpc) {
  if (absl::Status status = Admit(); !status.ok()) {
    Refuse(rpc, status);
  } else {
    rpc.Read();
  }
}

void TensorCall::OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) {
  if (message == nullptr) {
    // Half-closed, or gone: known once the call is over.
    lacks_message_ = true;
    rpc.Finish(absl::InvalidArgumentError(kNoMessage));
    if (is_done_) RecordUnread(rpc);
    return;
  }
  if (absl::Status status = Submit(rpc, *message); !status.ok()) Refuse(rpc, status);
}

absl::Status TensorCall::Submit(Rpc& rpc, const grpc::ByteBuffer& message) {
  received_bytes_ = static_cast<int64_t>(message.Length());
  context_->metrics->AddReceivedBytes(received_bytes_);
  if (received_bytes_ > context_->max_message_bytes) {
    context_->metrics->RecordRefusal(Refusal::kBytes);
    // The words of gRPC's own check.
    return absl::ResourceExhaustedError(absl::StrCat("Received message larger than max (",
                                                     received_bytes_, " vs. ",
                                                     context_->max_message_bytes, ")"));
  }
  Received received;
  absl::Status status = Receive(message, &received);
  absl::StatusOr<DecodedRequest> decoded =
      !status.ok() ? status
      : direction_ == Direction::kForward
          ? DecodeAs<ForwardRequest>(received, context_->decode(), &method_)
          : DecodeAs<BackwardRequest>(received, context_->decode(), &method_);
  status = decoded.ok() ? CheckSizes(*decoded->plan) : decoded.status();
  if (!status.ok()) {
    context_->metrics->RecordRefusal(Refusal::kInvalid);
    return status;
  }
  id_ = std::move(decoded->id);
  device_ = std::move(decoded->device);
  plan_ = std::move(decoded->plan);

  auto task = std::make_unique<Task>();
  task->plan = plan_;
  task->payloads = std::move(decoded->payloads);
  task->payload_owner = std::move(received.owner);
  task->priority = decoded->priority;
  task->admitted = context_->clock->Now();
  task->deadline = rpc.deadline();
  task->cancelled = cancelled_;
  // The slices go when the gathered copy is complete, and only then does the workspace grow.
  task->charged_bytes = received_bytes_ + std::max(plan_->input_bytes, plan_->workspace_bytes);
  task->done = [this, call = rpc.shared_from_this()](
                   absl::Status result_status, std::vector<Result> results, const Phases& phases) {
    Answer(*call, result_status, results, phases);
  };
  submitted_ = true;
  return context_->batcher->Submit(task);
}

absl::Status TensorCall::CheckSizes(const Plan& plan) const {
  if (plan.output_bytes <= context_->max_message_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(plan.method->info().id, ": outputs must fit a message of ",
                   context_->max_message_bytes, " bytes, got ", plan.output_bytes));
}

void TensorCall::OnDone(Rpc& rpc, bool cancelled) {
  is_done_ = true;
  cancelled_->store(cancelled);
  // What still waits is answered now; what runs is answered by its lane.
  if (cancelled && submitted_) context_->batcher->Sweep();
  if (lacks_message_) RecordUnread(rpc);
}

// The second of OnMessage without a message and OnDone, in whatever order they come.
void TensorCall::RecordUnread(const Rpc& rpc) {
  absl::Status status = absl::InvalidArgumentError(kNoMessage);
  Refusal refusal = Refusal::kInvalid;
  if (cancelled_->load()) {
    status = WhyCancelled(rpc.started(), rpc.deadline(), context_->clock->Now());
    refusal = RefusalOf(status);
  }
  context_->metrics->RecordRefusal(refusal);
  Record(rpc, status, /*sent_bytes=*/0);
}

void TensorCall::Refuse(Rpc& rpc, const absl::Status& status) {
  Record(rpc, status, /*sent_bytes=*/0);
  rpc.Finish(status);
}

// On whatever thread had the last word about the task.
void TensorCall::Answer(Rpc& rpc, const absl::Status& status, std::span<const Result> results,
                        const Phases& phases) noexcept {
  if (!status.ok()) return Refuse(rpc, status);
  try {
    std::vector<OutputInfo> infos;
    for (const Result& result : results) infos.push_back(result.info);
    attn::v1::Stats stats = StatsOf(*plan_, phases, device_);
    const double answer_seconds = Seconds(context_->clock->Now() - phases.computed);
    stats.set_answer_seconds(answer_seconds);
    const grpc::ByteBuffer reply =
        BuildReply(EncodeReplyHead(direction_, id_, infos, stats), results, context_->engine);
    context_->metrics->RecordAnswer(method_, direction_, answer_seconds);
    Record(rpc, status, static_cast<int64_t>(reply.Length()));
    rpc.Reply(reply);
  } catch (const std::exception& e) {
    Refuse(rpc, absl::ResourceExhaustedError(absl::StrCat("request: no reply: ", e.what())));
  }
}

// Before the answer leaves, so that who has it finds it counted.
void TensorCall::Record(const Rpc& rpc, const absl::Status& status, int64_t sent_bytes) {
  const double seconds = Seconds(context_->clock->Now() - rpc.started());
  context_->metrics->AddInflight(-1);
  context_->metrics->AddSentBytes(sent_bytes);
  context_->metrics->RecordRequest(method_, direction_, status.code(), seconds);
  const LogLevel level = status.ok() ? LogLevel::kDebug : LogLevel::kInfo;
  if (context_->logs_requests || (!status.ok() && context_->refused_lines.Allow())) {
    Log(level, "request",
        {{"method", method_},
         {"direction", std::string(Name(direction_))},
         {"code", absl::StatusCodeToString(status.code())},
         {"seconds", absl::StrCat(seconds)},
         {"received_bytes", absl::StrCat(received_bytes_)},
         {"sent_bytes", absl::StrCat(sent_bytes)},
         {"peer", rpc.context().peer()},
         {"reason", std::string(status.message())}});
  }
}

}  // namespace

bool LineLimit::Allow() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const int64_t second = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  if (second_.exchange(second) != second) lines_.store(0);
  return lines_.fetch_add(1) < kLinesPerSecond;
}

void OpenCalls::Add(int change) {
  const MutexLock lock(&mu_);
  count_ += change;
  if (count_ == 0) none_.NotifyAll();
}

int OpenCalls::count() const {
  const MutexLock lock(&mu_);
  return count_;
}

bool OpenCalls::WaitNone(TimePoint until) {
  const MutexLock lock(&mu_);
  while (count_ > 0 && std::chrono::steady_clock::now() < until) none_.WaitUntil(&mu_, until);
  return count_ == 0;
}

DecodeContext TensorContext::decode() const {
  return {.devices = devices, .plan = [this](const Call& call) { return engine->MakePlan(call); }};
}

std::unique_ptr<Handler> NewTensorCall(TensorContext* context, Direction direction) {
  return std::make_unique<TensorCall>(context, direction);
}

}  // namespace attnd
