#include "attnd/client.h"

#include <malloc.h>

#include <climits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "channel.h"
#include "core.h"
#include "kernels/core/status.h"
#include "message.h"
#include "proto/wire/bytes.h"
#include "run_stream.h"
#include "unary_call.h"

namespace attnd::client {
namespace {

std::string Path(absl::string_view method) { return absl::StrCat("/", kService, "/", method); }
const char* Name(Direction direction) {
  return direction == Direction::kForward ? "Forward" : "Backward";
}

std::optional<std::chrono::nanoseconds> TimeoutOf(const Core& core, const CallOptions& options) {
  return options.timeout.has_value() ? options.timeout : core.options().timeout;
}

absl::Status Closed() { return absl::CancelledError("client: it is closed"); }

// The server reserves this much before it reads the request, or refuses it.
void Declare(const Message& message, grpc::ClientContext* context) {
  context->AddMetadata("attnd-message-bytes", absl::StrCat(message.bytes.Length()));
  if (!message.head.empty()) context->AddMetadata("attnd-head-bin", message.head);
}

// Runs on the caller's thread, with a completion queue made for this call.
absl::StatusOr<grpc::ByteBuffer> Call(const Core& core, absl::string_view method, Message message,
                                      std::unique_ptr<grpc::ClientContext> context) {
  bool is_done = false;
  UnaryCall call(std::move(context), message.loan, [&is_done](UnaryCall&) { is_done = true; });
  const auto stub = core.stub();
  if (stub == nullptr) return Closed();
  EventQueue events(std::chrono::microseconds(core.options().spin_us));
  call.Start(stub.get(), Path(method), message.bytes, &events);
  message.bytes.Clear();  // while a slice is held here, its loan cannot return
  while (!is_done) events.Next();
  if (absl::Status status = call.status(); !status.ok()) return status;
  return call.reply();
}

absl::StatusOr<Reply> CallTensors(const Core& core, Direction direction, const Request& request,
                                  const CallOptions& options) {
  absl::StatusOr<Message> message = EncodeRequest(direction, request);
  if (!message.ok()) return message.status();
  auto context = core.NewContext(TimeoutOf(core, options));
  Declare(*message, context.get());
  const auto reply = Call(core, Name(direction), *std::move(message), std::move(context));
  if (!reply.ok()) return reply.status();
  return DecodeReply(direction, *reply);
}

absl::StatusOr<AsyncCall> StartTensors(Core* core, Direction direction, const Request& request,
                                       Callback done, const CallOptions& options) {
  absl::StatusOr<Message> message = EncodeRequest(direction, request);
  if (!message.ok()) return message.status();
  auto context = core->NewContext(TimeoutOf(*core, options));
  Declare(*message, context.get());
  const auto call = std::make_shared<UnaryCall>(
      std::move(context), message->loan, [core, direction, done = std::move(done)](UnaryCall& c) {
        const absl::Status status = c.status();
        done(status.ok() ? DecodeReply(direction, c.reply()) : status);
        core->Remove(&c);
      });
  const auto stub = core->stub();
  EventQueue* events = core->Add(call);
  if (events == nullptr) return Closed();
  call->Start(stub.get(), Path(Name(direction)), message->bytes, events);
  message->bytes.Clear();
  return AsyncCall(call);
}

template <class Answer>
absl::StatusOr<Answer> CallPlain(const Core& core, absl::string_view method,
                                 const google::protobuf::Message& request,
                                 const CallOptions& options) {
  const auto reply =
      Call(core, method, Message(Serialize(request)), core.NewContext(TimeoutOf(core, options)));
  if (!reply.ok()) return reply.status();
  Answer answer;
  if (const absl::Status status = Parse(*reply, &answer); !status.ok()) {
    return absl::InternalError(absl::StrCat("reply: ", status.message()));
  }
  return answer;
}

}  // namespace

void AsyncCall::Cancel() const {
  if (const auto call = call_.lock()) call->Cancel();
}

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  const auto channel = MakeChannel(options);
  if (!channel.ok()) return channel.status();
  return std::unique_ptr<Client>(new Client(std::make_shared<Core>(options, *channel)));
}

Client::Client(std::shared_ptr<Core> core) : core_(std::move(core)) {}
Client::~Client() { core_->Close(); }

absl::StatusOr<Reply> Client::Forward(const Request& request, const CallOptions& options) {
  return CallTensors(*core_, Direction::kForward, request, options);
}

absl::StatusOr<Reply> Client::Backward(const Request& request, const CallOptions& options) {
  return CallTensors(*core_, Direction::kBackward, request, options);
}

absl::StatusOr<AsyncCall> Client::ForwardAsync(const Request& request, Callback done,
                                               const CallOptions& options) {
  return StartTensors(core_.get(), Direction::kForward, request, std::move(done), options);
}

absl::StatusOr<AsyncCall> Client::BackwardAsync(const Request& request, Callback done,
                                                const CallOptions& options) {
  return StartTensors(core_.get(), Direction::kBackward, request, std::move(done), options);
}

std::unique_ptr<Pipeline> Client::OpenPipeline(const PipelineOptions& options) {
  return std::make_unique<Pipeline>(RunStream::Open(core_, options));
}

absl::StatusOr<attn::v1::EstimateReply> Client::Estimate(const attn::v1::EstimateRequest& request,
                                                         const CallOptions& options) {
  return CallPlain<attn::v1::EstimateReply>(*core_, "Estimate", request, options);
}

absl::StatusOr<attn::v1::ListMethodsReply> Client::ListMethods(const CallOptions& options) {
  return CallPlain<attn::v1::ListMethodsReply>(*core_, "ListMethods",
                                               attn::v1::ListMethodsRequest(), options);
}

absl::StatusOr<attn::v1::ServerInfoReply> Client::ServerInfo(const CallOptions& options) {
  return CallPlain<attn::v1::ServerInfoReply>(*core_, "ServerInfo", attn::v1::ServerInfoRequest(),
                                              options);
}

void UseLargeReads() {
  attnd::UseLargeReads();
  has_large_reads = true;
}

void TuneMalloc() {
  // gRPC allocates and frees a block for every 64 KB that it reads. Left alone, glibc hands the end
  // of the heap back after each large message and faults it in again for the next one.
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 16 << 20);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
}

}  // namespace attnd::client
