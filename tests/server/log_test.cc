// Log lines: one line each for any content, as text and as JSON.
#include "server/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/log_writer.h"

namespace attnd {
namespace {

using testing::EndsWith;
using testing::MatchesRegex;

class LogTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(ConfigureLog({}).ok()); }

  // The text that `write` puts on standard error, without that of earlier tests.
  template <class F>
  static std::string Written(const F& write) {
    EXPECT_TRUE(FlushLog(std::chrono::seconds(10)));
    testing::internal::CaptureStderr();
    write();
    EXPECT_TRUE(FlushLog(std::chrono::seconds(10)));
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, TextIsTimeLevelMessageFields) {
  const std::string line = Written([] {
    Log(LogLevel::kInfo, "listening", {{"grpc", "127.0.0.1:8001"}});
  });
  EXPECT_THAT(line, MatchesRegex("....-..-..T..:..:..[.]...Z info listening "
                                 "grpc=127.0.0.1:8001\n"));
}

TEST_F(LogTest, AValueCannotForgeALine) {
  const std::string line = Written([] {
    Log(LogLevel::kWarning, "refused\nx", {{"id", "a b=\"c\"\\\r\n\x1b[31m"}, {"e", ""}});
  });
  EXPECT_THAT(line, EndsWith("warning refused\\nx id=\"a b=\\\"c\\\"\\\\\\u000d\\n\\u001b[31m\" "
                             "e=\"\"\n"));
}

TEST_F(LogTest, JsonIsOneObjectALine) {
  ASSERT_TRUE(ConfigureLog({.format = "json"}).ok());
  const std::string line = Written([] {
    Log(LogLevel::kError, "it \"broke\"\n", {{"id", "\xff\x01 grün"}, {"n", "1"}});
  });
  ASSERT_EQ(line.find('\n'), line.size() - 1);
  const nlohmann::json parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["level"], "error");
  EXPECT_EQ(parsed["message"], "it \"broke\"\n");
  EXPECT_EQ(parsed["id"], "\xEF\xBF\xBD\x01 grün");
  EXPECT_EQ(parsed["n"], "1");
}

// Waiting lines are bounded by their number, so the size of each must be bounded.
TEST_F(LogTest, LongValuesAreShortened) {
  const std::string reason(1 << 20, '\x01');
  const std::string text = Written([&] { Log(LogLevel::kInfo, reason, {{"reason", reason}}); });
  EXPECT_THAT(text, MatchesRegex("[^\n]* info (.u0001)+[.][.][.] reason=\"(.u0001)+[.][.][.]\"\n"));
  EXPECT_LE(text.size(), LogWriter::kMostLineBytes);

  ASSERT_TRUE(ConfigureLog({.format = "json"}).ok());
  const std::string grun(3000, '\xC3');
  const std::string line = Written([&] {
    Log(LogLevel::kInfo, "m", {{"a", grun}, {"b", reason}});
  });
  EXPECT_LE(line.size(), LogWriter::kMostLineBytes);
  EXPECT_THAT(nlohmann::json::parse(line)["b"], EndsWith("\x01..."));
  EXPECT_EQ(LogLinesDropped(), 0);
}

TEST_F(LogTest, TheLevelIsTheLeastThatIsWritten) {
  const auto all = [] {
    for (const LogLevel level :
         {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
      Log(level, "line");
    }
  };
  const auto lines = [&](const std::string& level) {
    EXPECT_TRUE(ConfigureLog({.level = level}).ok());
    const std::string text = Written(all);
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines("debug"), 4);
  EXPECT_EQ(lines("info"), 3);
  EXPECT_EQ(lines("warning"), 2);
  EXPECT_EQ(lines("error"), 1);
}

TEST_F(LogTest, UnknownSettingsAreRefused) {
  EXPECT_EQ(
      ConfigureLog({.level = "loud"}),
      absl::InvalidArgumentError("log: level must be debug, info, warning or error, got loud"));
  EXPECT_EQ(ConfigureLog({.format = "xml"}),
            absl::InvalidArgumentError("log: format must be text or json, got xml"));
}

TEST_F(LogTest, TheLastLinesBeforeACrashAreWritten) {
  // Starts a new process: a forked one has no writing thread.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        FlushLogOnCrash();
        for (int i = 0; i < 1000; ++i) Log(LogLevel::kInfo, absl::StrCat("line ", i, " of 1000"));
        std::abort();
      },
      "line 0 of 1000(.|\n)*line 999 of 1000");
}

TEST_F(LogTest, LinesOfSeveralThreadsStayWhole) {
  const std::string text = Written([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < 100; ++i) Log(LogLevel::kInfo, "whole", {{"x", "y"}});
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 400u);
  for (const std::string& line : lines) EXPECT_THAT(line, EndsWith("Z info whole x=y"));
}

}  // namespace
}  // namespace attnd
