// Which connections count as one client.
#include "server/client_id.h"

#include <gtest/gtest.h>

namespace attnd {
namespace {

TEST(ClientId, ConnectionsOfOneAddressAreOneClient) {
  EXPECT_EQ(ClientOfPeer("ipv4:10.0.0.7:40001"), "ipv4:10.0.0.7");
  EXPECT_EQ(ClientOfPeer("ipv4:10.0.0.7:50002"), "ipv4:10.0.0.7");
  EXPECT_EQ(ClientOfPeer("ipv6:%5B2001:db8::1%5D:443"), "ipv6:%5B2001:db8::1%5D");
  EXPECT_EQ(ClientOfPeer("ipv6:%5B2001:db8::2%5D:443"), "ipv6:%5B2001:db8::2%5D");
}

TEST(ClientId, UnixSocketsKeepTheirWholePeer) {
  EXPECT_EQ(ClientOfPeer("unix:/run/attnd.sock"), "unix:/run/attnd.sock");
  EXPECT_EQ(ClientOfPeer("unix:"), "unix:");
  EXPECT_TRUE(IsUnixClient(ClientOfPeer("unix:")));
  EXPECT_FALSE(IsUnixClient(ClientOfPeer("ipv4:10.0.0.7:40001")));
}

}  // namespace
}  // namespace attnd
