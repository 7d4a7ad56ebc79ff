// What gRPC reads from its sockets, seen before gRPC parses it, and what it has sent.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

namespace attnd {

// gRPC reads with recvmsg and sends with sendmsg. The process defines these functions itself: they
// ask the system as before and show what came, or left, to whoever watches the descriptor. A
// descriptor that nobody watches costs the look into a table.
class SocketReader {
 public:
  // `bytes` > 0 have been read into `pieces`, in order. False: nothing of it reaches gRPC, nor what
  // follows: for gRPC the connection is reset. On the thread that reads; one read of a socket
  // follows the other.
  virtual bool OnRead(std::span<const iovec> pieces, int64_t bytes) noexcept = 0;
  // The first `bytes` > 0 of `pieces` have been sent. On the thread that sends, which may be
  // another one; one send of a socket follows the other.
  virtual void OnSent(std::span<const iovec> pieces, int64_t bytes) noexcept = 0;
  // Whether OnRead returned false before.
  virtual bool is_cut_off() const noexcept = 0;

 protected:
  ~SocketReader() = default;
};

// Descriptors from here on cannot be watched.
constexpr int kMostWatched = 1 << 20;

// Null: nobody watches. The reader is used until somebody else, or nobody, watches `fd`, which must
// not happen while it is read or sent to: also for another socket that gets its number meanwhile.
// REQUIRES: 0 <= fd < kMostWatched.
void WatchSocket(int fd, SocketReader* reader);

}  // namespace attnd
