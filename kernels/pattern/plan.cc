#include "kernels/pattern/plan.h"

#include <cassert>
#include <numeric>

#include "absl/strings/str_cat.h"
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

// Segment ids of slots; -1 for slots without a row and for rows of a second source, which have
// none.
std::vector<int32_t> IdsOf(std::span<const int32_t> ids, const RowOrder& order) {
  if (order.empty()) return {ids.begin(), ids.end()};
  std::vector<int32_t> slots(order.size(), -1);
  for (size_t s = 0; s < order.size(); ++s) {
    const bool has_id = order[s] >= 0 && static_cast<size_t>(order[s]) < ids.size();
    if (has_id) slots[s] = ids[order[s]];
  }
  return slots;
}

// Slots of rows from `rows` on: those of a second source.
std::vector<int32_t> SlotsFrom(size_t rows, const RowOrder& order) {
  std::vector<int32_t> slots;
  for (size_t s = 0; s < order.size(); ++s) {
    const bool is_second = order[s] >= 0 && static_cast<size_t>(order[s]) >= rows;
    if (is_second) slots.push_back(static_cast<int32_t>(s));
  }
  return slots;
}

std::vector<int32_t> SlotsInSegments(const std::vector<int32_t>& ids) {
  std::vector<int32_t> slots;
  for (size_t s = 0; s < ids.size(); ++s) {
    if (ids[s] >= 0) slots.push_back(static_cast<int32_t>(s));
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

PatternSource SourceOf(int64_t Nq, int64_t Nk, KeyedPlan keyed, const PatternCounts& counts) {
  std::function<Pattern()> build = [plan = keyed.plan, Nq, Nk] {
    PatternPlan made = plan();
    // An order of no slots would read as the natural one.
    const bool is_empty = made.Nq == 0 || made.Nk == 0;
    return is_empty ? PatternBuilder(Nq, Nk).Build() : Build(std::move(made));
  };
  return {.Nq = Nq,
          .Nk = Nk,
          .key = absl::StrCat(Nq, " ", Nk, " ", keyed.text),
          .visible_pairs = counts.pairs,
          .visible_tiles = counts.tiles,
          .host = CostOf(Nq, Nk, counts),
          .plan = std::move(keyed.plan),
          .build = std::move(build)};
}

PatternSource SourceOf(int64_t Nq, int64_t Nk, Visible visible, const PatternCounts& counts) {
  if (visible == nullptr) {
    return {.Nq = Nq, .Nk = Nk, .visible_pairs = counts.pairs, .visible_tiles = counts.tiles};
  }
  std::string key = visible->key();
  const auto plan = [Nq, Nk, visible = std::move(visible)] {
    return PatternPlan{.Nq = Nq, .Nk = Nk, .visible = visible};
  };
  return SourceOf(Nq, Nk, KeyedPlan{std::move(key), plan}, counts);
}

namespace {

struct InSegments {
  int64_t Nq, Nk;
  KeyedPlan of;  // no plan: every pair
  std::vector<int32_t> ids_q, ids_k;
};

PatternPlan PlanOf(const InSegments& s) {
  PatternPlan made = s.of.plan ? s.of.plan() : PatternPlan{.Nq = s.Nq, .Nk = s.Nk};
  const std::vector<int32_t> q_ids = IdsOf(s.ids_q, made.query_rows);
  Visible seen = SameSegment(q_ids, IdsOf(s.ids_k, made.key_rows));
  if (const auto second = SlotsFrom(s.ids_k.size(), made.key_rows); !second.empty()) {
    seen = Or(seen, And(Queries(SlotsInSegments(q_ids)), Keys(second)));
  }
  made.visible = made.visible == nullptr ? seen : And(made.visible, seen);
  return made;
}

}  // namespace

PatternSource WithinSegments(const PatternSource& source, std::span<const int32_t> ids_q,
                             std::span<const int32_t> ids_k) {
  assert(static_cast<int64_t>(ids_q.size()) == source.Nq);
  assert(static_cast<int64_t>(ids_k.size()) == source.Nk);
  InSegments segments{source.Nq,
                      source.Nk,
                      {source.key, source.plan},
                      {ids_q.begin(), ids_q.end()},
                      {ids_k.begin(), ids_k.end()}};
  PatternSource result = SourceOf(source.Nq, source.Nk, "segments", std::move(segments),
                                  {source.visible_pairs, source.visible_tiles}, PlanOf);
  result.is_counted = false;
  result.gathers = source.gathers;
  return result;
}

RowOrder ResidueOrder(int64_t n, int64_t offset, int64_t modulus) {
  RowOrder order;
  order.reserve(n);
  // The first rows of the classes, in the order of classes: row 0 is of class `first`.
  const int64_t first = Remainder(offset, modulus), heads = std::min(n, modulus);
  const int64_t zero = std::min(modulus - first, heads);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = h < heads - zero ? zero + h : h - (heads - zero); i < n; i += modulus) {
      order.push_back(static_cast<int32_t>(i));
    }
  }
  return order;
}

RowOrder Appended(const RowOrder& order, std::span<const int32_t> more) {
  const auto border = static_cast<size_t>(Tiles(static_cast<int64_t>(order.size())) * kTile);
  RowOrder appended;
  appended.reserve(border + more.size());
  appended = order;
  appended.resize(border, -1);
  appended.insert(appended.end(), more.begin(), more.end());
  return appended;
}

RowOrder AppendedOrder(int64_t n, std::span<const int32_t> appended) {
  RowOrder order(n);
  std::iota(order.begin(), order.end(), 0);
  return Appended(order, appended);
}

RowOrder LineOrder(std::span<const int64_t> grid, int64_t axis) {
  int64_t outer = 1;
  for (int64_t e = 0; e < axis; ++e) outer *= grid[e];
  const int64_t inner = StepAlong(grid, axis);
  RowOrder order;
  order.reserve(outer * inner * grid[axis]);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      for (int64_t a = 0; a < grid[axis]; ++a) {
        order.push_back(static_cast<int32_t>((o * grid[axis] + a) * inner + i));
      }
    }
  }
  return order;
}

int64_t StepAlong(std::span<const int64_t> grid, int64_t axis) {
  return std::accumulate(grid.begin() + axis + 1, grid.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int32_t> CoordinatesAlong(std::span<const int64_t> grid, int64_t axis) {
  const int64_t inner = StepAlong(grid, axis);
  const int64_t cells = StepAlong(grid, -1);  // of the whole grid
  std::vector<int32_t> coordinates;
  coordinates.reserve(cells);
  for (int64_t x = 0; x < cells; ++x) {
    coordinates.push_back(static_cast<int32_t>(x / inner % grid[axis]));
  }
  return coordinates;
}

RowOrder ImageBlockOrder(int64_t height, int64_t width, int64_t block_height, int64_t block_width) {
  RowOrder order;
  order.reserve(height * width);
  for (int64_t top = 0; top < height; top += block_height) {
    for (int64_t left = 0; left < width; left += block_width) {
      for (int64_t y = top; y < std::min(top + block_height, height); ++y) {
        for (int64_t x = left; x < std::min(left + block_width, width); ++x) {
          order.push_back(static_cast<int32_t>(y * width + x));
        }
      }
    }
  }
  return order;
}

void HideFrom(int64_t rows, RowOrder* order) {
  for (int32_t& row : *order) row = row >= rows ? -1 : row;
}

}  // namespace attnd
