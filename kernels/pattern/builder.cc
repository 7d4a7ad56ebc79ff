#include "kernels/pattern/builder.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <unordered_map>

#include "kernels/core/run_control.h"
#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/transpose.h"

namespace attnd {
namespace {

constexpr int32_t kHidden = -3;  // no tile

// Four independent chains: a multiplication depends only on the one before in its own chain.
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

// The stored mask or terms of a shape.
using Known = std::unordered_map<TileShape, int32_t, ShapeHash>;

}  // namespace

// Distinct values in the order of insertion.
template <class Value>
struct PatternBuilder::Interned {
  std::vector<Value> values;
  std::unordered_multimap<uint64_t, int32_t> places;  // hash -> index in `values`
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

PatternBuilder::PatternBuilder(int64_t Nq, int64_t Nk, const StoredLimits& limits)
    : Nq_(Nq),
      Nk_(Nk),
      limits_(limits),
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
  const Run run{static_cast<int32_t>(first_key_tile), static_cast<int32_t>(count), mask, terms};
  if (!entries_.empty() && entries_.back().q_tile == q_tile &&
      Continues(entries_.back().run, run)) {
    entries_.back().run.count += run.count;
  } else {
    entries_.push_back({q_tile, run});
  }
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

// A mask costs as much as so many looks at tiles: it is computed before it is known to be new.
constexpr int64_t kLooksOfTry = 8;

// The row of tiles that is being added, and how much of the limits it has used.
struct PatternBuilder::RowWalk {
  int64_t q_tile = 0;
  int64_t end = 0;         // of its last span
  size_t first_entry = 0;  // of the row
  int64_t masks = 0, tries = 0, looks = 0;
  bool is_over = false;  // the rest of the row is one run
};

void PatternBuilder::Add(Visible visible, ConstantsPtr constants) {
  assert(visible_ == nullptr && entries_.empty());
  visible_ = std::move(visible);
  constants_ = std::move(constants);
  std::vector<TileSpan> spans;
  for (int64_t q_tile = 0; q_tile < Tiles(Nq_); ++q_tile) {
    if (CheckPoint()) return;
    spans.clear();
    visible_->Spans(q_tile, 0, Tiles(Nk_), &spans);
    if (spans.empty()) continue;
    RowWalk walk{.q_tile = q_tile, .end = spans.back().last, .first_entry = entries_.size()};
    for (const TileSpan& span : spans) {
      if (!walk.is_over) AddSpan(span, &walk);
    }
  }
}

void PatternBuilder::AddSpan(const TileSpan& span, RowWalk* walk) {
  const int64_t q_tile = walk->q_tile;
  const int32_t computed_terms = constants_ == nullptr ? Run::kNoTerms : Run::kComputed;
  const auto is_full_up = [&] {
    return static_cast<int64_t>(entries_.size() - walk->first_entry) >= limits_.runs;
  };
  const auto compute_rest = [&](int64_t from) {
    walk->is_over = true;
    Add(q_tile, from, walk->end - from, Run::kComputed, computed_terms);
  };
  if (is_full_up()) return compute_rest(span.first);
  if (span.full && constants_ == nullptr) {
    return AddFull(q_tile, span.first, span.last - span.first);
  }
  for (int64_t tile = span.first; tile < span.last; ++tile) {
    if (is_full_up()) return compute_rest(tile);
    const int32_t mask = span.full ? Run::kFull : MaskOf(tile, walk);
    if (mask == Run::kComputed || walk->looks++ >= limits_.looks) {
      return Add(q_tile, tile, span.last - tile, span.full ? Run::kFull : Run::kComputed,
                 computed_terms);
    }
    if (mask != kHidden) Add(q_tile, tile, 1, mask, TermsOf(q_tile, tile));
  }
}

// Run::kComputed if the limits are reached and the mask is not stored.
int32_t PatternBuilder::MaskOf(int64_t key_tile, RowWalk* walk) {
  const int64_t q_tile = walk->q_tile;
  const auto find = [&] {
    TileMask mask;
    mask.fill(~uint64_t{0});
    visible_->Keep(q_tile, key_tile, &mask);
    return Intern(q_tile, key_tile, mask);
  };
  // A tile that Nq or Nk cuts has a mask of its own.
  const bool is_cut = QueriesOf(q_tile) < kTile || KeysOf(key_tile) < kTile;
  const TileShape shape = is_cut ? TileShape{} : visible_->Shape(q_tile, key_tile);
  if (shape.size > 0) {
    const auto known = masks_->known.find(shape);
    if (known != masks_->known.end()) return known->second;
    if (static_cast<int64_t>(masks_->known.size()) < limits_.shapes) {
      return masks_->known[shape] = find();
    }
  }
  if (walk->masks >= limits_.masks || walk->tries++ >= limits_.looks / kLooksOfTry) {
    return Run::kComputed;
  }
  const size_t before = masks_->values.size();
  const int32_t mask = find();
  walk->masks += masks_->values.size() > before;
  return mask;
}

int32_t PatternBuilder::TermsOf(int64_t q_tile, int64_t key_tile) {
  if (constants_ == nullptr) return Run::kNoTerms;
  const bool is_full_up = static_cast<int64_t>(terms_->values.size()) >= limits_.terms;
  const auto find = [&] {
    TileTerms terms;
    constants_->Fill(q_tile, key_tile, &terms);
    return AddTerms(std::move(terms));
  };
  const TileShape shape = constants_->Shape(q_tile, key_tile);
  if (shape.size == 0) return is_full_up ? Run::kComputed : find();
  const auto known = terms_->known.find(shape);
  if (known != terms_->known.end()) return known->second;
  return is_full_up ? Run::kComputed : terms_->known[shape] = find();
}

Pattern PatternBuilder::Build() && {
  if (CheckPoint()) entries_.clear();
  Pattern pattern{.Nq = Nq_, .Nk = Nk_};
  std::vector<int64_t> mask_pairs;
  mask_pairs.reserve(masks_->values.size());
  for (const TileMask& mask : masks_->values) mask_pairs.push_back(PairsOf(mask, kTile, kTile));
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
      if (run.mask == Run::kFull) {
        pattern.visible_pairs +=
            QueriesOf(q_tile) * (std::min(end * kTile, Nk_) - run.first * kTile);
      } else if (run.mask == Run::kComputed) {
        pattern.counts_pairs = false;
      } else {
        pattern.visible_pairs += mask_pairs[run.mask] * run.count;
      }
      if (run.is_computed()) {
        pattern.computed_masks = visible_;
        pattern.computed_terms = constants_;
      }
      AppendRun(run, rows.begin.back(), &rows.runs);
    }
    rows.begin.push_back(static_cast<int64_t>(rows.runs.size()));
  }
  entries_ = {};
  rows.runs.shrink_to_fit();
  Transpose(&pattern);
  pattern.masks = std::move(masks_->values);
  pattern.masks.shrink_to_fit();
  pattern.terms = std::move(terms_->values);
  return pattern;
}

// If neighbouring rows differ much, key tiles would have more runs than the limits allow: each key
// tile becomes one computed run.
void PatternBuilder::Transpose(Pattern* pattern) const {
  const int64_t rows = Tiles(Nq_), columns = Tiles(Nk_);
  const int64_t most = visible_ == nullptr ? INT64_MAX : 2 * limits_.runs * (rows + columns);
  pattern->by_key = Transposed(pattern->by_query, columns, most);
  if (!pattern->by_key.begin.empty()) return;
  const Run whole{0, static_cast<int32_t>(rows), Run::kComputed,
                  constants_ == nullptr ? Run::kNoTerms : Run::kComputed};
  for (int64_t tile = 0; tile <= columns; ++tile) pattern->by_key.begin.push_back(tile);
  pattern->by_key.runs.assign(columns, whole);
  pattern->computed_masks = visible_;
  pattern->computed_terms = constants_;
}

}  // namespace attnd
