// The C++ client library: blocking for one caller, asynchronous for several; or one stream for all.
#include "attnd/client.h"

#include "tests/bench/transport.d/load.h"
#include "tests/bench/transport.d/request.h"

namespace attnd::bench {
namespace {

class AttndClient final : public Client {
 public:
  enum class Style { kInPlace, kGather, kPipeline };

  AttndClient(const ClientOptions& options, Style style) : gathers_(style != Style::kInPlace) {
    auto client = client::Client::Create({.target = options.target, .spin_us = options.spin_us});
    if (!client.ok()) Die(client.status().ToString());
    client_ = *std::move(client);
    if (style == Style::kPipeline) pipeline_ = client_->OpenPipeline();
  }

  void Prepare(const std::vector<Inputs>& inputs) override {
    callers_.clear();
    for (const Inputs& one : inputs) {
      Caller& caller = callers_.emplace_back();
      const attn::v1::ForwardRequest head = RequestHead(one.q.size());
      caller.request.method = head.method();
      const void* const data[] = {one.q.data(), one.k.data(), one.v.data()};
      for (int i = 0; i < head.tensors_size(); ++i) {
        const attn::v1::Tensor& tensor = head.tensors(i);
        caller.request.tensors.push_back({.name = tensor.name(),
                                          .shape = {tensor.shape().begin(), tensor.shape().end()},
                                          .data = data[i]});
      }
      caller.out.resize(gathers_ ? one.q.size() : 0);
    }
  }

  void Run(Slice& slice) override {
    if (slice.callers() == 1 && pipeline_ == nullptr) {
      RunBlocking(slice, [this](int number) {
        Caller& caller = callers_[static_cast<size_t>(number)];
        Take(&caller, client_->Forward(caller.request));
      });
      return;
    }
    AsyncRun run(slice, [this, &run](int number) {
      Caller& caller = callers_[static_cast<size_t>(number)];
      auto done = [this, &run, &caller, number](absl::StatusOr<client::Reply> reply) {
        Take(&caller, std::move(reply));
        run.Done(number);
      };
      const absl::Status status =
          pipeline_ != nullptr
              ? pipeline_->Submit(client::Direction::kForward, caller.request, std::move(done))
              : client_->ForwardAsync(caller.request, std::move(done)).status();
      if (!status.ok()) Die(status.ToString());
    });
    run.Run();
  }

  std::string Reply(int number) override {
    const Caller& caller = callers_[static_cast<size_t>(number)];
    if (gathers_) return {reinterpret_cast<const char*>(caller.out.data()), caller.out.size()};
    const client::ReplyTensor& out = *caller.reply.Find("out");
    std::string bytes(static_cast<size_t>(out.bytes()), '\0');
    out.CopyTo(bytes.data());
    return bytes;
  }

 private:
  struct Caller {
    client::Request request;
    client::Reply reply;  // in place: the last one
    AlignedBytes out;     // gathered: where every reply goes
  };

  void Take(Caller* caller, absl::StatusOr<client::Reply> reply) const {
    if (!reply.ok()) Die("attnd: " + reply.status().ToString());
    if (!gathers_) {
      caller->reply = *std::move(reply);
      return;
    }
    const client::ReplyTensor* const out = reply->Find("out");
    if (out == nullptr || out->bytes() != static_cast<int64_t>(caller->out.size())) {
      Die("attnd: no out");
    }
    out->CopyTo(caller->out.data());
  }

  const bool gathers_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::Pipeline> pipeline_;
  std::vector<Caller> callers_;
};

}  // namespace

std::unique_ptr<Client> NewInPlaceClient(const ClientOptions& options) {
  return std::make_unique<AttndClient>(options, AttndClient::Style::kInPlace);
}
std::unique_ptr<Client> NewGatherClient(const ClientOptions& options) {
  return std::make_unique<AttndClient>(options, AttndClient::Style::kGather);
}
std::unique_ptr<Client> NewPipelineClient(const ClientOptions& options) {
  return std::make_unique<AttndClient>(options, AttndClient::Style::kPipeline);
}

}  // namespace attnd::bench
