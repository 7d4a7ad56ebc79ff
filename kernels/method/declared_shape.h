// Shapes as methods declare them (TensorInfo::shape), compared with shapes as sent.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/core/view.h"

namespace attnd {

// A declaration reads "[B,H,Nq,Nk]"; "[H] or [B,H]"; "[1,N]", where a number is a size; "[..,n]",
// where ".." stands for one dimension or more; or "broadcastable to [B,H,Nq,Nk]": fewer dimensions
// stand for the last ones, and a dimension of 1 repeats.
struct DeclaredShape {
  using Letters = std::vector<absl::string_view>;  // of the dimensions of one list
  std::vector<Letters> lists;
  bool broadcasts = false;

  bool FitsRank(const Letters& letters, int rank) const;
};

// Views into `text`.
DeclaredShape ParseShape(absl::string_view text);

// The letters of the last dimensions of `shape`, as far as both go: `f(letter, size)` of each, from
// the first one on.
template <class F>
void ForEachLetter(const DeclaredShape::Letters& letters, const Shape& shape, const F& f) {
  const int missing = static_cast<int>(letters.size()) - shape.rank;
  for (int i = missing < 0 ? -missing : 0; i < shape.rank; ++i) {
    f(letters[static_cast<size_t>(i + missing)], shape[i]);
  }
}

// Sizes by letter, e.g. {"B", 2}; a letter that is missing may have any size.
using SizesByLetter = std::map<std::string, int64_t, std::less<>>;

// Empty if `shape` fits the declaration, else the rule that it breaks, with the sizes of letters
// that differ: "shape must be [H] or [B,H] with H = 4", "shape must be [1]".
std::string BrokenShapeRule(absl::string_view declared, const SizesByLetter& sizes,
                            const Shape& shape);

}  // namespace attnd
