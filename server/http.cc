#include "server/http.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <list>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/http_pages.h"
#include "server/listen.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using TimePoint = std::chrono::steady_clock::time_point;

constexpr size_t kMostRequestBytes = 8192;
constexpr milliseconds kRequestTime{1000}, kReplyTime{10000}, kLeaveTime{1000};
// While no descriptor is left.
constexpr milliseconds kPause{100};

bool IsAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  return colon != std::string::npos && colon > 0 && colon + 1 < text.size() &&
         text.find_first_of(", \t") == std::string::npos &&
         text.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
         absl::SimpleAtoi(text.substr(colon + 1), &port) && port <= 65535;
}

// A connection asks, is answered, and leaves once its peer has read the answer.
struct Visitor {
  enum class State { kAsks, kIsAnswered, kLeaves };
  int fd = -1;
  State state = State::kAsks;
  TimePoint until;
  std::string request, reply;
  size_t sent = 0;

  short awaited() const { return state == State::kIsAnswered ? POLLOUT : POLLIN; }
};

}  // namespace

struct HttpServer::Impl {
  ~Impl();
  void Run();
  void Accept(int listener);
  bool Serve(Visitor* visitor);
  bool Read(Visitor* visitor);
  bool Write(Visitor* visitor);
  void Close(std::list<Visitor>::iterator visitor);

  Pages pages;
  Listener listener;
  int wake = -1;
  std::list<Visitor> visitors;  // oldest first
  TimePoint accepts_from;
  std::thread thread;
};

HttpServer::Impl::~Impl() {
  if (thread.joinable()) {
    const uint64_t one = 1;
    (void)!write(wake, &one, sizeof one);
    thread.join();
  }
  for (const Visitor& visitor : visitors) close(visitor.fd);
  CloseListener(&listener);
  if (wake >= 0) close(wake);
}

void HttpServer::Impl::Run() {
  pthread_setname_np(pthread_self(), "http");
  for (;;) {
    const TimePoint now = std::chrono::steady_clock::now();
    std::vector<pollfd> polled{{wake, POLLIN, 0}};
    const bool accepts = now >= accepts_from;
    for (const int fd : listener.fds) {
      polled.push_back({fd, static_cast<short>(accepts ? POLLIN : 0), 0});
    }
    TimePoint next = accepts ? TimePoint::max() : accepts_from;
    const size_t first = polled.size();
    for (const Visitor& visitor : visitors) {
      polled.push_back({visitor.fd, visitor.awaited(), 0});
      next = std::min(next, visitor.until);
    }
    const auto left = std::chrono::duration_cast<milliseconds>(next - now).count() + 1;
    const int timeout =
        next == TimePoint::max() ? -1 : static_cast<int>(std::clamp<int64_t>(left, 0, 10000));
    if (poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    auto visitor = visitors.begin();
    for (size_t i = first; i < polled.size(); ++i) {
      const auto one = visitor++;
      const bool stays = polled[i].revents == 0 || Serve(&*one);
      if (!stays || std::chrono::steady_clock::now() >= one->until) Close(one);
    }
    for (size_t i = 1; i < first; ++i) {
      if (polled[i].revents != 0) Accept(polled[i].fd);
    }
  }
}

void HttpServer::Impl::Accept(int from) {
  const int fd = accept4(from, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  const TimePoint now = std::chrono::steady_clock::now();
  if (fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      accepts_from = now + kPause;
    }
    return;
  }
  if (visitors.size() >= kMostConnections) {
    const auto oldest = std::find_if(visitors.begin(), visitors.end(), [](const Visitor& visitor) {
      return visitor.state != Visitor::State::kIsAnswered;
    });
    Close(oldest == visitors.end() ? visitors.begin() : oldest);
  }
  visitors.push_back({.fd = fd, .until = now + kRequestTime});
}

void HttpServer::Impl::Close(std::list<Visitor>::iterator visitor) {
  close(visitor->fd);
  visitors.erase(visitor);
}

// False: it is to be closed.
bool HttpServer::Impl::Serve(Visitor* visitor) {
  try {
    return visitor->state == Visitor::State::kIsAnswered ? Write(visitor) : Read(visitor);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool HttpServer::Impl::Read(Visitor* visitor) {
  char buffer[4096];
  const ssize_t got = recv(visitor->fd, buffer, sizeof buffer, 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  // What comes after the request is read and dropped: closing on it would reset the connection and
  // take the reply away from the peer.
  if (visitor->state == Visitor::State::kLeaves) return true;
  visitor->request.append(buffer, static_cast<size_t>(got));
  const bool is_whole = visitor->request.find("\r\n\r\n") != std::string::npos ||
                        visitor->request.find("\n\n") != std::string::npos;
  if (!is_whole) return visitor->request.size() < kMostRequestBytes;
  visitor->reply = AnswerTo(visitor->request, pages);
  visitor->state = Visitor::State::kIsAnswered;
  visitor->until = std::chrono::steady_clock::now() + kReplyTime;
  return Write(visitor);
}

bool HttpServer::Impl::Write(Visitor* visitor) {
  while (visitor->sent < visitor->reply.size()) {
    const ssize_t sent = send(visitor->fd, visitor->reply.data() + visitor->sent,
                              visitor->reply.size() - visitor->sent, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    visitor->sent += static_cast<size_t>(sent);
  }
  visitor->state = Visitor::State::kLeaves;
  visitor->until = std::chrono::steady_clock::now() + kLeaveTime;
  return shutdown(visitor->fd, SHUT_WR) == 0;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& text,
                                                              Pages pages) {
  if (!IsAddress(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat("http: address must be host:port, got ", text.empty() ? "nothing" : text));
  }
  absl::StatusOr<Listener> listener = ListenOn(text);
  if (!listener.ok()) {
    return absl::UnavailableError(absl::StrCat("http: ", listener.status().message()));
  }
  auto impl = std::make_unique<Impl>();
  impl->pages = std::move(pages);
  impl->listener = *std::move(listener);
  impl->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (impl->wake < 0) {
    return absl::UnavailableError(
        absl::StrCat("http: cannot listen on ", text, ": no file descriptor left"));
  }
  impl->thread = std::thread([one = impl.get()] { one->Run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->listener.port; }
const std::string& HttpServer::address() const { return impl_->listener.address; }

}  // namespace attnd
