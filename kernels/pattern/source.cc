#include "kernels/pattern/source.h"

#include <cassert>

#include "absl/strings/str_cat.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/sets.h"

namespace attnd {

PatternSource SourceOf(int64_t Nq, int64_t Nk, KeyedSpec keyed, const PatternCounts& counts) {
  std::function<Pattern()> build = [spec = keyed.spec, Nq, Nk] {
    PatternSpec made = spec();
    // An order without slots would mean the natural order.
    const bool is_empty = made.Nq == 0 || made.Nk == 0;
    return is_empty ? PatternBuilder(Nq, Nk).Build() : Build(std::move(made));
  };
  return {.Nq = Nq,
          .Nk = Nk,
          .key = absl::StrCat(Nq, " ", Nk, " ", keyed.text),
          .visible_pairs = counts.pairs,
          .visible_tiles = counts.tiles,
          .term_bytes = counts.term_bytes,
          .host = CostOf(Nq, Nk, counts),
          .spec = std::move(keyed.spec),
          .build = std::move(build)};
}

PatternSource SourceOf(int64_t Nq, int64_t Nk, Visible visible, const PatternCounts& counts) {
  if (visible == nullptr) {
    return {.Nq = Nq, .Nk = Nk, .visible_pairs = counts.pairs, .visible_tiles = counts.tiles};
  }
  std::string key = visible->key();
  const auto spec = [Nq, Nk, visible = std::move(visible)] {
    return PatternSpec{.Nq = Nq, .Nk = Nk, .visible = visible};
  };
  return SourceOf(Nq, Nk, KeyedSpec{std::move(key), spec}, counts);
}

namespace {

// Segment ids of slots; -1 for slots without a row and for rows of a second source.
std::vector<int32_t> IdsOf(std::span<const int32_t> ids, const RowOrder& order) {
  if (order.empty()) return {ids.begin(), ids.end()};
  std::vector<int32_t> slots(order.size(), -1);
  for (size_t s = 0; s < order.size(); ++s) {
    const bool has_id = order[s] >= 0 && static_cast<size_t>(order[s]) < ids.size();
    if (has_id) slots[s] = ids[order[s]];
  }
  return slots;
}

// Slots of the rows of a second source: from `rows` on.
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

struct InSegments {
  int64_t Nq, Nk;
  KeyedSpec of;  // no spec: every pair
  std::vector<int32_t> ids_q, ids_k;
};

PatternSpec SpecOf(const InSegments& s) {
  PatternSpec made = s.of.spec ? s.of.spec() : PatternSpec{.Nq = s.Nq, .Nk = s.Nk};
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
                      {source.key, source.spec},
                      {ids_q.begin(), ids_q.end()},
                      {ids_k.begin(), ids_k.end()}};
  const PatternCounts counts{.pairs = source.visible_pairs,
                             .tiles = source.visible_tiles,
                             .term_bytes = source.term_bytes};
  PatternSource result =
      SourceOf(source.Nq, source.Nk, "segments", std::move(segments), counts, SpecOf);
  result.is_counted = result.knows_pairs = false;
  result.gathers = source.gathers;
  return result;
}

}  // namespace attnd
