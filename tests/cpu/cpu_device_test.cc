// The processor as a device: what it refuses, retains and says of itself.
#include "kernels/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/plain/cpus.h"

namespace attnd {
namespace {

TEST(CpuDevice, RefusesWhatItCannotRun) {
  EXPECT_EQ(NewCpuDevice({.threads = 1, .isa = "avx1024"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NewCpuDevice({.threads = -1}).status().message(), "cpu: threads must be >= 0, got -1");
  for (const char* isa : {"sse4", "avx2", "avx512"}) {
    const auto made = NewCpuDevice({.threads = 1, .isa = isa});
    EXPECT_TRUE(made.ok() || made.status().code() == absl::StatusCode::kFailedPrecondition);
  }
}

TEST(CpuDevice, RetainsAnEighthOfTheMemoryAtMost) {
  for (const int64_t asked : {int64_t{1} << 20, int64_t{1} << 60}) {
    const auto made = NewCpuDevice({.threads = 1, .retain_bytes = asked});
    ASSERT_TRUE(made.ok());
    EXPECT_EQ((*made)->memory().retain_bytes(), std::min(asked, (*made)->info().memory_bytes / 8));
  }
}

TEST(CpuDevice, DescribesItsMachine) {
  const DeviceInfo& info = CpuOf("sse4", 2).info();
  EXPECT_EQ(info.name, "cpu");
  EXPECT_EQ(info.description, "SSE4, 2 threads");
  EXPECT_GT(info.peak_flops, 1e9);
  EXPECT_GT(info.bytes_per_second, 1e8);
  EXPECT_GT(info.memory_bytes, int64_t{1} << 28);
}

}  // namespace
}  // namespace attnd
