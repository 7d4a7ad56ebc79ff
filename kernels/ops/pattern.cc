#include "kernels/ops/pattern.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <span>

namespace attnd {
namespace {

int64_t Tiles(int64_t n) { return (n + kTile - 1) / kTile; }

// The lowest `n` bits, n in [0, 64].
uint64_t LowBits(int64_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

uint64_t Hash(const TileMask& mask) {
  uint64_t h = 0x9E3779B97F4A7C15;
  for (uint64_t word : mask) {
    h = (h ^ word) * 0xBF58476D1CE4E5B9;
    h ^= h >> 29;
  }
  return h;
}

// Appends to the row that starts at `begin`; side by side with an equal mask, runs become one.
void Append(const Run& run, int64_t begin, std::vector<Run>* runs) {
  if (static_cast<int64_t>(runs->size()) > begin) {
    Run& last = runs->back();
    if (last.mask == run.mask && last.first + last.count == run.first) {
      last.count += run.count;
      return;
    }
  }
  runs->push_back(run);
}

constexpr int32_t kHidden = -2;  // no tile: what a key tile is in before its run opens

// Calls change(key_tile, mask) for every tile whose mask in `now` is not the one in `before`
// (kHidden where a list has no tile). Cost: both lists plus the changes.
template <class Change>
void Differences(std::span<const Run> before, std::span<const Run> now, const Change& change) {
  size_t b = 0, n = 0;
  int32_t at = 0;
  // The mask at `at`, and where it may change next.
  const auto look = [&at](std::span<const Run> runs, size_t* i, int32_t* until) {
    while (*i < runs.size() && runs[*i].first + runs[*i].count <= at) ++*i;
    if (*i == runs.size()) return kHidden;
    const Run& run = runs[*i];
    *until = std::min(*until, run.first <= at ? run.first + run.count : run.first);
    return run.first <= at ? run.mask : kHidden;
  };
  for (;;) {
    int32_t until = INT32_MAX;
    const int32_t mask_before = look(before, &b, &until);
    const int32_t mask_now = look(now, &n, &until);
    if (until == INT32_MAX) return;
    if (mask_before != mask_now) {
      for (int32_t tile = at; tile < until; ++tile) change(tile, mask_now);
    }
    at = until;
  }
}

// Runs of query tiles for each key tile, in time proportional to the runs of both directions: a run
// of the result opens and closes where consecutive rows differ.
TileRows Transpose(const TileRows& by_query, int64_t key_tiles) {
  struct Open {
    int32_t first = 0, mask = kHidden;
  };
  std::vector<Open> open(key_tiles);
  std::vector<std::pair<int32_t, Run>> closed;  // (key tile, run), ascending by the run's end
  const auto row_runs = [&by_query](int64_t row) -> std::span<const Run> {
    if (row < 0 || row >= by_query.rows()) return {};
    const int64_t begin = by_query.begin[row];
    return {by_query.runs.data() + begin, static_cast<size_t>(by_query.begin[row + 1] - begin)};
  };
  for (int64_t row = 0; row <= by_query.rows(); ++row) {
    const auto at = static_cast<int32_t>(row);
    Differences(row_runs(row - 1), row_runs(row), [&](int32_t tile, int32_t mask) {
      Open& o = open[tile];
      if (o.mask != kHidden) closed.push_back({tile, {o.first, at - o.first, o.mask}});
      o = {at, mask};
    });
  }
  TileRows by_key;
  by_key.begin.assign(key_tiles + 1, 0);
  for (const auto& [tile, run] : closed) ++by_key.begin[tile + 1];
  for (int64_t t = 0; t < key_tiles; ++t) by_key.begin[t + 1] += by_key.begin[t];
  by_key.runs.resize(closed.size());
  std::vector<int64_t> next(by_key.begin.begin(), by_key.begin.end() - 1);
  for (const auto& [tile, run] : closed) by_key.runs[next[tile]++] = run;
  return by_key;
}

}  // namespace

PatternBuilder::PatternBuilder(int64_t Nq, int64_t Nk) : Nq_(Nq), Nk_(Nk) {
  assert(Nq >= 0 && Nk >= 0 && Tiles(Nq) < INT32_MAX && Tiles(Nk) < INT32_MAX);
}

int64_t PatternBuilder::QueriesOf(int64_t q_tile) const {
  return std::min(kTile, Nq_ - q_tile * kTile);
}

int64_t PatternBuilder::KeysOf(int64_t key_tile) const {
  return std::min(kTile, Nk_ - key_tile * kTile);
}

void PatternBuilder::Add(int64_t q_tile, int64_t first_key_tile, int64_t count, int32_t mask) {
  if (count <= 0 || mask == kHidden) return;
  const Run run = {static_cast<int32_t>(first_key_tile), static_cast<int32_t>(count), mask};
  entries_.push_back({q_tile, run});
}

void PatternBuilder::AddFull(int64_t q_tile, int64_t first_key_tile, int64_t count) {
  assert(q_tile >= 0 && q_tile < Tiles(Nq_));
  assert(first_key_tile >= 0 && first_key_tile + count <= Tiles(Nk_));
  Add(q_tile, first_key_tile, count, Run::kFull);
}

void PatternBuilder::AddMasked(int64_t q_tile, int64_t key_tile, const TileMask& mask) {
  assert(q_tile >= 0 && q_tile < Tiles(Nq_) && key_tile >= 0 && key_tile < Tiles(Nk_));
  const int64_t keys = KeysOf(key_tile);
  const uint64_t queries = LowBits(QueriesOf(q_tile));
  TileMask clipped{};
  for (int64_t k = 0; k < keys; ++k) clipped[k] = mask[k] & queries;
  Add(q_tile, key_tile, 1, Intern(q_tile, key_tile, clipped));
}

int32_t PatternBuilder::Intern(int64_t q_tile, int64_t key_tile, const TileMask& mask) {
  uint64_t any = 0, all = ~uint64_t{0};
  for (int64_t k = 0; k < KeysOf(key_tile); ++k) {
    any |= mask[k];
    all &= mask[k];
  }
  if (any == 0) return kHidden;
  if (all == LowBits(QueriesOf(q_tile))) return Run::kFull;
  const uint64_t hash = Hash(mask);
  const auto [begin, end] = mask_index_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (masks_[it->second] == mask) return it->second;
  }
  const auto id = static_cast<int32_t>(masks_.size());
  masks_.push_back(mask);
  mask_index_.emplace(hash, id);
  return id;
}

template <class AddTile>
void PatternBuilder::AddRow(int64_t q_tile, const Interval& first, const Interval& last,
                            const AddTile& add_masked) {
  const int64_t first_key = std::max<int64_t>(first.lo, 0);
  const int64_t last_key = std::min(last.hi, Nk_ - 1);
  if (first_key > last_key) return;
  // Every query of the row sees the keys [lo of the last, hi of the first]: full tiles lie inside.
  const int64_t all_to = std::min(first.hi, Nk_ - 1);
  const int64_t full_begin = std::max(first_key / kTile, Tiles(std::max<int64_t>(last.lo, 0)));
  const int64_t full_end = all_to < 0 ? 0 : all_to == Nk_ - 1 ? Tiles(Nk_) : (all_to + 1) / kTile;
  for (int64_t tile = first_key / kTile; tile <= last_key / kTile; ++tile) {
    if (tile == full_begin && tile < full_end) {
      Add(q_tile, tile, full_end - tile, Run::kFull);
      tile = full_end - 1;
    } else {
      add_masked(tile);
    }
  }
}

void PatternBuilder::AddBand(int64_t lo, int64_t hi) {
  // No limit, in numbers that can be added to positions.
  constexpr int64_t kFar = int64_t{1} << 40;
  lo = lo == kUnbounded ? -kFar : std::clamp(lo, -kFar, kFar);
  hi = hi == kUnbounded ? kFar : std::clamp(hi, -kFar, kFar);
  if (lo > hi) return;
  // Whole tiles at one distance from the diagonal have one mask.
  std::unordered_map<int64_t, int32_t> whole;
  for (int64_t q_tile = 0; q_tile < Tiles(Nq_); ++q_tile) {
    const int64_t i = q_tile * kTile, queries = QueriesOf(q_tile);
    const auto build = [&](int64_t tile) {
      TileMask mask{};
      for (int64_t k = 0; k < KeysOf(tile); ++k) {
        // lo <= j - (i + q) <= hi: the queries [j - i - hi, j - i - lo] of the tile.
        const int64_t distance = tile * kTile + k - i;
        const int64_t from = std::clamp<int64_t>(distance - hi, 0, queries);
        const int64_t to = std::clamp<int64_t>(distance - lo + 1, from, queries);
        mask[k] = LowBits(to) & ~LowBits(from);
      }
      return Intern(q_tile, tile, mask);
    };
    AddRow(q_tile, {i + lo, i + hi}, {i + queries - 1 + lo, i + queries - 1 + hi},
           [&](int64_t tile) {
             if (queries < kTile || KeysOf(tile) < kTile) {
               Add(q_tile, tile, 1, build(tile));
               return;
             }
             const auto [known, is_new] = whole.try_emplace(tile - q_tile);
             if (is_new) known->second = build(tile);
             Add(q_tile, tile, 1, known->second);
           });
  }
}

void PatternBuilder::AddIntervals(const std::function<int64_t(int64_t)>& lo,
                                  const std::function<int64_t(int64_t)>& hi) {
  std::array<int64_t, kTile> from{}, to{};
  for (int64_t q_tile = 0; q_tile < Tiles(Nq_); ++q_tile) {
    const int64_t queries = QueriesOf(q_tile);
    for (int64_t q = 0; q < queries; ++q) {
      from[q] = lo(q_tile * kTile + q);
      to[q] = hi(q_tile * kTile + q);
      assert(q == 0 || (from[q - 1] <= from[q] && to[q - 1] <= to[q]));
    }
    AddRow(q_tile, {from[0], to[0]}, {from[queries - 1], to[queries - 1]}, [&](int64_t tile) {
      // Neither bound decreases, so key j is seen by the queries [ended, started).
      TileMask mask{};
      int64_t started = 0, ended = 0;
      for (int64_t k = 0; k < KeysOf(tile); ++k) {
        const int64_t j = tile * kTile + k;
        while (started < queries && from[started] <= j) ++started;
        while (ended < queries && to[ended] < j) ++ended;
        if (ended < started) mask[k] = LowBits(started) & ~LowBits(ended);
      }
      Add(q_tile, tile, 1, Intern(q_tile, tile, mask));
    });
  }
}

Pattern PatternBuilder::Build() && {
  Pattern pattern{.Nq = Nq_, .Nk = Nk_};
  std::vector<int64_t> mask_pairs;
  mask_pairs.reserve(masks_.size());
  for (const TileMask& mask : masks_) {
    int64_t bits = 0;
    for (uint64_t word : mask) bits += std::popcount(word);
    mask_pairs.push_back(bits);
  }
  const auto before = [](const Entry& a, const Entry& b) {
    return std::pair(a.q_tile, a.run.first) < std::pair(b.q_tile, b.run.first);
  };
  if (!std::is_sorted(entries_.begin(), entries_.end(), before)) {
    std::sort(entries_.begin(), entries_.end(), before);
  }
  TileRows& rows = pattern.by_query;
  rows.begin.reserve(Tiles(Nq_) + 1);
  rows.begin.push_back(0);
  rows.runs.reserve(entries_.size());
  auto entry = entries_.begin();
  for (int64_t q_tile = 0; q_tile < Tiles(Nq_); ++q_tile) {
    for (; entry != entries_.end() && entry->q_tile == q_tile; ++entry) {
      const Run& run = entry->run;
      const int64_t end = int64_t{run.first} + run.count;
      pattern.visible_tiles += run.count;
      pattern.visible_pairs +=
          run.mask == Run::kFull
              ? QueriesOf(q_tile) * (std::min(end * kTile, Nk_) - run.first * kTile)
              : mask_pairs[run.mask] * run.count;
      Append(run, rows.begin.back(), &rows.runs);
    }
    rows.begin.push_back(static_cast<int64_t>(rows.runs.size()));
  }
  pattern.by_key = Transpose(rows, Tiles(Nk_));
  pattern.masks = std::move(masks_);
  return pattern;
}

}  // namespace attnd
