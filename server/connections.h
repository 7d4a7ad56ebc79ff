// Who is connected, how many connections one client has, and what comes in on them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "kernels/core/mutex.h"
#include "server/flood_watch.h"

namespace attnd {

// One accepted socket. The descriptor is closed by gRPC, at a time that nobody is told; the inode
// tells whether the number still stands for this socket.
struct Connection : std::enable_shared_from_this<Connection> {
  int fd = -1;
  ino_t inode = 0;
  std::string peer;  // "ipv4:10.0.0.7:5000", "ipv6:%5B::1%5D:5000" as gRPC writes it, "unix:17"
  // Who shares places and turns with whom: the peer without its port, so that the connections of a
  // host are one client, since it may open as many as it likes; each of a Unix socket is one.
  std::string client;

  // Bytes that gRPC has read from it so far. Written by the thread that reads.
  mutable std::atomic<int64_t> received{0};
  // What its calls may still receive, and what has been received for them, frames and headers
  // included. Written by the polling thread.
  mutable std::atomic<int64_t> expected{0}, taken{0};
  // Bytes of messages that were begun to be sent on it, with kCallBytes for each.
  mutable std::atomic<int64_t> sent{0};
  mutable std::atomic<int64_t> calls{0}, ended{0};  // arrived and ended so far
  mutable std::atomic<bool> is_suspected{false};    // of a flood that is not looked into yet
  mutable int late_calls = 0;  // polling thread only: ended unread, whose bytes may still arrive
  mutable int64_t calls_at_check = -1;  // polling thread only: when a flood was last looked for

  // Of all connections of its client; from Connections::Add on.
  mutable std::shared_ptr<ClientStreams> streams = std::make_shared<ClientStreams>();
  // Of its client too; those of all Unix sockets together.
  mutable std::shared_ptr<SharedFrames> frames = std::make_shared<SharedFrames>();
  // Sees what is read from it; from then on, too.
  mutable std::unique_ptr<FloodWatch> watch;

  bool is_open() const;
  int64_t Balance() const { return received.load() - taken.load(); }
  // One of its calls has ended.
  void EndCall() const {
    ended.fetch_add(1, std::memory_order_relaxed);
    streams->Add(-1);
  }
  void Sends(int64_t bytes) const { sent.fetch_add(bytes + kCallBytes, std::memory_order_relaxed); }
  // `bytes` of what was expected are here, or do not come any more.
  void Settle(int64_t was_expected, int64_t bytes) const {
    // A frame of HTTP/2 has nine bytes beside its data, a call some headers.
    taken.fetch_add(bytes + bytes / 8 + kCallBytes, std::memory_order_relaxed);
    expected.fetch_sub(was_expected, std::memory_order_relaxed);
  }

  static constexpr int64_t kCallBytes = 8 << 10;
  static constexpr int64_t kSmallBytes = 64 << 10;  // of a message, unless its call says more
};

// Whether a client came through a Unix socket: it is on this machine and may open the socket's
// file.
inline bool IsUnixClient(absl::string_view client) { return absl::StartsWith(client, "unix:"); }

// Null, with errno, if `fd` is no socket with a peer.
std::shared_ptr<const Connection> DescribeConnection(int fd);

// Thread safe. Bounded by its limits. What was closed leaves with the next Sweep, or within 10 ms
// when somebody finds no place.
class Connections {
 public:
  struct Limits {
    int total = 4096;
    int per_client = 2048;  // a Unix socket's connections are clients of their own
  };
  struct Counts {
    int open = 0;
    int64_t accepted = 0, refused = 0, cut_off = 0;  // since the start
  };

  // `found` and the limit of streams are those of FloodWatch.
  explicit Connections(const Limits& limits, int64_t most_streams = 1024,
                       std::function<void(FloodWatch::Flood)> found = {});
  ~Connections();

  // What it receives is watched from here on.
  // Errors: RESOURCE_EXHAUSTED "connection: at most 8 of one client are allowed, ...".
  absl::Status Add(std::shared_ptr<const Connection> connection);
  void Remove(int fd);
  void CountRefusal();
  void Sweep();
  Counts counts() const;

  // The connection that gRPC calls "fd:17"; null if there is none (any more). For as long as a call
  // is there gRPC keeps the descriptor open, so that the number stands for the call's connection.
  std::shared_ptr<const Connection> Find(absl::string_view grpc_peer) const;

 private:
  absl::Status Check(const Connection& connection) const ATTND_REQUIRES(mu_);
  void OnCutOff(const Connection& connection, absl::string_view reason);
  void SweepLocked() ATTND_REQUIRES(mu_);
  void RemoveLocked(size_t fd) ATTND_REQUIRES(mu_);
  void ForgetClients() ATTND_REQUIRES(mu_);

  const Limits limits_;
  const FloodWatch::Options watch_;
  mutable Mutex mu_;
  std::vector<std::shared_ptr<const Connection>> by_fd_ ATTND_GUARDED_BY(mu_);
  // Is kept for a while without connections: what it has used up does not come back with the next.
  struct Client {
    int connections = 0;
    std::shared_ptr<ClientStreams> streams;
    std::shared_ptr<SharedFrames> frames;
    std::chrono::steady_clock::time_point left_at;  // if it has none
  };
  std::map<std::string, Client> by_client_ ATTND_GUARDED_BY(mu_);
  const std::shared_ptr<SharedFrames> unix_frames_ = std::make_shared<SharedFrames>();
  Counts counts_ ATTND_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point last_sweep_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd
