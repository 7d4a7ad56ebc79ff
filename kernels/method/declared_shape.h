// Shapes as methods declare them (TensorInfo::shape), held against shapes as sent.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "kernels/core/view.h"

namespace attnd {

// Sizes by letter, e.g. {"B", 2}; a letter that is missing may have any size.
using SizesByLetter = std::map<std::string, int64_t, std::less<>>;

// `declared` reads "[B,H,Nq,Nk]"; "[H] or [B,H]"; "[1,N]", where a number is a size; or
// "broadcastable to [B,H,Nq,Nk]": fewer dimensions are taken for the last ones, and a dimension of
// 1 repeats. Empty if `shape` fits, else the rule that it breaks: "shape must be [H] or [B,H] with
// H = 4".
std::string BrokenShapeRule(absl::string_view declared, const SizesByLetter& sizes,
                            const Shape& shape);

}  // namespace attnd
