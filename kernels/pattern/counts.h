// Pairs and tiles of patterns that are built.
#pragma once

#include "kernels/device/pattern.h"
#include "kernels/pattern/base/window.h"
#include "kernels/pattern/cost.h"

namespace attnd {

// Pairs and tiles of a built pattern, of a row's lengths; the lengths of a pattern with a gather
// order or lists are those that it was built for.
PatternCounts CountsOf(const Pattern& pattern, const Lengths& lengths);

}  // namespace attnd
