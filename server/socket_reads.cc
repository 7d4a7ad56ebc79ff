#include "server/socket_reads.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <atomic>
#include <cassert>
#include <cerrno>

namespace attnd {
namespace {

// By descriptor. Pages for descriptors that are never used take no memory.
std::atomic<SocketReader*> readers[kMostWatched];

SocketReader* ReaderOf(int fd) {
  return fd < 0 || fd >= kMostWatched ? nullptr : readers[fd].load(std::memory_order_acquire);
}

}  // namespace

void WatchSocket(int fd, SocketReader* reader) {
  assert(fd >= 0 && fd < kMostWatched);
  readers[fd].store(reader, std::memory_order_release);
}

}  // namespace attnd

extern "C" __attribute__((visibility("default"))) ssize_t recvmsg(int fd, msghdr* message,
                                                                  int flags) {
  using Function = ssize_t (*)(int, msghdr*, int);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "recvmsg"));
  attnd::SocketReader* const reader = attnd::ReaderOf(fd);
  // Peeked bytes are read again later; the error queue holds no stream bytes.
  if (reader == nullptr || (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0) {
    return next(fd, message, flags);
  }
  if (!reader->is_cut_off()) {
    const ssize_t got = next(fd, message, flags);
    if (got <= 0 || reader->OnRead({message->msg_iov, message->msg_iovlen}, got)) return got;
  }
  errno = ECONNRESET;
  return -1;
}

extern "C" __attribute__((visibility("default"))) ssize_t sendmsg(int fd, const msghdr* message,
                                                                  int flags) {
  using Function = ssize_t (*)(int, const msghdr*, int);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "sendmsg"));
  const ssize_t sent = next(fd, message, flags);
  attnd::SocketReader* const reader = sent > 0 ? attnd::ReaderOf(fd) : nullptr;
  if (reader != nullptr) reader->OnSent({message->msg_iov, message->msg_iovlen}, sent);
  return sent;
}
