// How many streams may be open: in all, of one client, on one connection.
#include "server/open_streams.h"

#include <gtest/gtest.h>

#include <string>

namespace attnd {
namespace {

constexpr absl::StatusCode kFull = absl::StatusCode::kResourceExhausted;

// Four connections of one address took all streams for good.
TEST(OpenStreams, OneClientHasHalfOfThem) {
  OpenStreams streams({.total = 16, .per_connection = 4});
  for (const char* peer : {"ipv4:1.2.3.4:1", "ipv4:1.2.3.4:2"}) {
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(streams.Enter(peer, "ipv4:1.2.3.4").ok());
  }
  EXPECT_EQ(streams.Enter("ipv4:1.2.3.4:3", "ipv4:1.2.3.4"),
            absl::ResourceExhaustedError("stream: 8 are open of ipv4:1.2.3.4 already, which is the "
                                         "limit of one client, close some"));
  EXPECT_EQ(streams.Enter("ipv4:1.2.3.4:1", "ipv4:1.2.3.4"),
            absl::ResourceExhaustedError("stream: 4 are open on this connection already, which is "
                                         "the limit, close some"));
  EXPECT_EQ(streams.count(), 8);
  // The others have theirs, until all are taken.
  for (int i = 0; i < 8; ++i) {
    const std::string client = "unix:" + std::to_string(i);
    EXPECT_TRUE(streams.Enter(client, client).ok());
  }
  EXPECT_EQ(streams.Enter("unix:9", "unix:9"),
            absl::ResourceExhaustedError(
                "stream: 16 are open already, which is the server's limit, retry later"));
}

TEST(OpenStreams, OneThatEndsMakesRoom) {
  OpenStreams streams({.total = 4, .per_connection = 4});
  EXPECT_TRUE(streams.Enter("a:1", "a").ok());
  EXPECT_TRUE(streams.Enter("a:2", "a").ok());
  EXPECT_EQ(streams.Enter("a:3", "a").code(), kFull);
  streams.Leave("a:1", "a");
  EXPECT_TRUE(streams.Enter("a:3", "a").ok());
  EXPECT_EQ(streams.Enter("a:2", "a").code(), kFull);
  streams.Leave("a:2", "a");
  streams.Leave("a:3", "a");
  EXPECT_EQ(streams.count(), 0);
}

// The only one there may be is somebody's.
TEST(OpenStreams, TheHalfIsRoundedUp) {
  OpenStreams streams({.total = 1, .per_connection = 256});
  EXPECT_TRUE(streams.Enter("a:1", "a").ok());
  EXPECT_EQ(streams.Enter("b:1", "b").code(), kFull);
}

}  // namespace
}  // namespace attnd
