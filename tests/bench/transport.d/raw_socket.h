// Blocking TCP sockets on the loopback.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace attnd::bench {

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

int PortOf(const std::string& target);  // "127.0.0.1:8001" -> 8001
Socket Connect(int port);
Socket Listen(int* port);
Socket Accept(const Socket& listener);

void SendAll(int fd, std::vector<iovec> pieces);
// False: the peer closed the connection.
bool ReceiveAll(int fd, std::span<std::byte> into);

}  // namespace attnd::bench
