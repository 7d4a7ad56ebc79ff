// Pairs and tiles of patterns that are built.
#pragma once

#include "kernels/device/pattern.h"
#include "kernels/pattern/base/window.h"
#include "kernels/pattern/cost.h"

namespace attnd {

// Pairs and tiles of a built pattern within `lengths`. A pattern with a gather order or lists was
// built for certain lengths, and ignores these.
PatternCounts CountsOf(const Pattern& pattern, const Lengths& lengths);

}  // namespace attnd
