#include "server/acceptor.h"

#include <fcntl.h>
#include <grpc/grpc.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "server/line_limit.h"
#include "server/log.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;

constexpr int kEventsAtATime = 64;
// Connections of one listener before the others have their turn.
constexpr int kAcceptsAtATime = 64;
// Sockets of refused clients that are kept open until the client has received the reason.
constexpr size_t kMostLeaving = 32;
constexpr milliseconds kLeaveTime{1000};
constexpr milliseconds kPause{100};
// How often expired sockets are closed.
constexpr milliseconds kLook{200};

std::chrono::steady_clock::time_point SteadyNow() { return std::chrono::steady_clock::now(); }

int OpenReserve() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

// An empty SETTINGS frame, which HTTP/2 requires first, and GOAWAY with ENHANCE_YOUR_CALM.
std::string GoAway(absl::string_view reason) {
  const auto length = static_cast<char>(8 + std::min<size_t>(reason.size(), 200));
  std::string frames("\0\0\0\4\0\0\0\0\0", 9);
  frames += {0, 0, length, 7, 0, 0, 0, 0, 0};
  frames += {0, 0, 0, 0, 0, 0, 0, 0xb};
  absl::StrAppend(&frames, reason.substr(0, 200));
  return frames;
}

LineLimit& Lines() {
  static LineLimit lines;
  return lines;
}

}  // namespace

Acceptor::Acceptor(Options options, Connections* connections)
    : options_(std::move(options)), connections_(connections) {}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(Options options,
                                                           Connections* connections) {
  std::unique_ptr<Acceptor> acceptor(new Acceptor(std::move(options), connections));
  acceptor->epoll_ = epoll_create1(EPOLL_CLOEXEC);
  acceptor->wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  acceptor->reserve_ = OpenReserve();
  if (acceptor->epoll_ < 0 || acceptor->wake_ < 0 || acceptor->reserve_ < 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen: ", std::strerror(errno)));
  }
  for (const std::string& address : acceptor->options_.addresses) {
    absl::StatusOr<Listener> listener = ListenOn(address);
    if (!listener.ok()) return listener.status();
    acceptor->listeners_.push_back(*std::move(listener));
  }
  return acceptor;
}

void Acceptor::Watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    Log(LogLevel::kError, "cannot watch a socket", {{"error", std::strerror(errno)}});
  }
}

void Acceptor::Start() {
  Watch(wake_);
  for (const Listener& listener : listeners_) {
    for (const int fd : listener.fds) {
      listening_.insert(fd);
      Watch(fd);
    }
  }
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(wake_, &one, sizeof one);
    thread_.join();
  }
  for (Listener& listener : listeners_) CloseListener(&listener);
  for (const int fd : {epoll_, wake_, reserve_}) {
    if (fd >= 0) close(fd);
  }
  epoll_ = wake_ = reserve_ = -1;
}

void Acceptor::Run() {
  pthread_setname_np(pthread_self(), "acceptor");
  epoll_event events[kEventsAtATime];
  while (!is_stopping_) {
    const int count = epoll_wait(epoll_, events, kEventsAtATime, TimeoutMs());
    try {
      for (int i = 0; i < count; ++i) OnEvent(events[i].data.fd);
      CloseExpired();
    } catch (const std::bad_alloc&) {
      // epoll reports unhandled events again.
      paused_until_ = SteadyNow() + kPause;
    }
    // The listeners stay ready during the pause, so epoll_wait would return at once.
    if (SteadyNow() < paused_until_) std::this_thread::sleep_for(milliseconds(5));
  }
  for (const auto& [fd, until] : silent_) {
    connections_->Remove(fd);
    close(fd);
  }
  for (const Limited& one : leaving_) close(one.fd);
}

void Acceptor::OnEvent(int fd) {
  if (fd == wake_) {
    is_stopping_ = true;
  } else if (silent_.count(fd) > 0) {
    OnReadable(fd);
  } else if (listening_.count(fd) > 0 && SteadyNow() >= paused_until_) {
    AcceptFrom(fd);
  }
}

// -1, which waits without a limit, if no socket has a time to be closed at.
int Acceptor::TimeoutMs() const {
  return silent_.empty() && leaving_.empty() ? -1 : static_cast<int>(kLook.count());
}

void Acceptor::AcceptFrom(int listener) {
  for (int i = 0; i < kAcceptsAtATime; ++i) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      try {
        TakeOne(fd);
      } catch (const std::bad_alloc&) {
        silent_.erase(fd);
        connections_->Remove(fd);
        close(fd);
        throw;
      }
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return OnNoDescriptors(listener, errno);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      // EAGAIN, or an error of that one connection: a later event reports the next one.
      return;
    }
  }
}

void Acceptor::TakeOne(int fd) {
  std::shared_ptr<const Connection> connection = DescribeConnection(fd);
  if (connection == nullptr) {  // gone already
    close(fd);
    return;
  }
  const std::string peer = connection->peer;
  if (const absl::Status status = connections_->Add(std::move(connection)); !status.ok()) {
    if (Lines().Allow()) {
      Log(LogLevel::kWarning, "connection refused",
          {{"peer", peer}, {"reason", std::string(status.message())}});
    }
    return Refuse(fd, std::string(status.message()));
  }
  silent_[fd] = SteadyNow() + options_.silence;
  Watch(fd);
}

// Its first byte has arrived, or the client has closed it.
void Acceptor::OnReadable(int fd) {
  char byte;
  const ssize_t got = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  silent_.erase(fd);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  if (got > 0) return options_.take(fd);
  connections_->Remove(fd);
  close(fd);
}

void Acceptor::Refuse(int fd, const std::string& reason) {
  const std::string frames = GoAway(reason);
  const bool is_sent = send(fd, frames.data(), frames.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0 &&
                       // Closing at once would reset the connection if the client has sent
                       // something, and the client would not see the reason.
                       shutdown(fd, SHUT_WR) == 0;
  if (!is_sent || leaving_.size() >= kMostLeaving) {
    close(fd);
  } else {
    leaving_.push_back({fd, SteadyNow() + kLeaveTime});
  }
}

// Refuses the connection at the head of the kernel's queue with the reserved descriptor; the others
// stay in that queue.
void Acceptor::OnNoDescriptors(int listener, int error) {
  if (Lines().Allow()) {
    Log(LogLevel::kError, "cannot accept a connection", {{"error", std::strerror(error)}});
  }
  connections_->CountRefusal();
  close(reserve_);
  if (const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); fd >= 0) {
    const std::string frames = GoAway("connection: this server has no file descriptors left");
    (void)!send(fd, frames.data(), frames.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
  }
  reserve_ = OpenReserve();
  paused_until_ = SteadyNow() + kPause;
}

void Acceptor::CloseExpired() {
  const TimePoint now = SteadyNow();
  if (now < next_look_) return;
  next_look_ = now + kLook;
  for (auto it = silent_.begin(); it != silent_.end();) {
    if (it->second > now) {
      ++it;
      continue;
    }
    connections_->Remove(it->first);
    close(it->first);
    it = silent_.erase(it);
  }
  while (!leaving_.empty() && leaving_.front().until <= now) {
    close(leaving_.front().fd);
    leaving_.pop_front();
  }
}

}  // namespace attnd
