#include "kernels/ops/pattern.h"

#include <bit>
#include <cassert>
#include <cstring>
#include <unordered_map>

#include "kernels/core/run_control.h"
#include "kernels/ops/pattern_constants.h"
#include "kernels/ops/pattern_tiles.h"
#include "kernels/ops/pattern_transpose.h"

namespace attnd {
namespace {

constexpr int32_t kHidden = -2;  // no tile

// Four chains side by side: one multiplication waits for the last one of its own chain only.
uint64_t Hash(const uint64_t* words, size_t count) {
  uint64_t h[4] = {0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, count};
  for (size_t i = 0; i < count; ++i) {
    uint64_t& x = h[i % 4];
    x = (x ^ words[i]) * 0xD6E8FEB86659FD93;
    x ^= x >> 32;
  }
  return (h[0] * 3 ^ h[1]) * 0x9E3779B97F4A7C15 + (h[2] * 5 ^ h[3]);
}

uint64_t HashOf(const TileMask& mask) { return Hash(mask.data(), mask.size()); }

template <class T>
uint64_t HashOf(const std::vector<T>& values) {
  std::vector<uint64_t> words((values.size() * sizeof(T) + 7) / 8);
  if (!values.empty()) std::memcpy(words.data(), values.data(), values.size() * sizeof(T));
  return Hash(words.data(), words.size());
}

uint64_t HashOf(const TileTerms& terms) { return HashOf(terms.bias) * 3 + HashOf(terms.labels); }

struct ShapeHash {
  size_t operator()(const TileShape& shape) const {
    uint64_t words[TileShape::kMax];
    for (int i = 0; i < shape.size; ++i) words[i] = static_cast<uint64_t>(shape.numbers[i]);
    return Hash(words, static_cast<size_t>(shape.size));
  }
};

// What was found for a shape. Shapes that keep coming up new are not worth keeping.
using Known = std::unordered_map<TileShape, int32_t, ShapeHash>;
constexpr size_t kMaxKnown = 1 << 16;

template <class Find>
int32_t Remember(const TileShape& shape, Known* known, const Find& find) {
  if (shape.size == 0 || known->size() >= kMaxKnown) return find();
  const auto [place, is_new] = known->try_emplace(shape);
  if (is_new) place->second = find();
  return place->second;
}

}  // namespace

// Values in the order of their first coming, each once.
template <class Value>
struct PatternBuilder::Interned {
  std::vector<Value> values;
  std::unordered_multimap<uint64_t, int32_t> places;  // hash -> place
  Known known;

  int32_t Find(Value value) {
    const uint64_t hash = HashOf(value);
    const auto [begin, end] = places.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      if (values[it->second] == value) return it->second;
    }
    const auto place = static_cast<int32_t>(values.size());
    values.push_back(std::move(value));
    places.emplace(hash, place);
    return place;
  }
};

PatternBuilder::PatternBuilder(int64_t Nq, int64_t Nk)
    : Nq_(Nq),
      Nk_(Nk),
      masks_(std::make_unique<Interned<TileMask>>()),
      terms_(std::make_unique<Interned<TileTerms>>()) {
  assert(Nq >= 0 && Nk >= 0 && Tiles(Nq) < INT32_MAX && Tiles(Nk) < INT32_MAX);
}
PatternBuilder::~PatternBuilder() = default;

int64_t PatternBuilder::QueriesOf(int64_t q_tile) const {
  return std::min(kTile, Nq_ - q_tile * kTile);
}

int64_t PatternBuilder::KeysOf(int64_t key_tile) const {
  return std::min(kTile, Nk_ - key_tile * kTile);
}

void PatternBuilder::Add(int64_t q_tile, int64_t first_key_tile, int64_t count, int32_t mask,
                         int32_t terms) {
  if (count <= 0 || mask == kHidden) return;
  entries_.push_back(
      {q_tile, {static_cast<int32_t>(first_key_tile), static_cast<int32_t>(count), mask, terms}});
}

void PatternBuilder::AddFull(int64_t q_tile, int64_t first_key_tile, int64_t count, int32_t terms) {
  assert(q_tile >= 0 && q_tile < Tiles(Nq_));
  assert(first_key_tile >= 0 && first_key_tile + count <= Tiles(Nk_));
  Add(q_tile, first_key_tile, count, Run::kFull, terms);
}

void PatternBuilder::AddMasked(int64_t q_tile, int64_t key_tile, const TileMask& mask,
                               int32_t terms) {
  assert(q_tile >= 0 && q_tile < Tiles(Nq_) && key_tile >= 0 && key_tile < Tiles(Nk_));
  Add(q_tile, key_tile, 1, Intern(q_tile, key_tile, mask), terms);
}

int32_t PatternBuilder::AddTerms(TileTerms terms) {
  assert(terms.bias.empty() || terms.bias.size() == kTile * kTile);
  assert(terms.labels.empty() || terms.labels.size() == kTile * kTile);
  if (std::all_of(terms.bias.begin(), terms.bias.end(), [](float b) { return b == 0; })) {
    terms.bias.clear();
  }
  if (std::all_of(terms.labels.begin(), terms.labels.end(),
                  [](uint16_t label) { return label == TileTerms::kNoLabel; })) {
    terms.labels.clear();
  }
  if (terms.bias.empty() && terms.labels.empty()) return Run::kNoTerms;
  return terms_->Find(std::move(terms));
}

