#include "server/socket_reads.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <atomic>
#include <cassert>
#include <cerrno>

namespace attnd {
namespace {

// By descriptor. Pages that no descriptor reaches take no memory.
std::atomic<SocketReader*> readers[kMostWatched];

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
  attnd::SocketReader* const reader = fd < 0 || fd >= attnd::kMostWatched
                                          ? nullptr
                                          : attnd::readers[fd].load(std::memory_order_acquire);
  // Peeked bytes come again; the queue of errors holds none.
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
