#include "kernels/pattern/shapes/reformer.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "kernels/core/integer.h"
#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/orders.h"
#include "kernels/pattern/shapes/reformer_tile.h"

namespace attnd {
namespace {

template <class Number>
ReformerPlaces<Number> PlacesOf(const ReformerRounds& r) {
  ReformerPlaces<Number> places;
  places.chunk.resize(r.order.size());
  if (!r.across) places.bucket.assign(r.buckets.begin(), r.buckets.end());
  for (int64_t round = 0; round < r.rounds; ++round) {
    const int32_t* order = r.order.data() + round * r.n;
    Number* chunk = places.chunk.data() + round * r.n;
    int64_t number = 0, end = r.chunk;
    for (int64_t s = 0; s < r.n; ++s) {
      if (s == end) ++number, end += r.chunk;
      chunk[order[s]] = static_cast<Number>(number);
    }
  }
  return places;
}

bool FitsNarrow(const ReformerRounds& r) {
  constexpr int64_t kMost = std::numeric_limits<uint16_t>::max();
  return r.n <= kMost && 2 * r.Chunks() + r.ChunksOfRound() <= kMost;
}

template <class Number>
void AddSelfSlots(const ReformerRounds& r, const std::vector<Number>& chunk_of,
                  std::vector<int32_t>* slots) {
  const int64_t C = r.ChunksOfRound();
  for (int64_t round = 0; round < r.rounds; ++round) {
    for (int64_t row = 0; row < r.n; ++row) {
      const int64_t c = chunk_of[round * r.n + row];
      if (r.lo <= 0 && r.hi >= 0 && c + r.lo >= 0 && c + r.hi < C) {
        ++(*slots)[row];
        continue;
      }
      ForEachRange(r, round, c, [&](int64_t, const ChunkRange& range) {
        if (!r.across && range.round != round) return;
        const int64_t own = chunk_of[range.round * r.n + row];
        (*slots)[row] += own >= range.first && own <= range.last;
      });
    }
  }
}

struct Round {
  ReformerHeadPtr head;
  int64_t round = 0;
};

class ReformerTiles : public Predicate {
 public:
  ReformerTiles(ReformerHeadPtr head, int64_t round) : head_(std::move(head)), round_(round) {}
  std::string key() const override { return KeyOf("reformer", Round{head_, round_}); }

  // Every chunk of queries sees a stretch of chunks that begins at its own place in the list.
  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    const ReformerRounds& r = head_->rounds();
    const int64_t begin = q_tile * kTile / r.chunk;
    const int64_t end = std::min((q_tile * kTile + kTile - 1) / r.chunk, head_->chunks() - 1);
    if (begin > end) return;
    const int64_t keys = (end + r.hi - r.lo + 1) * r.chunk;
    Emit(std::max(first, begin * r.chunk / kTile), std::min(last, Tiles(keys)), /*full=*/false,
         spans);
  }
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    KeepReformerTile(*head_, round_, q_tile, key_tile, mask);
  }
  int64_t bytes() const override { return head_->bytes() / head_->rounds().rounds + 128; }

 private:
  const ReformerHeadPtr head_;
  const int64_t round_;
};

void Append(const ReformerRounds& r, const ChunkRange& chunks, RowOrder* rows) {
  const int32_t* order = r.order.data() + chunks.round * r.n;
  const int64_t first = chunks.first * r.chunk, last = (chunks.last + 1) * r.chunk;
  rows->insert(rows->end(), order + first, order + std::min(last, r.n));
  rows->resize(rows->size() + std::max<int64_t>(last - r.n, 0), -1);
}

// Calls f(segment, chunks) for the chunks that a round sees, in the order of the slots of its keys:
// those that chunk 0 sees, then one more for each of the others.
template <class F>
void ForEachSeen(const ReformerRounds& r, int64_t round, const F& f) {
  const int64_t C = r.ChunksOfRound();
  if (C == 0) return;
  ReformerRounds all{.rounds = r.rounds, .n = r.n, .chunk = r.chunk, .lo = r.lo, .flat = r.flat};
  all.hi = r.hi + C - 1;
  ForEachRange(all, round, 0, f);
}

PatternSpec SpecOf(const Round& parameters) {
  const ReformerRounds& r = parameters.head->rounds();
  const int64_t C = parameters.head->chunks();
  PatternSpec spec;
  if (C == 0) return spec;
  Append(r, {parameters.round, 0, C - 1}, &spec.query_rows);
  for (int32_t& row : spec.query_rows) row = row < r.queries ? row : -1;
  spec.key_rows.reserve((C + r.hi - r.lo) * r.chunk);
  int64_t far_row = r.far_row + parameters.round * r.FarSlots();
  ForEachSeen(r, parameters.round, [&](int64_t segment, const ChunkRange& chunks) {
    const size_t first = spec.key_rows.size();
    Append(r, chunks, &spec.key_rows);
    if (segment == 0 || r.far_row < 0) return;
    for (size_t s = first; s < spec.key_rows.size(); ++s, ++far_row) {
      if (spec.key_rows[s] >= 0) spec.key_rows[s] = static_cast<int32_t>(far_row);
    }
  });
  spec.Nq = static_cast<int64_t>(spec.query_rows.size());
  spec.Nk = static_cast<int64_t>(spec.key_rows.size());
  spec.visible = std::make_shared<ReformerTiles>(parameters.head, parameters.round);
  spec.stores_masks = false;
  return spec;
}

