// Keys of a second source beside a window of the first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/pattern/base/window.h"
#include "kernels/pattern/predicates/predicate.h"
#include "kernels/pattern/shapes/seq.h"

namespace attnd {

// Keys of a second source: rows from Nk on, or -1, in slots that are appended to the keys [0, nk).
struct SecondKeys {
  std::vector<int32_t> rows;
  Visible visible;  // over slots 0, 1, ..; null: every pair
  PatternCounts counts;
};
// `local`: the visible keys of [0, nk); nullopt: none.
PatternSource WithSecondKeys(const PatternSeq& seq, const std::optional<Window>& local,
                             const SecondKeys& second);

}  // namespace attnd
