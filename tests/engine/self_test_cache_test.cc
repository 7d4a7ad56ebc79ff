// Results of self-tests in files: what is kept is found again, and nothing else passes for one.
#include "kernels/engine/self_test_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "kernels/device/launch.h"

namespace attnd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr char kDevice[] = "driver 580.65.06 for CUDA 13.0, NVIDIA H100, sm_90, 0123";

// Of a device whose softmax has gone wrong, in one type by a number that is not finite.
SelfTestReport Found() {
  SelfTestReport report{
      .rows = {{.primitive = "attend", .dtype = "float32", .launches = 3, .worst_error = 1e-7},
               {.primitive = "softmax",
                .dtype = "float16",
                .launches = 1,
                .worst_error = std::numeric_limits<double>::infinity(),
                .failure = "differs from the processor by \"inf\""},
               {.primitive = "softmax",
                .dtype = "float32",
                .launches = 1,
                .worst_error = 0.25,
                .failure = "differs"},
               {.primitive = "sort", .dtype = "float32", .is_declined = true}},
      .seconds = 1.75};
  Conclude(&report);
  return report;
}

class SelfTestCacheTest : public ::testing::Test {
 protected:
  ~SelfTestCacheTest() override { std::filesystem::remove_all(folder_); }

  static std::string NewFolder() {
    std::string folder = ::testing::TempDir() + "self_test_cache.XXXXXX";
    return mkdtemp(folder.data());
  }
  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  // A file with one thing changed.
  void Change(const std::string& from, const std::string& to) const {
    std::string text = Text();
    ASSERT_NE(text.find(from), std::string::npos) << from << " in " << text;
    Write(text.replace(text.find(from), from.size(), to));
  }

  const std::string folder_ = NewFolder();
  // Not there yet, nor the folder above it.
  const SelfTestCache cache_{folder_ + "/a/b", "1.2.3"};
  const std::string path_ = cache_.PathOf(kDevice);
};

TEST_F(SelfTestCacheTest, FindsWhatWasKept) {
  EXPECT_TRUE(absl::IsNotFound(cache_.Find(kDevice).status())) << cache_.Find(kDevice).status();
  const SelfTestReport kept = Found();
  ASSERT_TRUE(cache_.Keep(kDevice, kept).ok()) << cache_.Keep(kDevice, kept);
  const auto found = SelfTestCache(folder_ + "/a/b", "1.2.3").Find(kDevice);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->rows.size(), kept.rows.size());
  for (size_t i = 0; i < kept.rows.size(); ++i) {
    EXPECT_EQ(found->rows[i].primitive, kept.rows[i].primitive);
    EXPECT_EQ(found->rows[i].dtype, kept.rows[i].dtype);
    EXPECT_EQ(found->rows[i].launches, kept.rows[i].launches);
    EXPECT_EQ(found->rows[i].worst_error, kept.rows[i].worst_error);
    EXPECT_EQ(found->rows[i].failure, kept.rows[i].failure);
    EXPECT_EQ(found->rows[i].is_declined, kept.rows[i].is_declined);
  }
  EXPECT_EQ(found->seconds, 1.75);
  EXPECT_THAT(found->failed, ElementsAre(Launch(SoftmaxArgs()).index()));
  EXPECT_FALSE(found->is_unusable);
  EXPECT_THAT(found->cached_from, MatchesRegex("20..-..-..T..:..:..Z"));
}

TEST_F(SelfTestCacheTest, FindsThatADeviceIsOfNoUse) {
  SelfTestReport kept = Found();
  kept.is_unusable = true;
  ASSERT_TRUE(cache_.Keep(kDevice, kept).ok());
  EXPECT_TRUE(cache_.Find(kDevice)->is_unusable);
  // Also by its rows alone: nothing replaces attend.
  kept = Found();
  kept.rows[0].failure = "differs";
  ASSERT_TRUE(cache_.Keep(kDevice, kept).ok());
  EXPECT_TRUE(cache_.Find(kDevice)->is_unusable);
}

