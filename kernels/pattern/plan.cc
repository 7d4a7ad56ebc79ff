#include "kernels/pattern/plan.h"

#include <cassert>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/tiles.h"

namespace attnd {
namespace {

// Slots that hold no row.
std::vector<int32_t> SlotsWithoutRow(const RowOrder& order) {
  std::vector<int32_t> slots;
  for (size_t s = 0; s < order.size(); ++s) {
    if (order[s] < 0) slots.push_back(static_cast<int32_t>(s));
  }
  return slots;
}

}  // namespace

Pattern Build(PatternPlan plan) {
  const auto restrict_to = [&](Visible seen) {
    plan.visible = plan.visible == nullptr ? seen : And(plan.visible, seen);
  };
  assert(plan.query_rows.empty() || static_cast<int64_t>(plan.query_rows.size()) == plan.Nq);
  assert(plan.key_rows.empty() || static_cast<int64_t>(plan.key_rows.size()) == plan.Nk);
  assert(plan.key_bias.empty() || static_cast<int64_t>(plan.key_bias.size()) == plan.Nk);
  if (const auto slots = SlotsWithoutRow(plan.query_rows); !slots.empty()) {
    restrict_to(Not(Queries(slots)));
  }
  if (const auto slots = SlotsWithoutRow(plan.key_rows); !slots.empty()) {
    restrict_to(Not(Keys(slots)));
  }
  if (plan.visible == nullptr) plan.visible = Band(PatternBuilder::kUnbounded, kFar);
  PatternBuilder builder(plan.Nq, plan.Nk);
  builder.Add(std::move(plan.visible), std::move(plan.constants));
  Pattern pattern = std::move(builder).Build();
  pattern.query_rows = std::move(plan.query_rows);
  pattern.key_rows = std::move(plan.key_rows);
  pattern.key_bias = std::move(plan.key_bias);
  return pattern;
}

}  // namespace attnd
