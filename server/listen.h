// Sockets that listen on an address.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace attnd {

// Non-blocking, closed on exec. Its owner closes them with CloseListener.
struct Listener {
  std::string address;   // as given, with the port that is listened on
  int port = 0;          // 0: a Unix socket
  std::string path;      // of a Unix socket, else empty
  std::vector<int> fds;  // one for each address that a name resolves to
};

// `address` is "host:port" (port 0 takes a free one; 0.0.0.0 and [::] stand for every address of
// both families) or "unix:/path". A socket file without a listening process is replaced.
// Errors: UNAVAILABLE "cannot listen on 127.0.0.1:8001: Address already in use", INVALID_ARGUMENT
// for a path that is too long.
absl::StatusOr<Listener> ListenOn(const std::string& address);

// Closes the sockets and removes the file.
void CloseListener(Listener* listener);

}  // namespace attnd
