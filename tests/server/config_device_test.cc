// --device, --self-test and --cache-dir: what they accept and name.
#include "server/config_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>

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

CommandLine Parse(const char* value, const char* option = "--device") {
  const std::array<const char*, 3> arguments = {"attnd-server", option, value};
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

TEST(ConfigDevice, SelfTests) {
  using Proof = DeviceOptions::Proof;
  EXPECT_EQ(ProofOf(Config().self_test), Proof::kCached);
  const std::pair<const char*, Proof> words[] = {
      {"true", Proof::kCached}, {"TRUE", Proof::kCached}, {"1", Proof::kCached},
      {"false", Proof::kNone},  {"off", Proof::kNone},    {"fresh", Proof::kFresh}};
  for (const auto& [word, proof] : words) {
    const CommandLine line = Parse(word, "--self-test");
    ASSERT_TRUE(line.config.has_value()) << line.text;
    EXPECT_EQ(ProofOf(line.config->self_test), proof) << word;
  }
  for (const char* word : {"", "maybe", "fresh ", "2"}) {
    const CommandLine line = Parse(word, "--self-test");
    EXPECT_EQ(line.exit_code, 2) << word;
    EXPECT_THAT(line.text, HasSubstr("must be true, false or fresh, got "));
  }
}

// Sets variables of the environment (null: removes them) until it is destroyed.
class Environment {
 public:
  Environment(const char* caches, const char* home) {
    Set("XDG_CACHE_HOME", caches);
    Set("HOME", home);
  }
  ~Environment() {
    for (const auto& [name, value] : before_) Put(name, value ? value->c_str() : nullptr);
  }

 private:
  static void Put(const std::string& name, const char* value) {
    value == nullptr ? unsetenv(name.c_str()) : setenv(name.c_str(), value, /*overwrite=*/1);
  }
  void Set(const char* name, const char* value) {
    const char* const was = std::getenv(name);
    before_[name] = was == nullptr ? std::nullopt : std::optional<std::string>(was);
    Put(name, value);
  }

  std::map<std::string, std::optional<std::string>> before_;
};

TEST(ConfigDevice, TheFolderOfTheCache) {
  const auto folder = [](const char* caches, const char* home, const std::string& given = "") {
    const Environment environment(caches, home);
    return CacheFolder(given);
  };
  EXPECT_EQ(folder("/c", "/h", "here"), "here");
  EXPECT_EQ(folder("/c", "/h"), "/c/attnd");
  EXPECT_EQ(folder(nullptr, "/h"), "/h/.cache/attnd");
  EXPECT_EQ(folder("", "/h"), "/h/.cache/attnd");
  // The specification has relative paths ignored.
  EXPECT_EQ(folder("c", "/h"), "/h/.cache/attnd");
  EXPECT_EQ(folder(nullptr, nullptr), "");
  EXPECT_EQ(Parse("/x", "--cache-dir").config->cache_folder, "/x");
}

}  // namespace
}  // namespace attnd