// Of a tile, the mean over all rounds. A round hides what earlier ones show, until nothing is left:
// the more chunks each shows, the sooner.
double MaskSeconds(const ReformerRounds& r) {
  constexpr double kOwnSeconds = 0.7e-6, kNearSeconds = 0.4e-6, kComparedSeconds = 1e-6;
  constexpr double kChunkSeconds = 0.15e-6;  // of a chunk of queries, whose later keys are hidden
  const double width = static_cast<double>(r.hi - r.lo + 1);
  const double shown = std::min(width / static_cast<double>(r.ChunksOfRound()), 1.0);
  const double earlier = static_cast<double>(r.rounds - 1) / 2;
  const double rounds = r.across ? std::min(earlier, 8 / shown) : earlier;
  const double each = width < 64 ? kNearSeconds : kComparedSeconds;
  const auto chunks = static_cast<double>(r.causal ? CeilDiv(kTile, r.chunk) : 0);
  return kOwnSeconds + chunks * kChunkSeconds + (r.unique ? rounds * each : 0);
}

// What is known without the order.
PatternSource Described(int64_t N, const ReformerRounds& r) {
  const int64_t C = r.ChunksOfRound(), width = (r.hi - r.lo + 1) * r.chunk;
  // A tile of queries may lie in several chunks.
  const int64_t more = r.chunk % kTile == 0 ? 0 : std::min(r.chunk + kTile, 2 * kTile - 1);
  const double seen = static_cast<double>(std::min(width, Tiles(r.n) * kTile));
  PatternCounts counts{.runs_of_row = 3, .masks = 0, .slot_bytes = 16};
  counts.pairs = static_cast<double>(r.n) * (r.causal ? seen / 2 : seen);
  counts.tiles = static_cast<double>(Tiles(C * r.chunk) * Tiles(width + more));
  const int64_t Nq = C * r.chunk, Nk = C == 0 ? 0 : Nq + width - r.chunk;
  PatternSource source{.Nq = N, .Nk = N, .visible_pairs = counts.pairs};
  source.visible_tiles = counts.tiles;
  source.is_counted = source.knows_pairs = false;
  source.gathers = true;
  source.host = CostOf(Nq, Nk, counts);
  constexpr double kPatternSeconds = 7e-6, kSlotSeconds = 3e-9, kTileSeconds = 1e-7;
  source.host.seconds = kPatternSeconds + kSlotSeconds * static_cast<double>(Nq + Nk) +
                        kTileSeconds * static_cast<double>(Tiles(Nq) + Tiles(Nk));
  source.mask_seconds = counts.tiles * MaskSeconds(r);
  return source;
}

}  // namespace

int64_t ReformerRounds::FarSlots() const {
  const int64_t C = ChunksOfRound(), seen = C == 0 ? 0 : C + hi - lo;
  const int64_t before = std::clamp<int64_t>(-lo, 0, seen),
                behind = std::clamp<int64_t>(hi, 0, seen);
  return (before + behind) * chunk;
}

ReformerHead::ReformerHead(ReformerRounds rounds)
    : rounds_(std::move(rounds)),
      key_(KeyOf("rounds", rounds_)),
      chunks_(rounds_.ChunksOfRound()),
      is_narrow_(FitsNarrow(rounds_)) {
  assert(rounds_.hi - rounds_.lo < std::max<int64_t>(rounds_.Chunks(), 1));
  if (is_narrow_) {
    narrow_ = PlacesOf<uint16_t>(rounds_);
  } else {
    wide_ = PlacesOf<uint32_t>(rounds_);
  }
}

int64_t ReformerHead::bytes() const {
  const size_t numbers = rounds_.order.size() * (rounds_.across ? 1 : 2);
  return static_cast<int64_t>(
      sizeof(*this) + (rounds_.order.capacity() + rounds_.buckets.capacity()) * sizeof(int32_t) +
      numbers * (is_narrow_ ? sizeof(uint16_t) : sizeof(uint32_t)));
}

std::vector<int32_t> ReformerHead::FarRows() const {
  std::vector<int32_t> rows;
  rows.reserve(static_cast<size_t>(rounds_.rounds * rounds_.FarSlots()));
  for (int64_t round = 0; round < rounds_.rounds; ++round) {
    ForEachSeen(rounds_, round, [&](int64_t segment, const ChunkRange& chunks) {
      if (segment != 0) Append(rounds_, chunks, &rows);
    });
  }
  return rows;
}

std::vector<int32_t> ReformerHead::SelfSlots() const {
  std::vector<int32_t> slots(static_cast<size_t>(rounds_.n), 0);
  if (is_narrow_) {
    AddSelfSlots(rounds_, narrow_.chunk, &slots);
  } else {
    AddSelfSlots(rounds_, wide_.chunk, &slots);
  }
  return slots;
}

PatternSource ReformerRound(int64_t N, ReformerHeadPtr head, int64_t round) {
  const PatternSource described = Described(N, head->rounds());
  PatternSource source = SourceOf(N, N, "reformer", Round{std::move(head), round}, {}, SpecOf);
  source.visible_pairs = described.visible_pairs;
  source.visible_tiles = described.visible_tiles;
  source.is_counted = described.is_counted;
  source.knows_pairs = described.knows_pairs;
  source.gathers = described.gathers;
  source.mask_seconds = described.mask_seconds;
  source.host = described.host;
  return source;
}

PatternSource PlannedReformerRound(int64_t N, const ReformerRounds& rounds) {
  return Described(N, rounds);
}

}  // namespace attnd
