#include <cstdlib>

#include "tests/ops/plain.h"

namespace attnd::testing {

void PlainPool(const PoolArgs&) {
  std::abort();  // is not built yet
}

}  // namespace attnd::testing
