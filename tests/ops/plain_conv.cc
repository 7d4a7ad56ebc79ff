#include <cstdlib>

#include "tests/ops/plain.h"

namespace attnd::testing {

void PlainDepthwiseConv(const DepthwiseConvArgs&) {
  std::abort();  // is not built yet
}

void PlainDepthwiseConvGrad(const DepthwiseConvGradArgs&) {
  std::abort();  // is not built yet
}

}  // namespace attnd::testing
