// Regression: Log waited for the reader of a full pipe, and the whole server with it.
#include "server/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace attnd {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::StartsWith;

class LogWriterTest : public testing::Test {
 protected:
  LogWriterTest() {
    EXPECT_EQ(pipe(pipe_), 0);
    EXPECT_GT(fcntl(pipe_[1], F_SETPIPE_SZ, 4096), 0);
    signal(SIGPIPE, SIG_IGN);
    writer_.emplace(pipe_[1], [](int64_t lost) { return absl::StrCat("lost ", lost, "\n"); });
  }
  // Closing the reading end unblocks the writing thread.
  ~LogWriterTest() override {
    close(pipe_[0]);
    EXPECT_TRUE(writer_->Flush(milliseconds(60'000)));
    writer_.reset();
  }

  // The next lines, without a notice of lost ones in between.
  std::vector<std::string> Read(size_t count) {
    while (std::count(text_.begin(), text_.end(), '\n') < static_cast<ptrdiff_t>(count)) {
      char bytes[4096];
      const ssize_t got = read(pipe_[0], bytes, sizeof bytes);
      if (got <= 0) break;
      text_.append(bytes, static_cast<size_t>(got));
    }
    std::vector<std::string> lines;
    for (; count > 0; --count) {
      const size_t end = text_.find('\n');
      if (end == std::string::npos) break;
      lines.push_back(text_.substr(0, end));
      text_.erase(0, end + 1);
    }
    return lines;
  }

  int pipe_[2];
  std::string text_;
  std::optional<LogWriter> writer_;
};

TEST_F(LogWriterTest, LinesLeaveInOrder) {
  for (const char* line : {"a\n", "b\n", "c\n"}) writer_->Put(line);
  EXPECT_TRUE(writer_->Flush(milliseconds(60'000)));
  EXPECT_THAT(Read(3), ElementsAre("a", "b", "c"));
  EXPECT_EQ(writer_->dropped(), 0);
}

TEST_F(LogWriterTest, PutDoesNotWaitForTheReaderAndTheOldestLinesAreLost) {
  constexpr int kLines = 4000;
  const std::string filler(1000, '.');
  for (int i = 0; i < kLines; ++i) writer_->Put(absl::StrCat("line ", i, " ", filler, "\n"));

  // Reached although 4 MB were written to a pipe of 4 KB.
  EXPECT_FALSE(writer_->Flush(milliseconds(10)));
  const int64_t dropped = writer_->dropped();
  // Besides the lines in the queue, four are in the pipe and one is being written.
  EXPECT_GE(dropped, kLines - static_cast<int64_t>(LogWriter::kMostLines) - 5);

  // Once read: notices count the missing lines, and the newest ones are complete.
  int64_t read = 0, lost = 0;
  std::string last;
  while (read + lost < kLines) {
    const std::vector<std::string> lines = Read(1);
    ASSERT_EQ(lines.size(), 1u);
    int64_t count = 0;
    if (absl::SimpleAtoi(absl::StripPrefix(lines[0], "lost "), &count)) {
      lost += count;
    } else {
      read += 1;
      last = lines[0];
    }
  }
  EXPECT_EQ(lost, dropped);
  EXPECT_THAT(last, StartsWith(absl::StrCat("line ", kLines - 1, " ")));
}

TEST_F(LogWriterTest, ALineThatCannotBeWrittenIsCounted) {
  close(pipe_[0]);
  writer_->Put("a\n");
  EXPECT_TRUE(writer_->Flush(milliseconds(60'000)));
  EXPECT_EQ(writer_->dropped(), 1);
  ASSERT_EQ(pipe(pipe_), 0);
  close(pipe_[1]);
}

TEST_F(LogWriterTest, ALineAboveTheBoundIsLostAlone) {
  writer_->Put("a\n");
  ASSERT_TRUE(writer_->Flush(milliseconds(60'000)));
  writer_->Put(absl::StrCat(std::string(LogWriter::kMostLineBytes, 'x'), "\n"));
  writer_->Put("b\n");
  EXPECT_EQ(writer_->dropped(), 1);
  EXPECT_THAT(Read(3), ElementsAre("a", "lost 1", "b"));
}

}  // namespace
}  // namespace attnd
