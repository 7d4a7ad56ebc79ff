// Whose request it is, for whatever clients share.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "server/rpc.h"

namespace attnd {

// The client behind a gRPC peer: the address without its port ("ipv4:10.0.0.7"), so that many
// connections of one host are one client; of a Unix socket, or of anything else, the whole peer.
std::string ClientOfPeer(absl::string_view peer);

// REQUIRES: the headers of the call are here.
std::string ClientOf(const Rpc& rpc);

// Whether a client came through a Unix socket: it is on this machine and may open the socket's
// file.
bool IsUnixClient(absl::string_view client);

}  // namespace attnd
