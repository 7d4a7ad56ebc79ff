// Keys of a second source beside a window of the first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/pattern/base/window.h"
#include "kernels/pattern/predicates/predicate.h"
#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Keys [0, nk) within `local` (none: not at all) and, appended, rows of a second source or -1, of
// which `visible` (of slots 0, 1, ..) shows some.
struct SecondKeys {
  std::vector<int32_t> rows;  // from Nk on
  Visible visible;            // null: every pair
  PatternCounts counts;
};
PatternSource WithSecondKeys(const PatternSeq& seq, const std::optional<Window>& local,
                             const SecondKeys& second);

}  // namespace attnd
