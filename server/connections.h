// The open connections: their clients and limits, and the bytes that they receive.
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

// One accepted socket. gRPC closes the descriptor without notice; the inode shows whether the
// number still belongs to this socket.
struct Connection : std::enable_shared_from_this<Connection> {
  int fd = -1;
  ino_t inode = 0;
  std::string peer;  // "ipv4:10.0.0.7:5000", "ipv6:%5B::1%5D:5000" as gRPC writes it, "unix:17"
  // The client whose connections share places and turns: the peer without its port, since a host
  // may open as many connections as it likes. Each connection of a Unix socket is a client of its
  // own.
  std::string client;

  // Bytes that gRPC has read from it so far. Written by the thread that reads.
  mutable std::atomic<int64_t> received{0};
  // Bytes that its calls may still receive, and bytes received for them, frames and headers
  // included. Written by the polling thread.
  mutable std::atomic<int64_t> expected{0}, taken{0};
  // Bytes of the messages whose sending has begun, plus kCallBytes for each.
  mutable std::atomic<int64_t> sent{0};
  mutable std::atomic<int64_t> calls{0}, ended{0};  // arrived and ended so far
  mutable std::atomic<bool> is_suspected{false};    // of a flood that is not checked yet
  mutable int late_calls = 0;  // polling thread only: ended unread, their bytes may still arrive
  mutable int64_t calls_at_check = -1;  // polling thread only: calls when a flood was last checked

  // Shared by all connections of its client; set by Connections::Add.
  mutable std::shared_ptr<ClientStreams> streams = std::make_shared<ClientStreams>();
  // Shared in the same way; the connections of all Unix sockets share one.
  mutable std::shared_ptr<SharedFrames> frames = std::make_shared<SharedFrames>();
  // Watches what is read from it; set by Connections::Add, too.
  mutable std::unique_ptr<FloodWatch> watch;

  bool is_open() const;
  int64_t Balance() const { return received.load() - taken.load(); }
  // One of its calls has ended.
  void EndCall() const {
    ended.fetch_add(1, std::memory_order_relaxed);
    streams->Add(-1);
  }
  void Sends(int64_t bytes) const { sent.fetch_add(bytes + kCallBytes, std::memory_order_relaxed); }
  // Of `was_expected` bytes `bytes` have arrived, and the rest does not follow.
  void Settle(int64_t was_expected, int64_t bytes) const {
    // A frame of HTTP/2 has nine bytes beside its data, a call some headers.
    taken.fetch_add(bytes + bytes / 8 + kCallBytes, std::memory_order_relaxed);
    expected.fetch_sub(was_expected, std::memory_order_relaxed);
  }

  static constexpr int64_t kCallBytes = 8 << 10;
  static constexpr int64_t kSmallBytes = 64 << 10;  // of a message, unless its call expects more
};

// Whether a client uses a Unix socket: it is on this machine and has access to the socket's file.
inline bool IsUnixClient(absl::string_view client) { return absl::StartsWith(client, "unix:"); }

// Null, with errno, if `fd` is no socket with a peer.
std::shared_ptr<const Connection> DescribeConnection(int fd);

// Thread safe. Bounded by its limits. Closed connections are removed by the next Sweep, or by an
// Add that finds no place, at most every 10 ms.
class Connections {
 public:
  struct Limits {
    int total = 4096;
    int per_client = 2048;  // each connection of a Unix socket is one client
  };
  struct Counts {
    int open = 0;
    int64_t accepted = 0, refused = 0, cut_off = 0;  // since the start
  };

  // `found` and the limit of streams are those of FloodWatch.
  explicit Connections(const Limits& limits, int64_t most_streams = 1024,
                       std::function<void(FloodWatch::Flood)> found = {});
  ~Connections();

  // Starts to watch what it receives.
  // Errors: RESOURCE_EXHAUSTED "connection: at most 8 of one client are allowed, ...".
  absl::Status Add(std::shared_ptr<const Connection> connection);
  void Remove(int fd);
  void CountRefusal();
  void Sweep();
  Counts counts() const;

  // The connection that gRPC calls "fd:17"; null if there is none. gRPC keeps the descriptor open
  // as long as a call exists, so the number belongs to the call's connection.
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
  // Kept for a while after its last connection: reconnecting does not renew its allowances.
  struct Client {
    int connections = 0;
    std::shared_ptr<ClientStreams> streams;
    std::shared_ptr<SharedFrames> frames;
    std::chrono::steady_clock::time_point left_at;  // when its last connection left
  };
  std::map<std::string, Client> by_client_ ATTND_GUARDED_BY(mu_);
  const std::shared_ptr<SharedFrames> unix_frames_ = std::make_shared<SharedFrames>();
  Counts counts_ ATTND_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point last_sweep_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd
