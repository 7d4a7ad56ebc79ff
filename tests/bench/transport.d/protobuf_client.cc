// Clients as the generated code offers them: synchronous and callback API, `bytes` fields filled
// from user memory, one channel. Requests and replies are reused from call to call, which is faster
// than new ones.
#include <grpcpp/grpcpp.h>

#include "attn/v1/attention.grpc.pb.h"
#include "tests/bench/transport.d/load.h"
#include "tests/bench/transport.d/request.h"

namespace attnd::bench {
namespace {

using attn::v1::AttentionService;
using attn::v1::ForwardReply;
using attn::v1::ForwardRequest;

std::unique_ptr<AttentionService::Stub> Connect(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return AttentionService::NewStub(
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
}

// The messages of one caller.
class Messages {
 public:
  explicit Messages(const Inputs& inputs)
      : inputs_(inputs), request_(RequestHead(inputs.q.size())) {}

  void Fill() {
    request_.clear_raw();
    for (const auto* tensor : {&inputs_.q, &inputs_.k, &inputs_.v}) {
      request_.add_raw(tensor->data(), tensor->size());
    }
  }
  void Check(const grpc::Status& status) const {
    if (!status.ok()) Die("protobuf: " + status.error_message());
    if (reply_.raw_size() != 1 || reply_.raw(0).size() != inputs_.q.size()) Die("protobuf: no out");
  }
  const ForwardRequest& request() const { return request_; }
  ForwardReply* reply() { return &reply_; }

 private:
  const Inputs& inputs_;
  ForwardRequest request_;
  ForwardReply reply_;
};

class SyncClient final : public Client {
 public:
  explicit SyncClient(const ClientOptions& options) : stub_(Connect(options.target)) {}
  void Prepare(const std::vector<Inputs>& inputs) override {
    callers_.clear();
    for (const Inputs& one : inputs) callers_.emplace_back(one);
  }
  void Run(Slice& slice) override {
    RunBlocking(slice, [this](int number) {
      Messages& caller = callers_[static_cast<size_t>(number)];
      caller.Fill();
      grpc::ClientContext context;
      caller.Check(stub_->Forward(&context, caller.request(), caller.reply()));
    });
  }
  std::string Reply(int caller) override {
    return callers_[static_cast<size_t>(caller)].reply()->raw(0);
  }

 private:
  const std::unique_ptr<AttentionService::Stub> stub_;
  std::vector<Messages> callers_;
};

class CallbackClient final : public Client {
 public:
  explicit CallbackClient(const ClientOptions& options) : stub_(Connect(options.target)) {}
  void Prepare(const std::vector<Inputs>& inputs) override {
    callers_.clear();
    for (const Inputs& one : inputs) callers_.push_back({Messages(one), nullptr});
  }
  void Run(Slice& slice) override {
    AsyncRun run(slice, [this, &run](int number) {
      Caller& caller = callers_[static_cast<size_t>(number)];
      caller.messages.Fill();
      caller.context = std::make_unique<grpc::ClientContext>();
      stub_->async()->Forward(caller.context.get(), &caller.messages.request(),
                              caller.messages.reply(),
                              [&run, &caller, number](const grpc::Status& status) {
                                caller.messages.Check(status);
                                run.Done(number);
                              });
    });
    run.Run();
  }
  std::string Reply(int caller) override {
    return callers_[static_cast<size_t>(caller)].messages.reply()->raw(0);
  }

 private:
  struct Caller {
    Messages messages;
    std::unique_ptr<grpc::ClientContext> context;
  };
  const std::unique_ptr<AttentionService::Stub> stub_;
  std::vector<Caller> callers_;
};

}  // namespace

std::unique_ptr<Client> NewSyncClient(const ClientOptions& options) {
  return std::make_unique<SyncClient>(options);
}
std::unique_ptr<Client> NewCallbackClient(const ClientOptions& options) {
  return std::make_unique<CallbackClient>(options);
}

}  // namespace attnd::bench
