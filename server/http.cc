#include "server/http.h"

#include <microhttpd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <limits>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/http_pages.h"
#include "server/listen.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using TimePoint = std::chrono::steady_clock::time_point;

// The library's memory for a connection: the parsed request and the headers of the reply.
constexpr size_t kConnectionBytes = 16384;
// The pause after accept has found no free descriptor.
constexpr milliseconds kPause{100};
// The library accepts up to ten at a time before it closes those that were shut down.
constexpr unsigned kSlack = 32;

bool IsAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  return colon != std::string::npos && colon > 0 && colon + 1 < text.size() &&
         text.find_first_of(", \t") == std::string::npos &&
         text.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
         absl::SimpleAtoi(text.substr(colon + 1), &port) && port <= 65535;
}

struct Visitor {
  int fd = -1;
  TimePoint until;  // an absolute limit: the library's own timeout restarts with each byte
  bool is_answered = false;
  bool is_cut_off = false;  // shut down: the library notices it and closes
};

void CutOff(Visitor* visitor) {
  visitor->is_cut_off = true;
  (void)shutdown(visitor->fd, SHUT_RDWR);
}

// False when there is no memory.
bool Send(MHD_Connection* connection, const PageReply& reply) {
  MHD_Response* const response = MHD_create_response_from_buffer(
      reply.body.size(), const_cast<char*>(reply.body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return false;
  const auto add = [&](const char* name, const char* value) {
    return MHD_add_response_header(response, name, value) == MHD_YES;
  };
  const bool is_sent = add(MHD_HTTP_HEADER_CONTENT_TYPE, reply.type) &&
                       add(MHD_HTTP_HEADER_CACHE_CONTROL, "no-store") &&
                       add(MHD_HTTP_HEADER_CONNECTION, "close") &&
                       (reply.code != 405 || add(MHD_HTTP_HEADER_ALLOW, "GET, HEAD")) &&
                       MHD_queue_response(connection, reply.code, response) == MHD_YES;
  MHD_destroy_response(response);
  return is_sent;
}

}  // namespace

struct HttpServer::Impl {
  ~Impl();
  bool Listen();
  void Run();
  int Timeout() const;
  void CutOffOverdue();

  // Callbacks of the library, on the thread.
  static void OnConnection(void* impl, MHD_Connection* connection, void** visitor,
                           MHD_ConnectionNotificationCode code);
  static MHD_Result OnRequest(void* impl, MHD_Connection* connection, const char* path,
                              const char* method, const char* version, const char* body,
                              size_t* body_size, void** request);
  Visitor* Add(int fd);
  void Remove(const Visitor* visitor);

  Pages pages;
  HttpTimes times;
  Listener listener;
  std::vector<MHD_Daemon*> daemons;  // one for each socket that listens
  std::vector<pollfd> polled;        // wake, then the daemons'
  int wake = -1;
  std::list<Visitor> visitors;  // oldest first
  int64_t arrivals = 0, departures = 0;
  std::thread thread;
};

HttpServer::Impl::~Impl() {
  if (thread.joinable()) {
    const uint64_t one = 1;
    (void)!write(wake, &one, sizeof one);
    thread.join();
  }
  // Closes its socket, too.
  for (MHD_Daemon* daemon : daemons) MHD_stop_daemon(daemon);
  CloseListener(&listener);
  if (wake >= 0) close(wake);
}

// The library starts no thread: the thread of this class runs its loop, and so sees the age of its
// connections without a lock.
bool HttpServer::Impl::Listen() {
  wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return false;
  polled.push_back({wake, POLLIN, 0});
  while (!listener.fds.empty()) {
    const int fd = listener.fds.back();
    listener.fds.pop_back();
    MHD_Daemon* const daemon = MHD_start_daemon(
        MHD_USE_EPOLL, /*port=*/0, nullptr, nullptr, &OnRequest, this,  //
        MHD_OPTION_LISTEN_SOCKET, fd,                                   //
        MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(kMostConnections) + kSlack,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionBytes,  //
        MHD_OPTION_NOTIFY_CONNECTION, &OnConnection, this, MHD_OPTION_END);
    if (daemon == nullptr) return false;
    daemons.push_back(daemon);
    polled.push_back({MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd, POLLIN, 0});
  }
  return true;
}

void HttpServer::Impl::Run() {
  pthread_setname_np(pthread_self(), "http");
  bool has_room = true, settled = true;
  for (;;) {
    const int timeout = !has_room ? static_cast<int>(kPause.count()) : settled ? Timeout() : 0;
    const int ready = poll(polled.data(), has_room ? polled.size() : 1, timeout);
    if (ready < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    const int64_t arrived = arrivals, departed = departures;
    for (MHD_Daemon* daemon : daemons) (void)MHD_run(daemon);
    CutOffOverdue();
    // After a connection has left, the library may listen again, which takes another run.
    settled = departures == departed;
    // If accept finds no descriptor for the first connection, the library would retry without a
    // pause.
    has_room = !(ready > 0 && visitors.empty() && settled && arrivals == arrived);
  }
}

// Milliseconds until the library has work or a visitor's time ends.
int HttpServer::Impl::Timeout() const {
  int64_t most = std::numeric_limits<int>::max();
  bool is_set = false;
  const auto limit = [&](int64_t milliseconds) {
    most = std::clamp<int64_t>(milliseconds, 0, most);
    is_set = true;
  };
  for (MHD_Daemon* daemon : daemons) {
    MHD_UNSIGNED_LONG_LONG wanted = 0;
    if (MHD_get_timeout(daemon, &wanted) == MHD_YES) limit(static_cast<int64_t>(wanted));
  }
  const TimePoint now = std::chrono::steady_clock::now();
  for (const Visitor& visitor : visitors) {
    if (visitor.is_cut_off) continue;
    limit(std::chrono::ceil<milliseconds>(visitor.until - now).count());
  }
  return is_set ? static_cast<int>(most) : -1;
}

void HttpServer::Impl::CutOffOverdue() {
  const TimePoint now = std::chrono::steady_clock::now();
  for (Visitor& visitor : visitors) {
    if (!visitor.is_cut_off && now >= visitor.until) CutOff(&visitor);
  }
}

void HttpServer::Impl::OnConnection(void* impl, MHD_Connection* connection, void** visitor,
                                    MHD_ConnectionNotificationCode code) {
  auto* const self = static_cast<Impl*>(impl);
  if (code == MHD_CONNECTION_NOTIFY_CLOSED) return self->Remove(static_cast<Visitor*>(*visitor));
  const int fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
  try {
    *visitor = self->Add(fd);
  } catch (const std::exception&) {
    // No memory.
    (void)shutdown(fd, SHUT_RDWR);
  }
}

// A full list drops the oldest visitor whose request is not complete, or else the oldest.
Visitor* HttpServer::Impl::Add(int fd) {
  arrivals += 1;
  Visitor *oldest = nullptr, *oldest_unanswered = nullptr;
  size_t count = 0;
  for (Visitor& visitor : visitors) {
    if (visitor.is_cut_off) continue;
    count += 1;
    if (oldest == nullptr) oldest = &visitor;
    if (oldest_unanswered == nullptr && !visitor.is_answered) oldest_unanswered = &visitor;
  }
  if (count >= kMostConnections) CutOff(oldest_unanswered != nullptr ? oldest_unanswered : oldest);
  visitors.push_back({.fd = fd, .until = std::chrono::steady_clock::now() + times.request});
  return &visitors.back();
}

void HttpServer::Impl::Remove(const Visitor* visitor) {
  departures += 1;
  visitors.remove_if([&](const Visitor& one) { return &one == visitor; });
}

// Called when the headers are complete, for each piece of a body, and at the end.
MHD_Result HttpServer::Impl::OnRequest(void* impl, MHD_Connection* connection, const char* path,
                                       const char* method, const char*, const char*,
                                       size_t* body_size, void** request) {
  if (std::exchange(*request, impl) == nullptr) return MHD_YES;
  // A body is read and dropped: closing before its end would reset the connection and lose the
  // reply.
  if (std::exchange(*body_size, 0) > 0) return MHD_YES;
  auto* const self = static_cast<Impl*>(impl);
  auto* const visitor = static_cast<Visitor*>(
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context);
  if (visitor == nullptr) return MHD_NO;
  try {
    if (!Send(connection, AnswerTo(method, path, self->pages))) return MHD_NO;
  } catch (const std::exception&) {
    return MHD_NO;
  }
  visitor->is_answered = true;
  visitor->until = std::chrono::steady_clock::now() + self->times.reply;
  return MHD_YES;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& text, Pages pages,
                                                              HttpTimes times) {
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
  impl->times = times;
  impl->listener = *std::move(listener);
  if (!impl->Listen()) {
    return absl::UnavailableError(
        absl::StrCat("http: cannot listen on ", text, ": no file descriptor or memory left"));
  }
  impl->thread = std::thread([one = impl.get()] { one->Run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return impl_->listener.port; }
const std::string& HttpServer::address() const { return impl_->listener.address; }

}  // namespace attnd
