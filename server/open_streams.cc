#include "server/open_streams.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

using Counts = std::map<std::string, int>;

int CountOf(const Counts& counts, const std::string& name) {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

void Decrease(Counts* counts, const std::string& name) {
  const auto found = counts->find(name);
  if (--found->second == 0) counts->erase(found);
}

}  // namespace

class OpenStreams::Limited final : public Handler {
 public:
  Limited(OpenStreams* streams, std::unique_ptr<Handler> stream)
      : streams_(streams), stream_(std::move(stream)) {}

  void OnHeaders(Rpc& rpc) override {
    Names names{.peer = rpc.peer(), .client = rpc.client()};
    const absl::Status status = streams_->Enter(names.peer, names.client);
    if (!status.ok()) return rpc.Finish(status);
    names_ = std::move(names);
    stream_->OnHeaders(rpc);
  }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    stream_->OnMessage(rpc, message);
  }
  void OnFlood(Rpc& rpc) override { stream_->OnFlood(rpc); }
  void OnOverdue(Rpc& rpc, const absl::Status& status) override { stream_->OnOverdue(rpc, status); }
  void OnSent(Rpc& rpc) override { stream_->OnSent(rpc); }
  void OnDone(Rpc& rpc, bool cancelled) override {
    if (!names_.has_value()) return;
    streams_->Leave(names_->peer, names_->client);
    stream_->OnDone(rpc, cancelled);
  }
  void OnEnd(Rpc& rpc, bool delivered) override {
    if (names_.has_value()) stream_->OnEnd(rpc, delivered);
  }

 private:
  OpenStreams* const streams_;
  const std::unique_ptr<Handler> stream_;
  struct Names {
    std::string peer, client;
  };
  std::optional<Names> names_;  // of an open one
};

absl::Status OpenStreams::Enter(const std::string& peer, const std::string& client) {
  if (count_ >= limits_.total) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "stream: ", limits_.total, " are open already, which is the server's limit, retry later"));
  }
  if (CountOf(by_peer_, peer) >= limits_.per_connection) {
    return absl::ResourceExhaustedError(absl::StrCat("stream: ", limits_.per_connection,
                                                     " are open on this connection already, which "
                                                     "is the limit, close some"));
  }
  if (CountOf(by_client_, client) >= per_client_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("stream: ", per_client_, " are open of ", client,
                     " already, which is the limit of one client, close some"));
  }
  by_peer_[peer] += 1;
  by_client_[client] += 1;
  count_ += 1;
  return absl::OkStatus();
}

void OpenStreams::Leave(const std::string& peer, const std::string& client) {
  count_ -= 1;
  Decrease(&by_peer_, peer);
  Decrease(&by_client_, client);
}

std::function<std::unique_ptr<Handler>()> OpenStreams::Limit(
    std::function<std::unique_ptr<Handler>()> make) {
  return [this, make = std::move(make)] { return std::make_unique<Limited>(this, make()); };
}

}  // namespace attnd
