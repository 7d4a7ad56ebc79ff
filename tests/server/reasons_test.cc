#include "server/reasons.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace attnd {
namespace {

TEST(ReasonsTest, MergesLinesAndCodes) {
  const absl::Status ok, invalid = absl::InvalidArgumentError("a"),
                         unserved = absl::UnimplementedError("b");
  EXPECT_EQ(MergeReasons(ok, ok), ok);
  EXPECT_EQ(MergeReasons(ok, unserved), unserved);
  EXPECT_EQ(MergeReasons(unserved, ok), unserved);
  EXPECT_EQ(MergeReasons(unserved, invalid), absl::InvalidArgumentError("b\na"));
  EXPECT_EQ(MergeReasons(invalid, unserved), absl::InvalidArgumentError("a\nb"));
}

TEST(ReasonsTest, ShortensTextsThatNoTrailerCanCarry) {
  Reasons many("request");
  for (int i = 100; i < 400; ++i) many.Invalid("line ", i);  // 18 bytes with the line's end
  const absl::Status status = FitTrailer(many.status());
  EXPECT_LE(status.message().size(), kMaxReasonBytes);
  EXPECT_GT(status.message().size(), kMaxReasonBytes - 40);
  const std::vector<std::string> lines = absl::StrSplit(std::string(status.message()), '\n');
  EXPECT_EQ(lines.front(), "request: line 100");
  EXPECT_EQ(lines.back(), absl::StrCat("and ", 300 - (lines.size() - 1), " more reasons"));
}

TEST(ReasonsTest, CutsASingleLineThatIsTooLong) {
  const absl::Status status = FitTrailer(absl::InvalidArgumentError(std::string(9000, 'x')));
  EXPECT_EQ(status.message().size(), kMaxReasonBytes);
}

TEST(ReasonsTest, QuotesTextOfAClient) {
  EXPECT_EQ(Quoted("a\n\"\xff"), R"("a\n\"\377")");
  EXPECT_EQ(Quoted(std::string(65, 'x')), "\"" + std::string(64, 'x') + "...\"");
}

}  // namespace
}  // namespace attnd
