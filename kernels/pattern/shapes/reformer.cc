#include "kernels/pattern/shapes/reformer.h"

#include <algorithm>

#include "kernels/core/integer.h"
#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"

namespace attnd {
namespace {

constexpr int32_t kNowhere = INT32_MIN;

// The chunks of all rounds, end to end. Round r sees the chunks [First(r), Last(r)]; numbers beyond
// the ends wrap around.
class Chunks {
 public:
  explicit Chunks(const ReformerRounds& rounds)
      : r_(rounds), C_(CeilDiv(rounds.n, rounds.chunk)), chunk_of_(rounds.order.size()) {
    for (int64_t round = 0; round < r_.rounds; ++round) {
      for (int64_t s = 0; s < r_.n; ++s) {
        chunk_of_[round * r_.n + r_.order[round * r_.n + s]] =
            static_cast<int32_t>(round * C_ + s / r_.chunk);
      }
    }
  }

  int64_t count() const { return C_; }
  int64_t First(int64_t round) const { return round * C_ - r_.before; }
  int64_t Last(int64_t round) const { return round * C_ + C_ - 1 + r_.after; }
  // The chunk that round `round` sees under `number`.
  int64_t Chunk(int64_t round, int64_t number) const {
    return r_.flat ? Remainder(number, r_.rounds * C_)
                   : round * C_ + Remainder(number - round * C_, C_);
  }
  int32_t OwnChunk(int64_t round, int64_t row) const { return chunk_of_[round * r_.n + row]; }
  int32_t Bucket(int64_t round, int64_t row) const { return r_.buckets[round * r_.n + row]; }

  void AppendRows(int64_t chunk, RowOrder* rows) const {
    const int64_t round = chunk / C_, first = chunk % C_ * r_.chunk;
    for (int64_t s = first; s < first + r_.chunk; ++s) {
      rows->push_back(s < r_.n ? r_.order[round * r_.n + s] : -1);
    }
  }