TEST_F(SelfTestCacheTest, ReplacesAnEarlierResultAndLeavesNoOtherFile) {
  SelfTestReport kept = Found();
  ASSERT_TRUE(cache_.Keep(kDevice, kept).ok());
  kept.seconds = 9;
  ASSERT_TRUE(cache_.Keep(kDevice, kept).ok());
  EXPECT_EQ(cache_.Find(kDevice)->seconds, 9);
  const std::filesystem::directory_iterator files(folder_ + "/a/b");
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(SelfTestCacheTest, ADateIsThatOfTheFile) {
  ASSERT_TRUE(cache_.Keep(kDevice, Found()).ok());
  const timespec times[2] = {{.tv_sec = 1'700'000'000}, {.tv_sec = 1'700'000'000}};
  ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  EXPECT_EQ(cache_.Find(kDevice)->cached_from, "2023-11-14T22:13:20Z");
}

TEST_F(SelfTestCacheTest, ResultsOfOthersAreNotFound) {
  ASSERT_TRUE(cache_.Keep(kDevice, Found()).ok());
  EXPECT_TRUE(absl::IsNotFound(cache_.Find(std::string(kDevice) + "4").status()));
  EXPECT_TRUE(absl::IsNotFound(SelfTestCache(folder_ + "/a/b", "1.2.4").Find(kDevice).status()));
  // As if the names of two files were one.
  const std::string kept = Text();
  for (const auto& [from, to] : std::initializer_list<std::pair<const char*, const char*>>{
           {"580.65", "580.66"}, {"1.2.3", "1.2.4"}, {"\"program\": \"", "\"program\": \"0"}}) {
    Write(kept);
    ASSERT_TRUE(cache_.Find(kDevice).ok());
    Change(from, to);
    EXPECT_TRUE(absl::IsNotFound(cache_.Find(kDevice).status())) << from;
  }
}

TEST_F(SelfTestCacheTest, IsOfThisProgram) {
  ASSERT_TRUE(cache_.Keep(kDevice, Found()).ok());
  // A build id is a SHA-1.
  EXPECT_THAT(Text(), ::testing::ContainsRegex("\"program\": \"[0-9a-f]{40}\""));
}

TEST_F(SelfTestCacheTest, DamagedFilesAreRefusedAndReplaced) {
  ASSERT_TRUE(cache_.Keep(kDevice, Found()).ok());
  const std::string kept = Text();
  for (size_t bytes = 0; bytes + 2 < kept.size(); ++bytes) {
    Write(kept.substr(0, bytes));
    ASSERT_THAT(std::string(cache_.Find(kDevice).status().message()), HasSubstr("it is damaged"))
        << bytes;
  }
  const std::pair<const char*, const char*> changes[] = {
      {"\"attend\"", "\"attention\""},
      {"\"attend\"", "7"},
      {"\"declined\": false", "\"declined\": 0"},
      {"\"launches\": 3", "\"launches\": -3"},
      {"\"launches\": 3", "\"launches\": 1e300"},
      {"\"seconds\": 1.75", "\"seconds\": true"},
      {"\"worst_error\": 1e-07", "\"worst_error\": null"},
      {"\"unusable\"", "\"usable\""},
      {"\"rows\": [", "\"rows\": [], \"others\": ["},
      {"\"rows\": [", "\"rows\": [[],"},
      {"\"failure\": \"\"", "\"failure\": null"}};
  for (const auto& [from, to] : changes) {
    Write(kept);
    ASSERT_TRUE(cache_.Find(kDevice).ok());
    Change(from, to);
    EXPECT_THAT(std::string(cache_.Find(kDevice).status().message()), HasSubstr("it is damaged"))
        << from << " -> " << to;
  }
  for (const char* text : {"[]", "null", "3", "\"", "\xff\xfe", "{\"device\": {}}"}) {
    Write(text);
    EXPECT_THAT(std::string(cache_.Find(kDevice).status().message()), HasSubstr("it is damaged"));
  }
  ASSERT_TRUE(cache_.Keep(kDevice, Found()).ok());
  EXPECT_EQ(Text(), kept);
}

TEST_F(SelfTestCacheTest, WhatIsNoFileOfOursIsRefused) {
  ASSERT_TRUE(cache_.Keep(kDevice, Found()).ok());
  const auto why = [&] { return std::string(cache_.Find(kDevice).status().message()); };
  // Valid, but for its size.
  Write(Text() + std::string(1 << 20, ' '));
  EXPECT_THAT(why(), HasSubstr("it is too large"));
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(why(), HasSubstr("it is not a file"));
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_THAT(why(), HasSubstr("it is not a file"));
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("/dev/zero", path_);
  EXPECT_THAT(why(), HasSubstr("it is not a file"));
  ASSERT_TRUE(cache_.Keep(kDevice, Found()).ok());
  EXPECT_TRUE(cache_.Find(kDevice).ok());
  if (geteuid() == 0) {
    ASSERT_EQ(chown(path_.c_str(), 12345, 12345), 0);
  } else {  // only root gives files away, and has some that all may read
    std::filesystem::remove(path_);
    std::filesystem::create_symlink("/etc/passwd", path_);
  }
  EXPECT_THAT(why(), HasSubstr("it belongs to another user"));
}

TEST_F(SelfTestCacheTest, AFolderThatCannotBeWrittenIsAReason) {
  std::ofstream(folder_ + "/file") << "";
  const SelfTestCache below(folder_ + "/file/folder", "1");
  EXPECT_THAT(std::string(below.Keep(kDevice, Found()).message()),
              HasSubstr("self-test: cannot make " + folder_ + "/file/folder"));
  EXPECT_FALSE(below.Find(kDevice).ok());
  const SelfTestCache in_kernel("/proc/self", "1");
  EXPECT_THAT(std::string(in_kernel.Keep(kDevice, Found()).message()),
              HasSubstr("self-test: cannot write /proc/self/self-test-"));
  const SelfTestCache none("", "1");
  EXPECT_TRUE(absl::IsFailedPrecondition(none.Find(kDevice).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(none.Keep(kDevice, Found())));
}

}  // namespace
}  // namespace attnd::testing
