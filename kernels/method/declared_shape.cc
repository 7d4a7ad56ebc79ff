#include "kernels/method/declared_shape.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace attnd {
namespace {

// The sizes that differ from a list.
struct Differences {
  int count = 0;                   // a letter that stands for several dimensions once
  std::vector<std::string> named;  // "H = 4", of letters alone: a number says its size itself
};

// `letters` end with the last dimension.
Differences DifferencesOf(const DeclaredShape::Letters& letters, bool broadcasts,
                          const SizesByLetter& sizes, const Shape& shape) {
  Differences differences;
  ForEachLetter(letters, shape, [&](absl::string_view letter, int64_t is) {
    int64_t size = 0;
    if (absl::SimpleAtoi(letter, &size)) {
      if (is != size) ++differences.count;
      return;
    }
    const auto named = sizes.find(letter);
    if (named == sizes.end() || is == named->second || (broadcasts && is == 1)) return;
    const std::string difference = absl::StrCat(letter, " = ", named->second);
    if (!differences.named.empty() && differences.named.back() == difference) return;
    differences.named.push_back(difference);
    ++differences.count;
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
  std::optional<Differences> nearest;  // of the lists of this rank
  for (const DeclaredShape::Letters& letters : parsed.lists) {
    if (!parsed.FitsRank(letters, shape.rank)) continue;
    Differences differences = DifferencesOf(letters, parsed.broadcasts, sizes, shape);
    if (differences.count == 0) return "";
    if (!nearest.has_value() || differences.count < nearest->count) {
      nearest = std::move(differences);
    }
  }
  if (nearest.has_value() && !nearest->named.empty()) {
    absl::StrAppend(&rule, " with ", absl::StrJoin(nearest->named, " and "));
  }
  return rule;
}

}  // namespace attnd
