#include "kernels/method/declared_shape.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace attnd {
namespace {

// The letters of "[B,H]".
std::vector<std::string> LettersOf(absl::string_view list) {
  absl::ConsumePrefix(&list, "[");
  absl::ConsumeSuffix(&list, "]");
  return absl::StrSplit(list, ',', absl::SkipEmpty());
}

// The sizes that differ, "H = 4". `letters` end with the last dimension.
std::vector<std::string> Differences(const std::vector<std::string>& letters, bool broadcasts,
                                     const SizesByLetter& sizes, const Shape& shape) {
  std::vector<std::string> differences;
  const size_t missing = letters.size() - static_cast<size_t>(shape.rank);
  for (int i = 0; i < shape.rank; ++i) {
    const std::string& letter = letters[missing + static_cast<size_t>(i)];
    int64_t size = 0;
    if (absl::SimpleAtoi(letter, &size)) {
      if (shape[i] != size) differences.push_back(absl::StrCat(size));
      continue;
    }
    const auto named = sizes.find(letter);
    if (named == sizes.end() || shape[i] == named->second || (broadcasts && shape[i] == 1))
      continue;
    differences.push_back(absl::StrCat(letter, " = ", named->second));
  }
  return differences;
}

}  // namespace

std::string BrokenShapeRule(absl::string_view declared, const SizesByLetter& sizes,
                            const Shape& shape) {
  absl::string_view text = declared;
  const bool broadcasts = absl::ConsumePrefix(&text, "broadcastable to ");
  std::string rule = absl::StrCat("shape must be ", declared);
  std::vector<std::string> nearest;  // of the lists of this rank
  for (absl::string_view list : absl::StrSplit(text, " or ")) {
    const std::vector<std::string> letters = LettersOf(list);
    const auto rank = static_cast<size_t>(shape.rank);
    if (broadcasts ? rank > letters.size() : rank != letters.size()) continue;
    const auto differences = Differences(letters, broadcasts, sizes, shape);
    if (differences.empty()) return "";
    if (nearest.empty() || differences.size() < nearest.size()) nearest = differences;
  }
  if (!nearest.empty()) absl::StrAppend(&rule, " with ", absl::StrJoin(nearest, " and "));
  return rule;
}

}  // namespace attnd
