// Finds connections that send more than their calls may receive, and ends what no honest client
// does.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>

#include "absl/strings/string_view.h"
#include "server/frame_walk.h"
#include "server/socket_reads.h"

namespace attnd {

struct Connection;

// gRPC assembles a message of any size before anybody sees its first byte. But what a connection
// has received is counted here, and what its calls may receive is known to us; where the one is
// more than the other by kSlackBytes, somebody sends what was not agreed on. What was received and
// not taken is compared with the least that it has been, so that nobody saves up allowance by
// asking for more than he sends.
//
// The connection itself is cut off for what no library sends, each with the reason in the log:
// - frames that FrameWalk refuses;
// - streams that are open, or that no call has come of yet, beyond the limit of concurrent streams:
//   a client that obeys it never has more. Streams without a call (reset before it came, headers
//   that gRPC refuses) are forgiven, kForgivenStreams at once and a second;
// - kMostAheadBytes more (and a small message of each stream without a call) before a flood was
//   looked into: the polling thread does not come to it.
class FloodWatch final : public SocketReader {
 public:
  // The room for headers, frames and what arrives just before its call is known.
  static constexpr int64_t kSlackBytes = 16 << 20;
  static constexpr int64_t kMostAheadBytes = 64 << 20;
  static constexpr int64_t kForgivenStreams = 1024;

  struct Flood {
    std::shared_ptr<const Connection> connection;
    int64_t lowest = 0;         // balance of the connection
    int64_t message_bytes = 0;  // of the message that was arriving; 0: not known
  };
  // Both are called on the thread that reads.
  struct Options {
    int64_t most_streams = 1024;
    // Calls that have arrived and are not known yet look like a flood: whoever knows the calls asks
    // IsFlooding again, and clears Connection::is_suspected once he has ended it.
    std::function<void(Flood)> found;
    std::function<void(const Connection& connection, absl::string_view reason)> cut_off;
  };

  // Both outlive it.
  FloodWatch(const Connection* connection, const Options* options);

  static bool IsFlooding(const Connection& connection, int64_t lowest);

  bool OnRead(std::span<const iovec> pieces, int64_t bytes) noexcept override;
  bool is_cut_off() const noexcept override { return is_cut_off_; }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  absl::string_view Check(std::span<const iovec> pieces, int64_t bytes);
  // Streams that no call has come of yet.
  int64_t WithoutCall() const;
  bool HasTooManyStreams();
  bool Forgives(int64_t streams);

  const Connection* const connection_;
  const Options* const options_;

  FrameWalk frames_;
  bool is_cut_off_ = false;
  int64_t lowest_ = 0;  // balance
  int64_t received_at_suspicion_ = 0;
  int64_t forgiven_ = 0;  // streams
  double can_forgive_ = kForgivenStreams;
  TimePoint forgave_at_;
};

}  // namespace attnd
