#include "server/open_streams.h"

#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd {
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
  void OnOverdue(Rpc& rpc, const absl::Status& status) override {
    was_given_up_ = true;
    stream_->OnOverdue(rpc, status);
  }
  void OnSent(Rpc& rpc) override { stream_->OnSent(rpc); }
  void OnDone(Rpc& rpc, bool cancelled) override {
    if (!names_.has_value()) return;
    streams_->Leave(names_->peer, names_->client, was_given_up_);
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
  std::optional<Names> names_;  // set while the stream is open
  bool was_given_up_ = false;
};

absl::Status OpenStreams::Enter(const std::string& peer, const std::string& client) {
  if (count_ >= limits_.total) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "stream: ", limits_.total, " are open already, which is the server's limit, retry later"));
  }
  if (const auto found = by_peer_.find(peer);
      found != by_peer_.end() && found->second >= limits_.per_connection) {
    return absl::ResourceExhaustedError(absl::StrCat("stream: ", limits_.per_connection,
                                                     " are open on this connection already, which "
                                                     "is the limit, close some"));
  }
  if (has_given_up_) ForgetGivenUp();
  if (const auto found = by_client_.find(client);
      found != by_client_.end() && found->second.count() >= per_client_) {
    const size_t given_up = found->second.given_up.size();
    return absl::ResourceExhaustedError(absl::StrCat(
        "stream: ", per_client_, " are open of ", client, " already",
        given_up == 0 ? ""
                      : absl::StrCat(" (", given_up,
                                     " of them ended lately because a message did not arrive)"),
        ", which is the limit of one client, close some"));
  }
  by_peer_[peer] += 1;
  by_client_[client].open += 1;
  count_ += 1;
  return absl::OkStatus();
}

void OpenStreams::Leave(const std::string& peer, const std::string& client, bool was_given_up) {
  count_ -= 1;
  const auto of_peer = by_peer_.find(peer);
  if (--of_peer->second == 0) by_peer_.erase(of_peer);
  const auto of_client = by_client_.find(client);
  of_client->second.open -= 1;
  if (was_given_up) {
    of_client->second.given_up.push_back(clock_->Now());
    has_given_up_ = true;
  } else if (of_client->second.count() == 0) {
    by_client_.erase(of_client);
  }
}

void OpenStreams::ForgetGivenUp() {
  has_given_up_ = false;
  const TimePoint since = clock_->Now() - kGivenUp;
  for (auto it = by_client_.begin(); it != by_client_.end();) {
    std::deque<TimePoint>& given_up = it->second.given_up;
    while (!given_up.empty() && given_up.front() <= since) given_up.pop_front();
    has_given_up_ = has_given_up_ || !given_up.empty();
    it = it->second.count() == 0 ? by_client_.erase(it) : std::next(it);
  }
}

std::function<std::unique_ptr<Handler>()> OpenStreams::Limit(
    std::function<std::unique_ptr<Handler>()> make) {
  return [this, make = std::move(make)] { return std::make_unique<Limited>(this, make()); };
}

}  // namespace attnd
