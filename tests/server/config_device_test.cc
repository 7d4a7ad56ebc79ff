// --device: what it accepts, and the devices that it names.
#include "server/config_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "server/config.h"

namespace attnd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kinds = DeviceOptions::Kinds;

DeviceOptions Named(const std::string& text) {
  EXPECT_EQ(CheckDevice(text), "");
  DeviceOptions options;
  SetDevices(text, &options);
  return options;
}

TEST(ConfigDevice, NamesDevices) {
  EXPECT_EQ(Named("auto").kinds, Kinds::kAuto);
  EXPECT_EQ(Named("cpu").kinds, Kinds::kCpu);
  EXPECT_EQ(Named("cuda").kinds, Kinds::kCuda);
  EXPECT_THAT(Named("cuda").cuda.devices, IsEmpty());
  EXPECT_EQ(Named("cuda:0").kinds, Kinds::kCuda);
  EXPECT_THAT(Named("cuda:0").cuda.devices, ElementsAre(0));
  EXPECT_THAT(Named("cuda:3,0,63").cuda.devices, ElementsAre(3, 0, 63));
}

TEST(ConfigDevice, RefusesOthers) {
  for (const char* text :
       {"", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:64", "cuda:0,", "cuda:0,0",
        "cuda:0,cuda:1", "cuda:0x1", "cuda:+1", "cuda: 1", "cpu:0"}) {
    EXPECT_THAT(CheckDevice(text), HasSubstr("must be auto, cpu, cuda")) << text;
  }
}

CommandLine Parse(const char* value) {
  const std::array<const char*, 3> arguments = {"attnd-server", "--device", value};
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

TEST(ConfigDevice, IsAnOption) {
  const CommandLine line = Parse("cuda:0,1");
  ASSERT_TRUE(line.config.has_value()) << line.text;
  EXPECT_EQ(line.config->device, "cuda:0,1");
  const CommandLine refused = Parse("cuda:0,");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.text, HasSubstr("as in cuda:0,1, got cuda:0,"));
}

TEST(ConfigDevice, IsAnEnvironmentVariable) {
  setenv("ATTND_DEVICE", "cpu", /*overwrite=*/1);
  const std::array<const char*, 1> arguments = {"attnd-server"};
  const CommandLine line = ParseCommandLine(1, arguments.data());
  unsetenv("ATTND_DEVICE");
  ASSERT_TRUE(line.config.has_value()) << line.text;
  EXPECT_EQ(line.config->device, "cpu");
  EXPECT_EQ(ParseCommandLine(1, arguments.data()).config->device, "auto");
}

}  // namespace
}  // namespace attnd
