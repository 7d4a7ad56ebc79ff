#include "server/connections.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace attnd {
namespace {

constexpr std::chrono::milliseconds kSweepPause{10};

// Both names of an IP address; an IPv4 address that came over an IPv6 socket is IPv4.
void NameAfter(const sockaddr_storage& name, Connection* connection) {
  char text[INET6_ADDRSTRLEN] = "";
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(&name);
  if (name.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    connection->client = absl::StrCat("ipv6:%5B", text, "%5D");
    connection->peer = absl::StrCat(connection->client, ":", ntohs(v6->sin6_port));
    return;
  }
  const auto* const v4 = reinterpret_cast<const sockaddr_in*>(&name);
  const void* const address = name.ss_family == AF_INET6
                                  ? static_cast<const void*>(v6->sin6_addr.s6_addr + 12)
                                  : &v4->sin_addr;
  inet_ntop(AF_INET, address, text, sizeof text);
  connection->client = absl::StrCat("ipv4:", text);
  // The port is at the same place in both families.
  connection->peer = absl::StrCat(connection->client, ":", ntohs(v4->sin_port));
}

}  // namespace

bool Connection::is_open() const {
  struct stat file;
  return fstat(fd, &file) == 0 && S_ISSOCK(file.st_mode) && file.st_ino == inode;
}

int64_t Connection::received_bytes() const {
  if (!is_open()) return -1;
  tcp_info info{};
  socklen_t size = sizeof info;
  const bool told = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
                    size >= offsetof(tcp_info, tcpi_bytes_received) + sizeof(uint64_t);
  int unread = 0;
  if (!told || ioctl(fd, SIOCINQ, &unread) != 0) return -1;
  return static_cast<int64_t>(info.tcpi_bytes_received) - unread;
}

std::shared_ptr<const Connection> DescribeConnection(int fd) {
  static std::atomic<int64_t> unix_connections{0};
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  struct stat file;
  if (fstat(fd, &file) != 0 || getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0) {
    return nullptr;
  }
  auto connection = std::make_shared<Connection>();
  connection->fd = fd;
  connection->inode = file.st_ino;
  if (name.ss_family == AF_UNIX) {
    connection->client = connection->peer = absl::StrCat("unix:", ++unix_connections);
  } else {
    NameAfter(name, connection.get());
  }
  return connection;
}

absl::Status Connections::Check(const std::string& client) const {
  if (counts_.open >= limits_.total) {
    return absl::ResourceExhaustedError(absl::StrCat("connection: this server has ", limits_.total,
                                                     " already, which is its limit"));
  }
  const auto found = by_client_.find(client);
  if (found != by_client_.end() && found->second >= limits_.per_client) {
    return absl::ResourceExhaustedError(
        absl::StrCat("connection: ", client, " has ", limits_.per_client,
                     " already, which is the limit of one client; share them between calls"));
  }
  return absl::OkStatus();
}

absl::Status Connections::Add(std::shared_ptr<const Connection> connection) {
  const MutexLock lock(&mu_);
  const auto fd = static_cast<size_t>(connection->fd);
  // A number is given again only after its last socket was closed.
  if (fd < by_fd_.size()) RemoveLocked(fd);
  absl::Status status = Check(connection->client);
  const auto now = std::chrono::steady_clock::now();
  // Not for every one of a flood: it asks the system about each connection.
  if (!status.ok() && now - last_sweep_ > kSweepPause) {
    last_sweep_ = now;
    SweepLocked();
    status = Check(connection->client);
  }
  if (!status.ok()) {
    counts_.refused += 1;
    return status;
  }
  counts_.accepted += 1;
  counts_.open += 1;
  by_client_[connection->client] += 1;
  if (fd >= by_fd_.size()) by_fd_.resize(fd + 1);
  by_fd_[fd] = std::move(connection);
  return absl::OkStatus();
}

void Connections::RemoveLocked(size_t fd) {
  const std::shared_ptr<const Connection> gone = std::move(by_fd_[fd]);
  if (gone == nullptr) return;
  counts_.open -= 1;
  const auto found = by_client_.find(gone->client);
  if (--found->second == 0) by_client_.erase(found);
}

void Connections::Remove(int fd) {
  const MutexLock lock(&mu_);
  if (static_cast<size_t>(fd) < by_fd_.size()) RemoveLocked(static_cast<size_t>(fd));
}

void Connections::CountRefusal() {
  const MutexLock lock(&mu_);
  counts_.refused += 1;
}

void Connections::Sweep() {
  const MutexLock lock(&mu_);
  SweepLocked();
}

void Connections::SweepLocked() {
  for (size_t fd = 0; fd < by_fd_.size(); ++fd) {
    if (by_fd_[fd] != nullptr && !by_fd_[fd]->is_open()) RemoveLocked(fd);
  }
}

Connections::Counts Connections::counts() const {
  const MutexLock lock(&mu_);
  return counts_;
}

std::shared_ptr<const Connection> Connections::Find(absl::string_view grpc_peer) const {
  size_t fd = 0;
  if (!absl::ConsumePrefix(&grpc_peer, "fd:") || !absl::SimpleAtoi(grpc_peer, &fd)) return nullptr;
  const MutexLock lock(&mu_);
  return fd < by_fd_.size() ? by_fd_[fd] : nullptr;
}

}  // namespace attnd
