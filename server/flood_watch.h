// Finds connections that send more than their calls may receive, and cuts off those that send what
// no honest client sends.
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
  // The end of a stream without a call (reset before the call arrived, or with headers that gRPC
  // refuses) is not seen. Up to this many at once, and as many each second, are counted as ended.
  static constexpr int64_t kMostUnseenEnds = 1024;

  int64_t open() const { return open_.load(std::memory_order_relaxed); }
  void Add(int64_t change) { open_.fetch_add(change, std::memory_order_relaxed); }
  void AddConnections(int64_t change) { connections_.fetch_add(change, std::memory_order_relaxed); }
  // Whether `streams` on one connection are at least half of the mean of all connections. The
  // connections below that have fewer streams together than the others.
  bool IsMuch(int64_t streams) const {
    return 2 * streams * connections_.load(std::memory_order_relaxed) >= open();
  }
  // Whether `streams` more may be counted as ended.
  bool TryCountAsEnded(int64_t streams);

 private:
  std::atomic<int64_t> open_{0}, connections_{0};
  Mutex mu_;
  TokenBucket ended_ ATTND_GUARDED_BY(mu_){kMostUnseenEnds,
                                           kMostUnseenEnds};  // that may still be counted so
};

// gRPC assembles a message of any size before its first byte is visible to the server. But this
// class counts what a connection has received, and the server limits what its calls may receive: if
// the first exceeds the second by kSlackBytes, some call gets more than it expects. The difference
// is compared with the lowest value that it has had, so that a client cannot save up allowance by
// declaring more than it sends.
//
// The connection itself is cut off, with the reason in the log, for what no library sends:
// - frames that FrameWalk refuses;
// - more streams, open or without a call so far, than the limit of concurrent streams: a client
//   that obeys the limit never has more;
// - more frames that carry nothing than FrameAllowance allows;
// - more streams of one client on all its connections than kFullConnections times that limit, which
//   bounds their memory. Connections far below the mean are spared;
// - kMostAheadBytes more (and a small message for each stream without a call) since a flood was
//   suspected: the polling thread is too busy to check it.
class FloodWatch final : public SocketReader {
 public:
  // Room for headers, frames and bytes that arrive just before their call is known.
  static constexpr int64_t kSlackBytes = 16 << 20;
  static constexpr int64_t kMostAheadBytes = 64 << 20;
  static constexpr int64_t kFullConnections = 8;

  struct Flood {
    std::shared_ptr<const Connection> connection;
    int64_t lowest = 0;                   // balance of the connection
    int64_t message_bytes = 0;            // of the message that was arriving; 0: it had ended
    std::vector<int64_t> other_messages;  // sizes of messages that have begun on other streams
  };
  // The indices of the calls that may be flooding, where call i expects `expected[i]` bytes: those
  // that expect less than is arriving, except calls whose messages are surely other ones. None if
  // all messages have ended: then it is a window of small ones, which gRPC lets grow to 32 MiB.
  static std::vector<size_t> Suspects(std::span<const int64_t> expected, const Flood& flood);

  // Both are called on the thread that reads.
  struct Options {
    int64_t most_streams = 1024;
    // Reports a suspected flood. Calls that have arrived but are not counted yet look like one,
    // too: the callee checks IsFlooding again once they are counted, and clears
    // Connection::is_suspected when it has handled the flood.
    std::function<void(Flood)> found;
    std::function<void(const Connection& connection, absl::string_view reason)> cut_off;
  };

  // Both arguments outlive it.
  FloodWatch(const Connection* connection, const Options* options);
  ~FloodWatch();

  static bool IsFlooding(const Connection& connection, int64_t lowest);

  bool OnRead(std::span<const iovec> pieces, int64_t bytes) noexcept override;
  void OnSent(std::span<const iovec> pieces, int64_t bytes) noexcept override;
  bool is_cut_off() const noexcept override { return is_cut_off_; }

  // The messages that have begun to arrive on the connection.
  UnfinishedMessages& messages() { return frames_.messages(); }

 private:
  absl::string_view Walk(std::span<const iovec> pieces, int64_t bytes);
  bool HasTooManyFrames(const FrameCounts& before, int64_t streams, int64_t received);
  absl::string_view Check(std::span<const iovec> pieces, int64_t bytes);
  // Streams whose call has not arrived yet.
  int64_t WithoutCall() const;
  int64_t Open() const;
  bool HasTooManyStreams();

  const Connection* const connection_;
  const Options* const options_;

  FrameWalk frames_;
  SentFrames sent_frames_;  // used by the sending thread only
  FrameAllowance allowance_;
  int64_t sent_ = 0;  // already credited to the allowance
  bool is_cut_off_ = false;
  int64_t lowest_ = 0;  // balance
  int64_t received_at_suspicion_ = 0;
  int64_t counted_as_ended_ = 0;  // streams
};

}  // namespace attnd
