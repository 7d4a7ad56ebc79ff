#include "server/service.h"

#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/registry.h"
#include "proto/wire/bytes.h"
#include "proto/wire/codec.h"
#include "server/tensor_call.h"

namespace attnd {
namespace {

// A unary call that is answered at once, on the polling thread.
template <class Request, class Reply>
class CheapCall final : public Handler {
 public:
  using Function = std::function<absl::StatusOr<Reply>(const Request&)>;
  explicit CheapCall(Function function) : function_(std::move(function)) {}

  void OnHeaders(Rpc& rpc) override {
    rpc.Expect(kMaxHeadBytes);
    rpc.Read(Rpc::kSmallMessage);
  }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    if (message == nullptr) {
      return rpc.Finish(
          absl::InvalidArgumentError("request: a whole message is required, got none"));
    }
    // A larger one, without tensors, would only hold up the polling thread.
    if (message->Length() > kMaxHeadBytes) {
      return rpc.Finish(absl::InvalidArgumentError(
          absl::StrCat("message: size must be <= ", kMaxHeadBytes, ", got ", message->Length())));
    }
    Request request;
    if (absl::Status status = Parse(*message, &request); !status.ok()) return rpc.Finish(status);
    const absl::StatusOr<Reply> reply = function_(request);
    if (!reply.ok()) return rpc.Finish(reply.status());
    rpc.Reply(Serialize(*reply));
  }

 private:
  const Function function_;
};

template <class Request, class Reply>
void AddCheap(MethodTable* table, const char* name,
              std::function<absl::StatusOr<Reply>(const Request&)> function) {
  (*table)[absl::StrCat("/", kServiceName, "/", name)] = [function = std::move(function)] {
    return std::make_unique<CheapCall<Request, Reply>>(function);
  };
}

}  // namespace

Service::Service(TensorContext* tensors, ServerFacts facts)
    : tensors_(tensors),
      facts_(std::move(facts)),
      started_(tensors->clock->Now()),
      runs_(tensors) {}

attn::v1::ServerInfoReply Service::Info() const {
  ServerFacts facts = facts_;
  facts.uptime_seconds = Seconds(tensors_->clock->Now() - started_);
  return DescribeServer(facts);
}

void Service::AddMethods(MethodTable* table) {
  using namespace attn::v1;
  const std::string prefix = absl::StrCat("/", kServiceName, "/");
  TensorContext* const tensors = tensors_;
  (*table)[prefix + "Forward"] = [tensors] { return NewTensorCall(tensors, Direction::kForward); };
  (*table)[prefix + "Backward"] = [tensors] {
    return NewTensorCall(tensors, Direction::kBackward);
  };
  (*table)[prefix + "Run"] = [this] { return runs_.NewCall(); };
  AddCheap<ListMethodsRequest, ListMethodsReply>(
      table, "ListMethods", [tensors](const ListMethodsRequest&) {
        return DescribeMethods(AllMethods(), tensors->devices);
      });
  AddCheap<EstimateRequest, EstimateReply>(
      table, "Estimate",
      [tensors](const EstimateRequest& request) -> absl::StatusOr<EstimateReply> {
        const absl::StatusOr<DecodedRequest> decoded = Decode(request, tensors->decode(""));
        if (!decoded.ok()) return decoded.status();
        return DescribePlan(*decoded->plan, decoded->device);
      });
  AddCheap<ServerInfoRequest, ServerInfoReply>(table, "ServerInfo",
                                               [this](const ServerInfoRequest&) { return Info(); });
}

}  // namespace attnd
