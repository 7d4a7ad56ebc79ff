// The memory that the process may use: that of the machine, or the limit of its cgroup.
#include "server/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace attnd {
namespace {

class UsableMemoryTest : public testing::Test {
 protected:
  UsableMemoryTest() { Write("/proc/meminfo", "MemTotal:       8 kB\nMemFree: 1 kB\n"); }
  ~UsableMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_ = testing::TempDir() + "/usable_memory." + std::to_string(getpid());
};

TEST_F(UsableMemoryTest, WithoutACgroupItIsTheMachine) {
  EXPECT_EQ(UsableMemoryBytes(root_), 8192);
}

TEST_F(UsableMemoryTest, NothingReadableIsZero) { EXPECT_EQ(UsableMemoryBytes("/nowhere"), 0); }

TEST_F(UsableMemoryTest, Version2TakesTheTightestAncestor) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/memory.max", "4096\n");
  Write("/sys/fs/cgroup/memory.max", "5000\n");
  EXPECT_EQ(UsableMemoryBytes(root_), 4096);
}

// A container sees its own group as the root, sometimes under the path of the host.
TEST_F(UsableMemoryTest, InAContainerTheRootSetsTheLimit) {
  Write("/proc/self/cgroup", "0::/system.slice/docker-1234.scope\n");
  Write("/sys/fs/cgroup/memory.max", "6000\n");
  EXPECT_EQ(UsableMemoryBytes(root_), 6000);
}

TEST_F(UsableMemoryTest, Version1) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/jobs/1\n0::/\n");
  Write("/sys/fs/cgroup/memory/jobs/1/memory.limit_in_bytes", "7000\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(UsableMemoryBytes(root_), 7000);
}

TEST_F(UsableMemoryTest, ALimitAboveTheMachineIsNone) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "1000000\n");
  EXPECT_EQ(UsableMemoryBytes(root_), 8192);
}

TEST(Process, ThisMachineAndThisProcess) {
  EXPECT_GT(UsableMemoryBytes(), int64_t{64} << 20);
  const ProcessStats stats = ReadProcessStats();
  EXPECT_GT(stats.resident_bytes, 0);
  EXPECT_LT(stats.resident_bytes, UsableMemoryBytes());
  EXPECT_GE(stats.threads, 1);
}

}  // namespace
}  // namespace attnd
