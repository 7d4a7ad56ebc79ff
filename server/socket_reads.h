// Shows the bytes that gRPC reads from its sockets, before gRPC parses them, and those that it
// sent.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

namespace attnd {

// gRPC reads with recvmsg and sends with sendmsg. The process defines these functions itself: they
// call those of the system and pass the bytes to the SocketReader of the descriptor. A descriptor
// without one costs a lookup in a table.
class SocketReader {
 public:
  // `bytes` > 0 have been read into `pieces`, in order. False: gRPC gets neither these bytes nor
  // later ones, but a connection reset. Called on the reading thread; reads of a socket do not
  // overlap.
  virtual bool OnRead(std::span<const iovec> pieces, int64_t bytes) noexcept = 0;
  // The first `bytes` > 0 of `pieces` have been sent. Called on the sending thread, which may be
  // another one; sends of a socket do not overlap.
  virtual void OnSent(std::span<const iovec> pieces, int64_t bytes) noexcept = 0;
  // Whether OnRead returned false before.
  virtual bool is_cut_off() const noexcept = 0;

 protected:
  ~SocketReader() = default;
};

// Descriptors from here on cannot be watched.
constexpr int kMostWatched = 1 << 20;

// Sets the reader of a descriptor; null: none. It is used until the next call for `fd`, also for
// another socket that gets the same number. REQUIRES: no read or send of `fd` is under way;
// 0 <= fd < kMostWatched.
void WatchSocket(int fd, SocketReader* reader);

}  // namespace attnd
