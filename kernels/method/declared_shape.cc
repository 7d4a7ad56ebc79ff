#include "kernels/method/declared_shape.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace attnd {
namespace {

// The sizes that differ, "H = 4". `letters` end with the last dimension.
std::vector<std::string> Differences(const DeclaredShape::Letters& letters, bool broadcasts,
                                     const SizesByLetter& sizes, const Shape& shape) {
  std::vector<std::string> differences;
  ForEachLetter(letters, shape, [&](absl::string_view letter, int64_t is) {
    int64_t size = 0;
    if (absl::SimpleAtoi(letter, &size)) {
      if (is != size) differences.push_back(absl::StrCat(size));
      return;
    }
    const auto named = sizes.find(letter);
    if (named == sizes.end() || is == named->second || (broadcasts && is == 1)) return;
    const std::string difference = absl::StrCat(letter, " = ", named->second);
    // A letter may stand for several dimensions.
    if (differences.empty() || differences.back() != difference) differences.push_back(difference);
  });
  return differences;
}

}  // namespace

bool DeclaredShape::FitsRank(const Letters& letters, int rank) const {
  const auto size = static_cast<int>(letters.size());
  if (broadcasts) return rank <= size;
  return !letters.empty() && letters.front() == ".." ? rank >= size : rank == size;
}

DeclaredShape ParseShape(absl::string_view text) {
  DeclaredShape declared;
  declared.broadcasts = absl::ConsumePrefix(&text, "broadcastable to ");
  for (absl::string_view list : absl::StrSplit(text, " or ")) {
    absl::ConsumePrefix(&list, "[");
    absl::ConsumeSuffix(&list, "]");
    declared.lists.emplace_back(absl::StrSplit(list, ',', absl::SkipEmpty()));
  }
  return declared;
}

std::string BrokenShapeRule(absl::string_view declared, const SizesByLetter& sizes,
                            const Shape& shape) {
  const DeclaredShape parsed = ParseShape(declared);
  std::string rule = absl::StrCat("shape must be ", declared);
  std::vector<std::string> nearest;  // of the lists of this rank
  for (const DeclaredShape::Letters& letters : parsed.lists) {
    if (!parsed.FitsRank(letters, shape.rank)) continue;
    const auto differences = Differences(letters, parsed.broadcasts, sizes, shape);
    if (differences.empty()) return "";
    if (nearest.empty() || differences.size() < nearest.size()) nearest = differences;
  }
  if (!nearest.empty()) absl::StrAppend(&rule, " with ", absl::StrJoin(nearest, " and "));
  return rule;
}

}  // namespace attnd
