#include "server/connections.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/line_limit.h"
#include "server/log.h"
#include "server/socket_reads.h"

namespace attnd {
namespace {

constexpr std::chrono::milliseconds kSweepPause{10};

// A client that has left is remembered for longer than its allowances need to refill. Beyond this
// many addresses none is: an attacker with that many has their allowances anyway.
constexpr std::chrono::seconds kMemory{5};
constexpr size_t kMostClients = 1 << 14;

// Sets peer and client from an IP address; an IPv4 address that came over an IPv6 socket is IPv4.
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

Connections::Connections(const Limits& limits, int64_t most_streams,
                         std::function<void(FloodWatch::Flood)> found)
    : limits_(limits),
      watch_{.most_streams = most_streams,
             .found = std::move(found),
             .cut_off = [this](const Connection& connection, absl::string_view reason) {
               OnCutOff(connection, reason);
             }} {}

Connections::~Connections() {
  const MutexLock lock(&mu_);
  for (size_t fd = 0; fd < by_fd_.size(); ++fd) RemoveLocked(fd);
}

void Connections::OnCutOff(const Connection& connection, absl::string_view reason) {
  static LineLimit lines;
  if (lines.Allow()) {
    Log(LogLevel::kWarning, "connection cut off for what it sent",
        {{"peer", connection.peer}, {"reason", std::string(reason)}});
  }
  const MutexLock lock(&mu_);
  counts_.cut_off += 1;
}

absl::Status Connections::Check(const Connection& connection) const {
  const std::string& client = connection.client;
  if (counts_.open >= limits_.total || connection.fd >= kMostWatched) {
    return absl::ResourceExhaustedError(
        absl::StrCat("connection: this server has ", counts_.open, " already, which is its limit"));
  }
  const auto found = by_client_.find(client);
  if (found != by_client_.end() && found->second.connections >= limits_.per_client) {
    return absl::ResourceExhaustedError(
        absl::StrCat("connection: ", client, " has ", limits_.per_client,
                     " already, which is the limit of one client; share them between calls"));
  }
  return absl::OkStatus();
}

absl::Status Connections::Add(std::shared_ptr<const Connection> connection) {
  const MutexLock lock(&mu_);
  const auto fd = static_cast<size_t>(connection->fd);
  // The system reuses a descriptor only after its last socket was closed.
  if (fd < by_fd_.size()) RemoveLocked(fd);
  absl::Status status = Check(*connection);
  const auto now = std::chrono::steady_clock::now();
  // At most every kSweepPause: it makes a system call for each connection.
  if (!status.ok() && now - last_sweep_ > kSweepPause) {
    last_sweep_ = now;
    SweepLocked();
    status = Check(*connection);
  }
  if (!status.ok()) {
    counts_.refused += 1;
    return status;
  }
  // What may throw for lack of memory comes first.
  connection->watch = std::make_unique<FloodWatch>(connection.get(), &watch_);
  if (fd >= by_fd_.size()) by_fd_.resize(fd + 1);
  Client& client = by_client_[connection->client];
  if (client.streams == nullptr) {
    client.streams = connection->streams;
    client.frames = IsUnixClient(connection->client) ? unix_frames_ : connection->frames;
  }
  client.connections += 1;
  connection->streams = client.streams;
  connection->frames = client.frames;
  client.streams->AddConnections(1);
  counts_.accepted += 1;
  counts_.open += 1;
  WatchSocket(connection->fd, connection->watch.get());
  by_fd_[fd] = std::move(connection);
  return absl::OkStatus();
}

void Connections::RemoveLocked(size_t fd) {
  const std::shared_ptr<const Connection> gone = std::move(by_fd_[fd]);
  if (gone == nullptr) return;
  WatchSocket(gone->fd, nullptr);
  gone->streams->AddConnections(-1);
  counts_.open -= 1;
  const auto found = by_client_.find(gone->client);
  if (--found->second.connections > 0) return;
  found->second.left_at = std::chrono::steady_clock::now();
  if (IsUnixClient(gone->client) || by_client_.size() > kMostClients) by_client_.erase(found);
}

void Connections::ForgetClients() {
  const auto known_since = std::chrono::steady_clock::now() - kMemory;
  std::erase_if(by_client_, [&](const auto& entry) {
    return entry.second.connections == 0 && entry.second.left_at < known_since;
  });
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
  ForgetClients();
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
