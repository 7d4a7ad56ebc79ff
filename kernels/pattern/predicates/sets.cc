// Predicates by membership: sets of keys, sets of queries, blocks.
#include "kernels/pattern/predicates/sets.h"

#include <algorithm>
#include <cassert>

#include "kernels/core/run_control.h"
#include "kernels/pattern/base/tiles.h"

namespace attnd {
namespace {

// Bit s of word t: slot 64 t + s is in the set. Tiles beyond the last word hold none.
class SlotSet {
 public:
  explicit SlotSet(std::span<const int32_t> slots) {
    int32_t largest = -1;
    for (const int32_t slot : slots) largest = std::max(largest, slot);
    words_.resize(Tiles(int64_t{largest} + 1));
    for (const int32_t slot : slots) {
      if (slot >= 0) words_[slot / kTile] |= uint64_t{1} << slot % kTile;
    }
    for (size_t t = 0; t < words_.size(); ++t) {
      const auto tile = static_cast<int64_t>(t);
      if (words_[t] != 0) Emit(tile, tile + 1, words_[t] == ~uint64_t{0}, &spans_);
    }
  }
  uint64_t operator[](int64_t tile) const {
    return tile < static_cast<int64_t>(words_.size()) ? words_[tile] : 0;
  }
  const std::vector<uint64_t>& words() const { return words_; }
  int64_t bytes() const {
    return static_cast<int64_t>(words_.capacity() * sizeof(uint64_t) +
                                spans_.capacity() * sizeof(TileSpan));
  }
  // The tiles that hold a slot of the set, in order.
  const std::vector<TileSpan>& spans() const { return spans_; }

 private:
  std::vector<uint64_t> words_;
  std::vector<TileSpan> spans_;
};

class KeysOf : public Predicate {
 public:
  explicit KeysOf(std::span<const int32_t> slots) : set_(slots) {}
  std::string key() const override { return KeyOf("keys", set_.words()); }

  void Spans(int64_t, int64_t first, int64_t last, std::vector<TileSpan>* spans) const override {
    auto span = std::partition_point(set_.spans().begin(), set_.spans().end(),
                                     [&](const TileSpan& s) { return s.last <= first; });
    for (; span != set_.spans().end() && span->first < last; ++span) {
      Emit(std::max(span->first, first), std::min(span->last, last), span->full, spans);
    }
  }
  void Keep(int64_t, int64_t key_tile, TileMask* mask) const override {
    const uint64_t word = set_[key_tile];
    for (int64_t k = 0; k < kTile; ++k) (*mask)[k] &= -(word >> k & 1);
  }
  TileShape Shape(int64_t, int64_t key_tile) const override {
    return {1, {static_cast<int64_t>(set_[key_tile])}};
  }
  int64_t bytes() const override { return set_.bytes(); }

 private:
  const SlotSet set_;
};

class QueriesOf : public Predicate {
 public:
  explicit QueriesOf(std::span<const int32_t> slots) : set_(slots) {}
  std::string key() const override { return KeyOf("queries", set_.words()); }

  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    const uint64_t word = set_[q_tile];
    if (word != 0) Emit(first, last, word == ~uint64_t{0}, spans);
  }
  void Keep(int64_t q_tile, int64_t, TileMask* mask) const override {
    for (uint64_t& queries : *mask) queries &= set_[q_tile];
  }
  TileShape Shape(int64_t q_tile, int64_t) const override {
    return {1, {static_cast<int64_t>(set_[q_tile])}};
  }
  int64_t bytes() const override { return set_.bytes(); }

