// Finds connections that send more than their calls may receive, and ends what no honest client
// does.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/core/mutex.h"
#include "server/frame_allowance.h"
#include "server/frame_walk.h"
#include "server/sent_frames.h"
#include "server/socket_reads.h"

namespace attnd {

struct Connection;

// The streams of one client, on all of its connections. Thread safe.
class ClientStreams {
 public:
  // Streams without a call (reset before it came, headers that gRPC refuses) are not known to end:
  // so many are taken for ended at once, and in a second.
  static constexpr int64_t kForgiven = 1024;

  int64_t open() const { return open_.load(std::memory_order_relaxed); }
  void Add(int64_t change) { open_.fetch_add(change, std::memory_order_relaxed); }
  void AddConnections(int64_t change) { connections_.fetch_add(change, std::memory_order_relaxed); }
  // Whether so many on one connection are half the mean of all, or more: those that are not have
  // fewer in all than the others.
  bool IsMuch(int64_t streams) const {
    return 2 * streams * connections_.load(std::memory_order_relaxed) >= open();
  }
  // Whether `streams` more are taken for ended.
  bool Forgives(int64_t streams);

 private:
  std::atomic<int64_t> open_{0}, connections_{0};
  Mutex mu_;
  TokenBucket ended_ ATTND_GUARDED_BY(mu_){kForgiven, kForgiven};  // that may be taken for it
};

// gRPC assembles a message of any size before anybody sees its first byte. But what a connection
// has received is counted here, and what its calls may receive is known to us; where the one is
// more than the other by kSlackBytes, somebody sends what was not agreed on. What was received and
// not taken is compared with the least that it has been, so that nobody saves up allowance by
// asking for more than he sends.
//
// The connection itself is cut off for what no library sends, each with the reason in the log:
// - frames that FrameWalk refuses;
// - streams that are open, or that no call has come of yet, beyond the limit of concurrent streams:
//   a client that obeys it never has more;
// - frames that carry nothing beyond FrameAllowance;
// - its part, unless it is far below the mean, of streams of one client beyond kFullConnections
//   times that limit: what they take of the memory is bounded;
// - kMostAheadBytes more (and a small message of each stream without a call) before a flood was
//   looked into: the polling thread does not come to it.
class FloodWatch final : public SocketReader {
 public:
  // The room for headers, frames and what arrives just before its call is known.
  static constexpr int64_t kSlackBytes = 16 << 20;
  static constexpr int64_t kMostAheadBytes = 64 << 20;
  static constexpr int64_t kFullConnections = 8;

  struct Flood {
    std::shared_ptr<const Connection> connection;
    int64_t lowest = 0;                   // balance of the connection
    int64_t message_bytes = 0;            // of the message that was arriving; 0: not known
    std::vector<int64_t> other_messages;  // sizes of those that have begun on other streams
  };
  // Whose flood it may be, of calls that expect so many bytes each: of those that expect less than
  // is arriving, all but those whose messages are surely others. Their indices.
  static std::vector<size_t> Suspects(std::span<const int64_t> expected, const Flood& flood);

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
  ~FloodWatch();

  static bool IsFlooding(const Connection& connection, int64_t lowest);

  bool OnRead(std::span<const iovec> pieces, int64_t bytes) noexcept override;
  void OnSent(std::span<const iovec> pieces, int64_t bytes) noexcept override;
  bool is_cut_off() const noexcept override { return is_cut_off_; }

  // What has begun to arrive on the connection.
  UnfinishedMessages& messages() { return frames_.messages(); }

 private:
  absl::string_view Walk(std::span<const iovec> pieces, int64_t bytes);
  bool HasTooManyFrames(const FrameCounts& before, int64_t streams, int64_t received);
  absl::string_view Check(std::span<const iovec> pieces, int64_t bytes);
  // Streams that no call has come of yet.
  int64_t WithoutCall() const;
  int64_t Open() const;
  bool HasTooManyStreams();

  const Connection* const connection_;
  const Options* const options_;

  FrameWalk frames_;
  SentFrames sent_frames_;  // of the thread that sends
  FrameAllowance allowance_;
  int64_t sent_ = 0;  // that the allowance knows
  bool is_cut_off_ = false;
  int64_t lowest_ = 0;  // balance
  int64_t received_at_suspicion_ = 0;
  int64_t forgiven_ = 0;  // streams
};

}  // namespace attnd
