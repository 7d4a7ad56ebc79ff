// Flags at the ends of their ranges: the last accepted value, the first refused one.
#include <gtest/gtest.h>

#include <array>

#include "server/config.h"

namespace attnd {
namespace {

bool IsTaken(const char* flag, const char* value) {
  const std::array<const char*, 3> arguments = {"attnd-server", flag, value};
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data()).config.has_value();
}

TEST(ConfigLimits, ExitWhenStuck) {
  for (const char* taken : {"0s", "5s", "24h", "86400s"}) {
    EXPECT_TRUE(IsTaken("--exit-when-stuck", taken)) << taken;
  }
  for (const char* refused : {"1ms", "4999ms", "86401s", "25h", "-5s"}) {
    EXPECT_FALSE(IsTaken("--exit-when-stuck", refused)) << refused;
  }
}

TEST(ConfigLimits, MaxQueue) {
  for (const char* taken : {"1", "1048576"}) EXPECT_TRUE(IsTaken("--max-queue", taken)) << taken;
  for (const char* refused : {"0", "-1", "1048577"}) {
    EXPECT_FALSE(IsTaken("--max-queue", refused)) << refused;
  }
}

}  // namespace
}  // namespace attnd
