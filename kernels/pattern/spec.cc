#include "kernels/pattern/spec.h"

#include <cassert>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"

namespace attnd {
namespace {

// Slots without a row.
std::vector<int32_t> SlotsWithoutRow(const RowOrder& order) {
  std::vector<int32_t> slots;
  for (size_t s = 0; s < order.size(); ++s) {
    if (order[s] < 0) slots.push_back(static_cast<int32_t>(s));
  }
  return slots;
}

}  // namespace

Pattern Build(PatternSpec spec) {
  const auto restrict_to = [&](Visible seen) {
    spec.visible = spec.visible == nullptr ? seen : And(spec.visible, seen);
  };
  assert(spec.query_rows.empty() || static_cast<int64_t>(spec.query_rows.size()) == spec.Nq);
  assert(spec.key_rows.empty() || static_cast<int64_t>(spec.key_rows.size()) == spec.Nk);
  assert(spec.key_bias.empty() || static_cast<int64_t>(spec.key_bias.size()) == spec.Nk);
  if (const auto slots = SlotsWithoutRow(spec.query_rows); !slots.empty()) {
    restrict_to(Not(Queries(slots)));
  }
  if (const auto slots = SlotsWithoutRow(spec.key_rows); !slots.empty()) {
    restrict_to(Not(Keys(slots)));
  }
  if (spec.visible == nullptr) spec.visible = Band(kUnbounded, kFar);
  StoredLimits limits;
  if (!spec.stores_masks) limits.masks = limits.shapes = 0;
  PatternBuilder builder(spec.Nq, spec.Nk, limits);
  builder.Add(std::move(spec.visible), std::move(spec.constants));
  Pattern pattern = std::move(builder).Build();
  pattern.query_rows = std::move(spec.query_rows);
  pattern.key_rows = std::move(spec.key_rows);
  pattern.key_bias = std::move(spec.key_bias);
  return pattern;
}

}  // namespace attnd
