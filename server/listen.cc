#include "server/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/core/status.h"

namespace attnd {
namespace {

// The kernel takes the smaller of it and net.core.somaxconn.
constexpr int kBacklog = 4096;
constexpr absl::string_view kUnix = "unix:";

absl::Status CannotListen(const std::string& address, absl::string_view reason) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", reason));
}

// A socket that listens, or -1 with errno.
int OpenListening(const sockaddr* name, socklen_t size, bool is_dual_stack) {
  const int fd = socket(name->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  if (name->sa_family != AF_UNIX) {
    // Accepted sockets inherit it: small messages are sent at once.
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // A restart need not wait until old connections have left TIME_WAIT.
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (name->sa_family == AF_INET6) {
    const int only = is_dual_stack ? 0 : 1;
    (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  }
  if (bind(fd, name, size) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

int PortOf(int fd) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) return 0;
  return ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
}

// Listens on every address of both families, or of IPv4 alone where there is no IPv6.
int ListenEverywhere(uint16_t port) {
  sockaddr_in6 all{};
  all.sin6_family = AF_INET6;
  all.sin6_addr = in6addr_any;
  all.sin6_port = htons(port);
  const int fd = OpenListening(reinterpret_cast<sockaddr*>(&all), sizeof all, true);
  if (fd >= 0 || errno == EADDRINUSE || errno == EACCES) return fd;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_ANY);
  v4.sin_port = htons(port);
  return OpenListening(reinterpret_cast<sockaddr*>(&v4), sizeof v4, false);
}

// Listens on all addresses of a name that belong to this machine.
absl::Status ListenByName(const std::string& host, uint16_t port, Listener* listener) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "0", &hints, &found) != 0) {
    return CannotListen(listener->address, "not an address of this machine");
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    // The port is at the same place in both families.
    reinterpret_cast<sockaddr_in*>(one->ai_addr)->sin_port = htons(port);
    const int fd = OpenListening(one->ai_addr, one->ai_addrlen, false);
    if (fd < 0) {
      error = errno;
      if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT) continue;
      break;
    }
    listener->fds.push_back(fd);
    if (port == 0) port = static_cast<uint16_t>(PortOf(fd));
    error = 0;
  }
  if (error == 0 || (!listener->fds.empty() && error != EADDRINUSE)) return absl::OkStatus();
  CloseListener(listener);
  return CannotListen(listener->address, std::strerror(error));
}

absl::Status ListenOnPath(Listener* listener) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string& path = listener->path;
  if (path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", listener->address, ": a path has at most ",
                     sizeof(name.sun_path) - 1, " bytes, got ", path.size()));
  }
  path.copy(name.sun_path, path.size());
  const auto* const generic = reinterpret_cast<const sockaddr*>(&name);
  struct stat file;
  if (stat(path.c_str(), &file) == 0 && S_ISSOCK(file.st_mode)) {
    const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    // EAGAIN: a process listens, but its queue is full.
    const bool is_taken = connect(probe, generic, sizeof name) == 0 || errno == EAGAIN;
    close(probe);
    if (is_taken) return CannotListen(listener->address, std::strerror(EADDRINUSE));
    unlink(path.c_str());
  }
  const int fd = OpenListening(generic, sizeof name, false);
  if (fd < 0) return CannotListen(listener->address, std::strerror(errno));
  listener->fds.push_back(fd);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Listener> ListenOn(const std::string& address) {
  Listener listener;
  listener.address = address;
  if (absl::StartsWith(address, kUnix)) {
    listener.path = address.substr(kUnix.size());
    ATTND_RETURN_IF_ERROR(ListenOnPath(&listener));
    return listener;
  }
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return CannotListen(address, "not an address of this machine");
  }
  if (host == "0.0.0.0" || host == "::") {
    const int fd = ListenEverywhere(static_cast<uint16_t>(port));
    if (fd < 0) return CannotListen(address, std::strerror(errno));
    listener.fds.push_back(fd);
  } else {
    ATTND_RETURN_IF_ERROR(ListenByName(host, static_cast<uint16_t>(port), &listener));
  }
  listener.port = PortOf(listener.fds.front());
  listener.address = absl::StrCat(address.substr(0, colon), ":", listener.port);
  return listener;
}

void CloseListener(Listener* listener) {
  for (const int fd : listener->fds) close(fd);
  if (!listener->path.empty() && !listener->fds.empty()) unlink(listener->path.c_str());
  listener->fds.clear();
}

}  // namespace attnd