int32_t PatternBuilder::Intern(int64_t q_tile, int64_t key_tile, TileMask mask) {
  const int64_t keys = KeysOf(key_tile);
  const uint64_t queries = LowBits(QueriesOf(q_tile));
  uint64_t any = 0, all = ~uint64_t{0};
  for (int64_t k = 0; k < kTile; ++k) {
    mask[k] &= k < keys ? queries : 0;
    any |= mask[k];
    if (k < keys) all &= mask[k];
  }
  if (any == 0) return kHidden;
  return all == queries ? Run::kFull : masks_->Find(mask);
}

void PatternBuilder::Add(const Predicate& visible, const Constants* constants) {
  const auto mask_of = [&](int64_t q_tile, int64_t key_tile) {
    const auto find = [&] {
      TileMask mask;
      mask.fill(~uint64_t{0});
      visible.Keep(q_tile, key_tile, &mask);
      return Intern(q_tile, key_tile, mask);
    };
    // A tile that Nq or Nk cuts has a mask of its own.
    if (QueriesOf(q_tile) < kTile || KeysOf(key_tile) < kTile) return find();
    return Remember(visible.Shape(q_tile, key_tile), &masks_->known, find);
  };
  const auto terms_of = [&](int64_t q_tile, int64_t key_tile) {
    if (constants == nullptr) return Run::kNoTerms;
    return Remember(constants->Shape(q_tile, key_tile), &terms_->known, [&] {
      TileTerms terms;
      constants->Fill(q_tile, key_tile, &terms);
      return AddTerms(std::move(terms));
    });
  };
  masks_->known.clear();
  terms_->known.clear();
  std::vector<TileSpan> spans;
  for (int64_t q_tile = 0; q_tile < Tiles(Nq_); ++q_tile) {
    if (CheckPoint()) return;
    spans.clear();
    visible.Spans(q_tile, 0, Tiles(Nk_), &spans);
    for (const TileSpan& span : spans) {
      if (span.full && constants == nullptr) {
        AddFull(q_tile, span.first, span.last - span.first);
        continue;
      }
      for (int64_t tile = span.first; tile < span.last; ++tile) {
        if (CheckPoint()) return;
        const int32_t mask = span.full ? Run::kFull : mask_of(q_tile, tile);
        if (mask != kHidden) Add(q_tile, tile, 1, mask, terms_of(q_tile, tile));
      }
    }
  }
}

void PatternBuilder::AddBand(int64_t lo, int64_t hi) { Add(*Band(lo, hi)); }

Pattern PatternBuilder::Build() && {
  if (CheckPoint()) entries_.clear();
  Pattern pattern{.Nq = Nq_, .Nk = Nk_};
  std::vector<int64_t> mask_pairs;
  mask_pairs.reserve(masks_->values.size());
  for (const TileMask& mask : masks_->values) {
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
      AppendRun(run, rows.begin.back(), &rows.runs);
    }
    rows.begin.push_back(static_cast<int64_t>(rows.runs.size()));
  }
  entries_ = {};
  rows.runs.shrink_to_fit();
  pattern.by_key = Transposed(rows, Tiles(Nk_));
  pattern.masks = std::move(masks_->values);
  pattern.masks.shrink_to_fit();
  pattern.terms = std::move(terms_->values);
  return pattern;
}

PatternCounts CountsOf(const Pattern& pattern, const Lengths& lengths) {
  const bool is_whole = lengths.nq >= pattern.Nq && lengths.nk >= pattern.Nk;
  const bool is_ordered = !pattern.query_rows.empty() || !pattern.key_rows.empty();
  if (is_whole || is_ordered || pattern.is_listed()) {
    return {static_cast<double>(pattern.visible_pairs - pattern.listed_again),
            static_cast<double>(pattern.visible_tiles)};
  }
  const int64_t rows = Tiles(std::min(lengths.nq, pattern.Nq));
  const int64_t Nk = std::min(lengths.nk, pattern.Nk), columns = Tiles(Nk);
  PatternCounts counts;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t queries = std::min(kTile, std::min(lengths.nq, pattern.Nq) - row * kTile);
    for (int64_t r = pattern.by_query.begin[row]; r < pattern.by_query.begin[row + 1]; ++r) {
      const Run& run = pattern.by_query.runs[r];
      const int64_t end = std::min<int64_t>(run.first + run.count, columns);
      if (run.first >= end) break;
      counts.tiles += static_cast<double>(end - run.first);
      if (run.mask == Run::kFull) {
        counts.pairs +=
            static_cast<double>(queries * (std::min(end * kTile, Nk) - run.first * kTile));
        continue;
      }
      for (int64_t tile = run.first; tile < end; ++tile) {
        for (int64_t k = 0; k < std::min(kTile, Nk - tile * kTile); ++k) {
          counts.pairs += std::popcount(pattern.masks[run.mask][k] & LowBits(queries));
        }
      }
    }
  }
  return counts;
}

}  // namespace attnd