  // The numbers below `end` under which round `round` may see a row, ascending.
  std::vector<int32_t> NumbersOf(int64_t round, int64_t row, int64_t end) const {
    std::vector<int32_t> numbers;
    const int64_t period = r_.flat ? r_.rounds * C_ : C_;
    for (int64_t source = 0; source < r_.rounds; ++source) {
      if (source != round && (!r_.flat || !r_.across)) continue;
      const int64_t own = OwnChunk(source, row), first = First(round);
      int64_t number = first + Remainder(own - first, period);
      for (; number <= Last(round) && number < end; number += period) {
        numbers.push_back(static_cast<int32_t>(number));
      }
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
  }

 private:
  const ReformerRounds& r_;
  const int64_t C_;
  std::vector<int32_t> chunk_of_;  // [rounds, n], by row
};

// Pairs of slots that round `earlier` also shows; is_same: of the round itself, the pairs of an
// earlier slot. `numbers`: the number of the chunk of every key slot.
Visible ShownBy(int64_t earlier, bool is_same, const Chunks& chunks, const ReformerRounds& r,
                const PatternSpec& spec, const std::vector<int32_t>& numbers) {
  Coordinates c{.lo = std::vector<int32_t>(spec.Nq, INT32_MAX),
                .hi = std::vector<int32_t>(spec.Nq, kNowhere),
                .x = {}};
  for (int64_t s = 0; s < spec.Nq; ++s) {
    if (spec.query_rows[s] < 0) continue;
    const int64_t own = chunks.OwnChunk(earlier, spec.query_rows[s]);
    c.lo[s] = static_cast<int32_t>(own - r.before);
    c.hi[s] = static_cast<int32_t>(own + r.after);
  }
  // The v-th number of every key slot; few have a second one.
  std::vector<std::vector<int32_t>> places;
  for (int64_t t = 0; t < spec.Nk; ++t) {
    if (spec.key_rows[t] < 0) continue;
    const auto of_row =
        chunks.NumbersOf(earlier, spec.key_rows[t], is_same ? numbers[t] : INT32_MAX);
    for (size_t v = 0; v < of_row.size(); ++v) {
      if (places.size() == v) places.emplace_back(spec.Nk, kNowhere);
      places[v][t] = of_row[v];
    }
  }
  Visible shown;
  for (std::vector<int32_t>& place : places) {
    Visible more = Within({.lo = c.lo, .hi = c.hi, .x = std::move(place)});
    shown = shown == nullptr ? more : Or(shown, more);
  }
  return shown;
}

// Pairs of slots whose rows are in the same bucket in one round.
Visible SameBucket(const Chunks& chunks, int64_t round, const PatternSpec& spec) {
  const auto of = [&](const RowOrder& rows) {
    std::vector<int32_t> ids(rows.size(), -1);
    for (size_t s = 0; s < rows.size(); ++s) {
      if (rows[s] >= 0) ids[s] = chunks.Bucket(round, rows[s]);
    }
    return ids;
  };
  return SameSegment(of(spec.query_rows), of(spec.key_rows));
}

struct Round {
  ReformerRounds rounds;
  int64_t round;
};

PatternSpec SpecOf(const Round& parameters) {
  const auto& [r, round] = parameters;
  const Chunks chunks(r);
  PatternSpec spec;
  std::vector<int32_t> numbers, own_round;
  for (int64_t c = 0; c < chunks.count(); ++c) {
    chunks.AppendRows(round * chunks.count() + c, &spec.query_rows);
  }
  const int64_t end = chunks.count() == 0 ? chunks.First(round) : chunks.Last(round) + 1;
  for (int64_t number = chunks.First(round); number < end; ++number) {
    const int64_t chunk = chunks.Chunk(round, number);
    if (chunk / chunks.count() == round) {
      for (int64_t t = 0; t < r.chunk; ++t) {
        own_round.push_back(static_cast<int32_t>(spec.key_rows.size() + t));
      }
    }
    chunks.AppendRows(chunk, &spec.key_rows);
    numbers.resize(spec.key_rows.size(), static_cast<int32_t>(number));
  }
  spec.Nq = static_cast<int64_t>(spec.query_rows.size());
  spec.Nk = static_cast<int64_t>(spec.key_rows.size());
  // Key chunk 0 of this list is the one `before` the first.
  const int64_t before = r.before * r.chunk;
  spec.visible =
      Windows({.block = r.chunk, .before = before, .after = r.after * r.chunk, .offset = before});
  spec.visible = AndNot(spec.visible, SameSegment(spec.query_rows, spec.key_rows));
  if (r.causal) spec.visible = And(spec.visible, NotAfter(spec.query_rows, spec.key_rows, 0));
  if (!r.across) {
    spec.visible = And(spec.visible, And(Keys(own_round), SameBucket(chunks, round, spec)));
  }
  for (int64_t earlier = 0; r.unique && earlier <= round; ++earlier) {
    Visible shown = ShownBy(earlier, earlier == round, chunks, r, spec, numbers);
    if (shown == nullptr) continue;
    if (!r.across) shown = And(shown, SameBucket(chunks, earlier, spec));
    spec.visible = AndNot(spec.visible, shown);
  }
  return spec;
}

}  // namespace

PatternSource ReformerRound(int64_t N, ReformerRounds rounds, int64_t round) {
  const double span = static_cast<double>((1 + rounds.before + rounds.after) * rounds.chunk);
  PatternCounts counts{.pairs = static_cast<double>(rounds.n) * span};
  if (rounds.causal) counts.pairs /= 2;
  counts.tiles = static_cast<double>(Tiles(rounds.n)) * (span / kTile + 1);
  PatternSource source =
      SourceOf(N, N, "reformer", Round{std::move(rounds), round}, counts, SpecOf);
  source.gathers = true;
  source.is_counted = false;
  return source;
}

}  // namespace attnd
