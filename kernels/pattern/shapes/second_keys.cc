#include "kernels/pattern/shapes/second_keys.h"

#include "kernels/pattern/builder.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/windows.h"
#include "kernels/pattern/tiles.h"

namespace attnd {
namespace {

// Keys of a second source behind those that `near` shows; null: alone.
struct AppendedKeys {
  Lengths lengths;
  Visible near;
  std::vector<int32_t> rows;
  Visible visible;
};

PatternPlan PlanOf(const AppendedKeys& second) {
  const auto& [lengths, near, rows, visible] = second;
  PatternPlan plan{.Nq = lengths.nq, .visible = visible, .key_rows = rows};
  if (near != nullptr) {
    plan.key_rows = AppendedOrder(lengths.nk, rows);
    const Visible all = Band(PatternBuilder::kUnbounded, kFar);
    plan.visible = Beside(near, Tiles(lengths.nk), visible ? visible : all);
  }
  plan.Nk = static_cast<int64_t>(plan.key_rows.size());
  return plan;
}

}  // namespace

PatternSource WithSecondKeys(const PatternSeq& row, const std::optional<Window>& local,
                             const SecondKeys& second) {
  PatternCounts counts = second.counts;
  Visible near;
  if (local.has_value()) {
    const PatternSource natural = WindowSource(row.Nq, row.Nk, *local, row.lengths);
    counts.pairs += natural.visible_pairs;
    counts.tiles += natural.visible_tiles;
    near = Windows(*local);
  }
  PatternSource source =
      SourceOf(row.Nq, row.Nk, "second",
               AppendedKeys{row.lengths, near, second.rows, second.visible}, counts, PlanOf);
  source.gathers = true;
  return source;
}

}  // namespace attnd
