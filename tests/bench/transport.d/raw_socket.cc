#include "tests/bench/transport.d/raw_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "tests/bench/transport.d/load.h"

namespace attnd::bench {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void SendAtOnce(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

int PortOf(const std::string& target) { return std::atoi(target.c_str() + target.rfind(':') + 1); }

Socket Connect(int port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = Loopback(port);
  if (connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    Die("raw: cannot connect");
  }
  SendAtOnce(socket.fd());
  return socket;
}

Socket Listen(int* port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  if (bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(socket.fd(), SOMAXCONN) != 0 ||
      getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Die("raw: cannot listen");
  }
  *port = ntohs(address.sin_port);
  return socket;
}

Socket Accept(const Socket& listener) {
  Socket socket(accept(listener.fd(), nullptr, nullptr));
  if (socket.fd() < 0) Die("raw: cannot accept");
  SendAtOnce(socket.fd());
  return socket;
}

void SendAll(int fd, std::vector<iovec> pieces) {
  msghdr message = {};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  while (message.msg_iovlen > 0) {
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0) Die("raw: cannot send");
    for (auto left = static_cast<size_t>(sent); message.msg_iovlen > 0; ++message.msg_iov) {
      iovec& first = *message.msg_iov;
      if (left < first.iov_len) {
        first.iov_base = static_cast<std::byte*>(first.iov_base) + left;
        first.iov_len -= left;
        break;
      }
      left -= first.iov_len;
      --message.msg_iovlen;
    }
  }
}

bool ReceiveAll(int fd, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t received = recv(fd, into.data(), into.size(), 0);
    if (received <= 0) return false;
    into = into.subspan(static_cast<size_t>(received));
  }
  return true;
}

}  // namespace attnd::bench
