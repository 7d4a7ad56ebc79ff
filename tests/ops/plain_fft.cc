#include <cstdlib>

#include "tests/ops/plain.h"

namespace attnd::testing {

void PlainRealFft2(const FftArgs&) {
  std::abort();  // is not built yet
}

}  // namespace attnd::testing
