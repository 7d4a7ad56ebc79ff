#include "server/memory_split.h"

#include <algorithm>

namespace attnd {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kWindowBytes = 64 * kMiB;
constexpr int64_t kProcessBytes = 192 * kMiB;
// Retained tensor memory may take one part in this many of the budget, beside the budget.
constexpr int64_t kRetainedPart = 4;

// Solves budget + budget / 2 + budget / 4 + windows + process = usable.
int64_t DefaultBudget(int64_t usable) {
  if (usable == 0) return 1024 * kMiB;
  const int64_t fits = (usable - kWindowBytes - kProcessBytes) * 4 / 7;
  return std::max(std::min(usable / 2, fits), usable / 8);
}

}  // namespace

MemorySplit SplitMemory(int64_t usable, int64_t asked_budget, int64_t most_retained) {
  MemorySplit split;
  split.budget_bytes = asked_budget > 0 ? asked_budget : DefaultBudget(usable);
  split.retained_bytes = std::min(most_retained, split.budget_bytes / kRetainedPart);
  const int64_t most = split.budget_bytes + kWindowBytes;
  const int64_t left =
      usable == 0 ? most : usable - split.budget_bytes - split.retained_bytes - kProcessBytes;
  split.buffer_bytes = std::clamp(left, split.budget_bytes / 2 + kWindowBytes, most);
  return split;
}

}  // namespace attnd
