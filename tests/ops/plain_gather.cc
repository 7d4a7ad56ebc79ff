#include <cstdlib>

#include "tests/ops/plain.h"

namespace attnd::testing {

void PlainGatherRows(const GatherRowsArgs&) {
  std::abort();  // is not built yet
}

void PlainScatterRows(const ScatterRowsArgs&) {
  std::abort();  // is not built yet
}

void PlainSort(const SortArgs&) {
  std::abort();  // is not built yet
}

}  // namespace attnd::testing
