#include <cstdlib>

#include "tests/ops/plain.h"

namespace attnd::testing {

void PlainMatMul(const MatMulArgs&) {
  std::abort();  // is not built yet
}

}  // namespace attnd::testing
