#include "server/service.h"

#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/method/registry.h"
#include "server/estimate_call.h"
#include "server/small_call.h"
#include "server/tensor_call.h"

namespace attnd {
namespace {

// A unary call that is answered at once, on the polling thread.
template <class Request, class Reply>
class CheapCall final : public SmallCall<Request> {
 public:
  using Function = std::function<absl::StatusOr<Reply>(const Request&)>;
  explicit CheapCall(Function function) : function_(std::move(function)) {}

 private:
  void OnRequest(Rpc& rpc, const Request& request) override {
    const absl::StatusOr<Reply> reply = function_(request);
    if (!reply.ok()) return rpc.Finish(reply.status());
    rpc.Reply(Serialize(*reply));
  }

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
  (*table)[prefix + "Estimate"] = [tensors] { return NewEstimateCall(tensors); };
  AddCheap<ServerInfoRequest, ServerInfoReply>(table, "ServerInfo",
                                               [this](const ServerInfoRequest&) { return Info(); });
}

}  // namespace attnd
