// Addresses that a server may listen on, and those it refuses.
#include "server/listen.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace attnd {
namespace {

// Brackets are for IPv6, which a machine may lack, but are accepted around any address.
TEST(Listen, BracketsAroundAnAddressAreNoPartOfIt) {
  absl::StatusOr<Listener> listener = ListenOn("[127.0.0.1]:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ(listener->fds.size(), 1u);
  EXPECT_GT(listener->port, 0);
  EXPECT_EQ(listener->address, absl::StrCat("[127.0.0.1]:", listener->port));
  CloseListener(&*listener);
  EXPECT_TRUE(listener->fds.empty());
}

// The first socket of a process that was started without standard input is descriptor 0.
TEST(Listen, DescriptorZeroIsOneOfThem) {
  const std::string path = absl::StrCat(testing::TempDir(), "attnd-listen-", getpid(), ".sock");
  for (const std::string& address : {std::string("127.0.0.1:0"), absl::StrCat("unix:", path)}) {
    const int input = dup(0);
    close(0);
    absl::StatusOr<Listener> listener = ListenOn(address);
    const bool is_zero = listener.ok() && listener->fds == std::vector<int>{0};
    if (listener.ok()) CloseListener(&*listener);
    dup2(input, 0);
    close(input);
    EXPECT_TRUE(is_zero) << address << ": " << listener.status();
  }
}

TEST(Listen, InvalidAddressesAreRefused) {
  for (const std::string address : {"127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1",
                                    "127.0.0.1:65536", "[127.0.0.1:0", "127.0.0.1]:0"}) {
    absl::StatusOr<Listener> listener = ListenOn(address);
    EXPECT_FALSE(listener.ok()) << address;
    if (listener.ok()) CloseListener(&*listener);
  }
}

}  // namespace
}  // namespace attnd
