#include <cstdlib>

#include "tests/ops/plain.h"

namespace attnd::testing {

void PlainMerge(const MergeArgs&) {
  std::abort();  // is not built yet
}

void PlainMergeGrad(const MergeGradArgs&) {
  std::abort();  // is not built yet
}

}  // namespace attnd::testing
