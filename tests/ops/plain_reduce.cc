#include <cstdlib>

#include "tests/ops/plain.h"

namespace attnd::testing {

void PlainReduce(const ReduceArgs&) {
  std::abort();  // is not built yet
}

void PlainSoftmax(const SoftmaxArgs&) {
  std::abort();  // is not built yet
}

void PlainCumulative(const CumulativeArgs&) {
  std::abort();  // is not built yet
}

void PlainLayerNorm(const LayerNormArgs&) {
  std::abort();  // is not built yet
}

}  // namespace attnd::testing
