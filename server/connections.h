// Who is connected, and how many connections one client has.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "kernels/core/mutex.h"

namespace attnd {

// One accepted socket. The descriptor is closed by gRPC, at a time that nobody is told; the inode
// tells whether the number still stands for this socket.
struct Connection {
  int fd = -1;
  ino_t inode = 0;
  std::string peer;  // "ipv4:10.0.0.7:5000", "ipv6:%5B::1%5D:5000" as gRPC writes it, "unix:17"
  // Who shares places and turns with whom: the peer without its port, so that the connections of a
  // host are one client, since it may open as many as it likes; each of a Unix socket is one.
  std::string client;

  // What its calls may still receive, and what has been received for them, frames and headers
  // included. Written by the polling thread.
  mutable std::atomic<int64_t> expected{0}, taken{0};
  mutable std::atomic<int64_t> calls{0};  // arrived so far
  mutable int late_calls = 0;  // polling thread only: ended unread, whose bytes may still arrive
  mutable int64_t calls_at_check = -1;  // polling thread only: when a flood was last looked for

  bool is_open() const;
  // Bytes that gRPC has read from it so far, or -1 where the system does not tell (Unix sockets) or
  // it is closed.
  int64_t received_bytes() const;
  int64_t Balance(int64_t received) const { return received - taken.load(); }
  // `bytes` of what was expected are here, or do not come any more.
  void Settle(int64_t was_expected, int64_t bytes) const {
    // A frame of HTTP/2 has nine bytes beside its data, a call some headers.
    taken.fetch_add(bytes + bytes / 8 + kCallBytes, std::memory_order_relaxed);
    expected.fetch_sub(was_expected, std::memory_order_relaxed);
  }

  static constexpr int64_t kCallBytes = 8 << 10;
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
    int64_t accepted = 0, refused = 0;  // since the start
  };

  explicit Connections(const Limits& limits) : limits_(limits) {}

  // Errors: RESOURCE_EXHAUSTED "connection: at most 8 of one client are allowed, ...".
  absl::Status Add(std::shared_ptr<const Connection> connection);
  void Remove(int fd);
  void CountRefusal();
  void Sweep();
  Counts counts() const;

  // The connection that gRPC calls "fd:17"; null if there is none (any more).
  std::shared_ptr<const Connection> Find(absl::string_view grpc_peer) const;

 private:
  absl::Status Check(const std::string& client) const ATTND_REQUIRES(mu_);
  void SweepLocked() ATTND_REQUIRES(mu_);
  void RemoveLocked(size_t fd) ATTND_REQUIRES(mu_);

  const Limits limits_;
  mutable Mutex mu_;
  std::vector<std::shared_ptr<const Connection>> by_fd_ ATTND_GUARDED_BY(mu_);
  std::map<std::string, int> by_client_ ATTND_GUARDED_BY(mu_);
  Counts counts_ ATTND_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point last_sweep_ ATTND_GUARDED_BY(mu_);
};

}  // namespace attnd
