// How many streams may be open: in all, of one client, on one connection.
#include "server/open_streams.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/server/fake_clock.h"

namespace attnd {
namespace {

constexpr absl::StatusCode kFull = absl::StatusCode::kResourceExhausted;

// Regression: four connections of one address held all streams for ever.
TEST(OpenStreams, OneClientHasHalfOfThem) {
  FakeClock clock;
  OpenStreams streams({.total = 16, .per_connection = 4}, &clock);
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
  // Other clients get the rest, until all are taken.
  for (int i = 0; i < 8; ++i) {
    const std::string client = "unix:" + std::to_string(i);
    EXPECT_TRUE(streams.Enter(client, client).ok());
  }
  EXPECT_EQ(streams.Enter("unix:9", "unix:9"),
            absl::ResourceExhaustedError(
                "stream: 16 are open already, which is the server's limit, retry later"));
}

TEST(OpenStreams, OneThatEndsMakesRoom) {
  FakeClock clock;
  OpenStreams streams({.total = 4, .per_connection = 4}, &clock);
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

// Regression: a client could open another stream for each that was ended for an overdue message,
// and hold as much memory as before.
TEST(OpenStreams, AStreamEndedForAnOverdueMessageCountsForAMinute) {
  FakeClock clock;
  OpenStreams streams({.total = 4, .per_connection = 4}, &clock);
  EXPECT_TRUE(streams.Enter("a:1", "a").ok());
  streams.Leave("a:1", "a", /*was_given_up=*/true);
  EXPECT_EQ(streams.count(), 0);
  clock.Advance(std::chrono::seconds(30));
  EXPECT_TRUE(streams.Enter("a:1", "a").ok());
  EXPECT_EQ(streams.Enter("a:1", "a"),
            absl::ResourceExhaustedError("stream: 2 are open of a already (1 of them ended lately "
                                         "because a message did not arrive), "
                                         "which is the limit of one client, close some"));
  // Other clients still get their places.
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(streams.Enter("b:1", "b").ok());
  streams.Leave("a:1", "a", /*was_given_up=*/true);
  EXPECT_EQ(streams.Enter("a:1", "a").code(), kFull);
  clock.Advance(std::chrono::seconds(30));
  EXPECT_TRUE(streams.Enter("a:1", "a").ok());
  EXPECT_EQ(streams.Enter("a:1", "a").code(), kFull);
}

// With one stream in all, one client may have it.
TEST(OpenStreams, TheHalfIsRoundedUp) {
  FakeClock clock;
  OpenStreams streams({.total = 1, .per_connection = 256}, &clock);
  EXPECT_TRUE(streams.Enter("a:1", "a").ok());
  EXPECT_EQ(streams.Enter("b:1", "b").code(), kFull);
}

}  // namespace
}  // namespace attnd
