#include "server/open_streams.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd {

class OpenStreams::Limited final : public Handler {
 public:
  Limited(OpenStreams* streams, std::unique_ptr<Handler> stream)
      : streams_(streams), stream_(std::move(stream)) {}

  void OnHeaders(Rpc& rpc) override {
    std::string peer = rpc.peer();
    if (const absl::Status status = streams_->Enter(peer); !status.ok()) return rpc.Finish(status);
    peer_ = std::move(peer);
    stream_->OnHeaders(rpc);
  }
  void OnMessage(Rpc& rpc, const grpc::ByteBuffer* message) override {
    stream_->OnMessage(rpc, message);
  }
  void OnFlood(Rpc& rpc) override { stream_->OnFlood(rpc); }
  void OnSent(Rpc& rpc) override { stream_->OnSent(rpc); }
  void OnDone(Rpc& rpc, bool cancelled) override {
    if (!peer_.has_value()) return;
    streams_->Leave(*peer_);
    stream_->OnDone(rpc, cancelled);
  }
  void OnEnd(Rpc& rpc, bool delivered) override {
    if (peer_.has_value()) stream_->OnEnd(rpc, delivered);
  }

 private:
  OpenStreams* const streams_;
  const std::unique_ptr<Handler> stream_;
  std::optional<std::string> peer_;  // of an open one
};

absl::Status OpenStreams::Enter(const std::string& peer) {
  if (count_ >= limits_.total) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "stream: ", limits_.total, " are open already, which is the server's limit, retry later"));
  }
  int& of_peer = by_peer_[peer];
  if (of_peer >= limits_.per_connection) {
    return absl::ResourceExhaustedError(absl::StrCat("stream: ", limits_.per_connection,
                                                     " are open on this connection already, which "
                                                     "is the limit, close some"));
  }
  of_peer += 1;
  count_ += 1;
  return absl::OkStatus();
}

void OpenStreams::Leave(const std::string& peer) {
  count_ -= 1;
  const auto found = by_peer_.find(peer);
  if (--found->second == 0) by_peer_.erase(found);
}

std::function<std::unique_ptr<Handler>()> OpenStreams::Limit(
    std::function<std::unique_ptr<Handler>()> make) {
  return [this, make = std::move(make)] { return std::make_unique<Limited>(this, make()); };
}

}  // namespace attnd
