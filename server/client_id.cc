#include "server/client_id.h"

#include "absl/strings/match.h"

namespace attnd {

std::string ClientOfPeer(absl::string_view peer) {
  if (absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:")) {
    // gRPC writes the port always: ipv4:127.0.0.1:80, ipv6:%5B::1%5D:80.
    peer = peer.substr(0, peer.rfind(':'));
  }
  return std::string(peer);
}

std::string ClientOf(const Rpc& rpc) { return ClientOfPeer(rpc.peer()); }

bool IsUnixClient(absl::string_view client) { return absl::StartsWith(client, "unix:"); }

}  // namespace attnd