 private:
  const SlotSet set_;
};

class BlocksOf : public Predicate {
 public:
  explicit BlocksOf(BlockRowsPtr rows) : shared_(std::move(rows)), r_(*shared_) {
    assert(r_.bq >= 1 && r_.bk >= 1 && !r_.begin.empty());
  }
  std::string key() const override { return KeyOf("blocks", r_); }
  int64_t bytes() const override { return r_.bytes(); }

  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    const auto [top, bottom] = RowsOf(q_tile);
    std::vector<TileSpan> of_rows;
    for (int64_t t = top; t < bottom; ++t) {
      AppendRow(t, first, last, /*is_whole=*/CoversTile(t, q_tile), &of_rows);
    }
    if (bottom - top <= 1) {
      for (const TileSpan& s : of_rows) Emit(s.first, s.last, s.full, spans);
      return;
    }
    // Several rows of blocks meet the tile: maybe not all of them see a block.
    std::sort(of_rows.begin(), of_rows.end(),
              [](const TileSpan& x, const TileSpan& y) { return x.first < y.first; });
    int64_t at = first;
    for (const TileSpan& s : of_rows) {
      Emit(std::max(at, s.first), s.last, /*full=*/false, spans);
      at = std::max(at, s.last);
    }
  }

  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    TileMask seen{};
    const auto [top, bottom] = RowsOf(q_tile);
    for (int64_t t = top; t < bottom; ++t) {
      const int64_t query = r_.offset_q + t * r_.bq - q_tile * kTile;
      const uint64_t queries = BitsBetween(query, query + r_.bq);
      for (auto run = FirstRun(t, key_tile * kTile); run != RowEnd(t); ++run) {
        const int64_t key = r_.offset_k + run->first * r_.bk - key_tile * kTile;
        if (key >= kTile) break;
        const int64_t end = std::min(key + run->count * r_.bk, kTile);
        for (int64_t k = std::max<int64_t>(key, 0); k < end; ++k) seen[k] |= queries;
      }
    }
    for (int64_t k = 0; k < kTile; ++k) (*mask)[k] &= seen[k];
  }

 private:
  using Iterator = std::vector<BlockRun>::const_iterator;

  int64_t rows() const { return static_cast<int64_t>(r_.begin.size()) - 1; }
  // The rows of blocks that meet a query tile.
  std::pair<int64_t, int64_t> RowsOf(int64_t q_tile) const {
    const int64_t first = q_tile * kTile - r_.offset_q;
    return {std::clamp<int64_t>(FloorDiv(first, r_.bq), 0, rows()),
            std::clamp<int64_t>(FloorDiv(first + kTile - 1, r_.bq) + 1, 0, rows())};
  }
  bool CoversTile(int64_t t, int64_t q_tile) const {
    const int64_t first = r_.offset_q + t * r_.bq;
    return first <= q_tile * kTile && first + r_.bq >= q_tile * kTile + kTile;
  }
  Iterator RowEnd(int64_t t) const { return r_.runs.begin() + r_.begin[t + 1]; }
  // The first run of the row that ends beyond `key`.
  Iterator FirstRun(int64_t t, int64_t key) const {
    return std::partition_point(r_.runs.begin() + r_.begin[t], RowEnd(t), [&](const BlockRun& run) {
      return r_.offset_k + (int64_t{run.first} + run.count) * r_.bk <= key;
    });
  }

  void AppendRow(int64_t t, int64_t first, int64_t last, bool is_whole,
                 std::vector<TileSpan>* row) const {
    int64_t at = first;  // tiles before it are done
    for (auto run = FirstRun(t, first * kTile); run != RowEnd(t); ++run) {
      const int64_t key = r_.offset_k + run->first * r_.bk, end_key = key + run->count * r_.bk;
      const int64_t begin = std::clamp(FloorDiv(key, kTile), at, last);
      const int64_t end = std::clamp(FloorDiv(end_key - 1, kTile) + 1, begin, last);
      const int64_t full_begin = std::clamp(FloorDiv(key + kTile - 1, kTile), begin, end);
      const int64_t full_end = std::clamp(FloorDiv(end_key, kTile), full_begin, end);
      if (begin == last) break;
      Emit(begin, full_begin, /*full=*/false, row);
      Emit(full_begin, full_end, is_whole, row);
      Emit(full_end, end, /*full=*/false, row);
      at = end;
    }
  }

  const BlockRowsPtr shared_;
  const BlockRows& r_;
};

}  // namespace

Visible Keys(std::span<const int32_t> slots) { return std::make_shared<KeysOf>(slots); }
Visible Queries(std::span<const int32_t> slots) { return std::make_shared<QueriesOf>(slots); }
Visible Blocks(BlockRowsPtr rows) { return std::make_shared<BlocksOf>(std::move(rows)); }

BlockRows BlocksOfLayout(std::span<const int32_t> layout, int64_t nbk, int64_t bq, int64_t bk) {
  BlockRows rows{.bq = bq, .bk = bk, .begin = {0}};
  const int64_t nbq = nbk == 0 ? 0 : static_cast<int64_t>(layout.size()) / nbk;
  for (int64_t t = 0; t < nbq && !CheckPoint(); ++t) {
    for (int64_t c = 0; c < nbk; ++c) {
      if (layout[t * nbk + c] != 0) rows.Append({static_cast<int32_t>(c), 1});
    }
    rows.EndRow();
  }
  return rows;
}

BlockRows BlocksOfLists(std::span<const int32_t> indptr, std::span<const int32_t> indices,
                        int64_t bq, int64_t bk) {
  BlockRows rows{.bq = bq, .bk = bk, .begin = {0}};
  std::vector<int32_t> list;
  for (size_t t = 0; t + 1 < indptr.size() && !CheckPoint(); ++t) {
    list.assign(indices.begin() + indptr[t], indices.begin() + indptr[t + 1]);
    std::sort(list.begin(), list.end());
    for (auto at = list.begin(); at != list.end();) {
      const auto end = std::upper_bound(at, list.end(), *at);
      rows.Append({*at, 1, static_cast<int32_t>(end - at)});
      at = end;
    }
    rows.EndRow();
  }
  return rows;
}

void BlockRows::Append(const BlockRun& run) {
  if (static_cast<int64_t>(runs.size()) > begin.back()) {
    BlockRun& last = runs.back();
    if (last.first + last.count == run.first && last.times == run.times) {
      last.count += run.count;
      return;
    }
  }
  runs.push_back(run);
}

}  // namespace attnd
