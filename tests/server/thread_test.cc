// A started thread has its name; a thread that cannot start is an error with that name.
#include "server/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include "kernels/core/status.h"

namespace attnd {
namespace {

TEST(ThreadTest, RunsUnderItsName) {
  char name[16] = "";
  absl::StatusOr<std::thread> thread =
      StartThread("lane-watch", [&] { pthread_getname_np(pthread_self(), name, sizeof(name)); });
  ASSERT_TRUE(thread.ok()) << thread.status();
  thread->join();
  EXPECT_STREQ(name, "lane-watch");
}

TEST(ThreadTest, WithoutMemoryForAStackItIsAnError) {
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 60), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const absl::StatusOr<std::thread> thread = StartThread("lane-3", [] {});
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  EXPECT_EQ(thread.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(thread.status().message(),
            "lane-3: cannot start a thread: Resource temporarily unavailable");
}

}  // namespace
}  // namespace attnd
