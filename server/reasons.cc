#include "server/reasons.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"

namespace attnd {
namespace {

constexpr absl::string_view kPermanent = "attnd/permanent";

}  // namespace

absl::Status MergeReasons(const absl::Status& first, const absl::Status& second) {
  if (second.ok()) return first;
  if (first.ok()) return second;
  const auto code =
      absl::IsInvalidArgument(second) ? absl::StatusCode::kInvalidArgument : first.code();
  return absl::Status(code, absl::StrCat(first.message(), "\n", second.message()));
}

absl::Status FitTrailer(const absl::Status& status) {
  const absl::string_view message = status.message();
  if (message.size() <= kMaxReasonBytes) return status;
  const std::vector<absl::string_view> lines = absl::StrSplit(message, '\n');
  // Room for the closing line.
  size_t kept = 0, bytes = 40;
  while (kept < lines.size() && bytes + lines[kept].size() + 1 <= kMaxReasonBytes) {
    bytes += lines[kept++].size() + 1;
  }
  const std::string text =
      kept == 0 ? absl::StrCat(message.substr(0, kMaxReasonBytes - 3), "...")
                : absl::StrCat(absl::StrJoin(lines.begin(), lines.begin() + kept, "\n"), "\nand ",
                               lines.size() - kept, " more reasons");
  return absl::Status(status.code(), text);
}

void RefuseUnknownFields(const google::protobuf::Message& message, const std::string& subject,
                         Reasons* reasons) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  std::set<int> numbers;
  for (int i = 0; i < unknown.field_count(); ++i) numbers.insert(unknown.field(i).number());
  for (int number : numbers) {
    reasons->Invalid(subject, " must be those of ", message.GetTypeName(), ", got field ", number);
  }
}

absl::Status Permanent(absl::Status status) {
  status.SetPayload(kPermanent, absl::Cord());
  return status;
}

bool IsPermanent(const absl::Status& status) { return status.GetPayload(kPermanent).has_value(); }

std::string Quoted(absl::string_view text) {
  constexpr size_t kLongest = 64;
  const bool is_long = text.size() > kLongest;
  return absl::StrCat("\"", absl::CEscape(text.substr(0, kLongest)), is_long ? "..." : "", "\"");
}

}  // namespace attnd
