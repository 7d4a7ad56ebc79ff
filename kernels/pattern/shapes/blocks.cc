#include "kernels/pattern/shapes/blocks.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/pattern/base/tiles.h"
#include "kernels/pattern/builder.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/windows.h"

namespace attnd {
namespace {

// Rows of [begin, begin + size) in [0, n).
int64_t Within(int64_t begin, int64_t size, int64_t n) {
  return std::clamp<int64_t>(begin + size, 0, n) - std::clamp<int64_t>(begin, 0, n);
}

class MultiplicitiesOf : public Constants {
 public:
  explicit MultiplicitiesOf(BlockRowsPtr blocks) : shared_(std::move(blocks)), b_(*shared_) {}

  void Fill(int64_t q_tile, int64_t key_tile, TileTerms* terms) const override {
    ForEachRepeat(q_tile, key_tile, [&](int64_t query, int64_t key, int32_t times) {
      terms->bias.resize(kTile * kTile);
      const float bias = std::log(static_cast<float>(times));
      for (int64_t k = std::max<int64_t>(key, 0); k < std::min(key + b_.bk, kTile); ++k) {
        for (int64_t q = std::max<int64_t>(query, 0); q < std::min(query + b_.bq, kTile); ++q) {
          terms->bias[k * kTile + q] = bias;
        }
      }
    });
  }
  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    // Where blocks consist of whole tiles, a tile has one number.
    const bool is_whole = b_.bq % kTile == 0 && b_.bk % kTile == 0 && b_.offset_q % kTile == 0 &&
                          b_.offset_k % kTile == 0;
    int64_t largest = 1;
    ForEachRepeat(q_tile, key_tile, [&](int64_t, int64_t, int32_t times) { largest = times; });
    return is_whole || largest == 1 ? TileShape{1, {largest}} : TileShape{};
  }
  int64_t bytes() const override { return b_.bytes(); }

 private:
  // Calls repeat(first query, first key, times) for every repeated block that meets the tile.
  template <class Repeat>
  void ForEachRepeat(int64_t q_tile, int64_t key_tile, const Repeat& repeat) const {
    const int64_t i = q_tile * kTile - b_.offset_q, j = key_tile * kTile - b_.offset_k;
    const int64_t rows = static_cast<int64_t>(b_.begin.size()) - 1;
    const int64_t top = std::max<int64_t>(FloorDiv(i, b_.bq), 0);
    const int64_t left = FloorDiv(j, b_.bk), right = FloorDiv(j + kTile - 1, b_.bk);
    for (int64_t t = top; t < rows && t * b_.bq < i + kTile; ++t) {
      auto run =
          std::partition_point(b_.runs.begin() + b_.begin[t], b_.runs.begin() + b_.begin[t + 1],
                               [&](const BlockRun& r) { return r.first + r.count <= left; });
      for (; run != b_.runs.begin() + b_.begin[t + 1] && run->first <= right; ++run) {
        if (run->times == 1) continue;
        for (int64_t c = std::max<int64_t>(run->first, left);
             c <= std::min<int64_t>(run->first + run->count - 1, right); ++c) {
          repeat(t * b_.bq - i, c * b_.bk - j, run->times);
        }
      }
    }
  }

  const BlockRowsPtr shared_;
  const BlockRows& b_;
};

// Collects the blocks of one row in any order and counts overlaps and repeats.
class BlockList {
 public:
  void Clear() { borders_.clear(); }
  // Ranges that overlap count once.
  void AddOnce(int64_t first, int64_t last) { Add(first, last, 0); }
  void AddAgain(int64_t block) { Add(block, block + 1, 1); }

  void AppendTo(BlockRows* rows) {
    std::sort(borders_.begin(), borders_.end(),
              [](const Border& a, const Border& b) { return a.block < b.block; });
    int32_t once = 0, again = 0;
    for (size_t b = 0; b < borders_.size(); ++b) {
      (borders_[b].again ? again : once) += borders_[b].change;
      if (b + 1 == borders_.size() || borders_[b + 1].block == borders_[b].block) continue;
      const int32_t times = again + (once > 0 ? 1 : 0);
      const int64_t count = borders_[b + 1].block - borders_[b].block;
      if (times > 0) {
        rows->Append({static_cast<int32_t>(borders_[b].block), static_cast<int32_t>(count), times});
      }
    }
    rows->EndRow();
  }

 private:
  struct Border {
    int64_t block;
    int32_t change;
    bool again;
  };
  void Add(int64_t first, int64_t last, bool again) {
    if (first >= last) return;
    borders_.push_back({first, 1, again});
    borders_.push_back({last, -1, again});
  }
  std::vector<Border> borders_;
};

BlockRows BigBirdBlocks(const BigBird& bird, int64_t N) {
  const int64_t nb = bird.Blocks(N);
  BlockRows rows{.bq = bird.block,
                 .bk = bird.block,
                 .offset_q = bird.globals,
                 .offset_k = bird.globals,
                 .begin = {0},
                 .runs = {}};
  BlockList list;
  for (int64_t t = 0; t < nb && !CheckPoint(); ++t) {
    list.Clear();
    if (t < bird.left || t >= nb - bird.right) {
      list.AddOnce(0, nb);
    } else {
      list.AddOnce(0, std::min(bird.left, nb));
      list.AddOnce(std::max<int64_t>(nb - bird.right, 0), nb);
      list.AddOnce(std::max<int64_t>(t - bird.half_window, 0),
                   std::min(t + bird.half_window + 1, nb));
      for (int64_t slot = 0; slot < bird.r; ++slot) {
        const int32_t block = bird.random[(t - bird.left) * bird.r + slot];
        if (block >= 0) list.AddAgain(block);
      }
    }
    list.AppendTo(&rows);
  }
  return rows;
}

// Of a PatternSeq. The offset is 0 unless causal: else it does not affect the pattern.
struct Order {
  int64_t Nq, Nk;
  bool causal;
  int64_t offset;
};

Order OrderOf(const PatternSeq& seq) {
  return {seq.Nq, seq.Nk, seq.causal, seq.causal ? seq.offset : 0};
}

PatternSpec SpecOf(const Order& order, const BlockRowsPtr& blocks, bool multiset, Visible also) {
  PatternSpec spec{.Nq = order.Nq, .Nk = order.Nk, .visible = Blocks(blocks)};
  const bool repeats = std::any_of(blocks->runs.begin(), blocks->runs.end(),
                                   [](const BlockRun& run) { return run.times > 1; });
  if (multiset && repeats) spec.constants = Multiplicities(blocks);
  if (also != nullptr) spec.visible = Or(spec.visible, also);
  if (order.causal) {
    spec.visible = And(Band(kUnbounded, order.offset), spec.visible);
  }
  return spec;
}

struct Layout {
  Order order;
  BlockRowsPtr blocks;
  bool multiset;
};

PatternSpec SpecOf(const Layout& layout) {
  return SpecOf(layout.order, layout.blocks, layout.multiset, nullptr);
}

struct BirdLayout {
  Order order;
  BigBird bird;
};

PatternSpec SpecOf(const BirdLayout& layout) {
  const BigBird& bird = layout.bird;
  Visible globals;
  if (bird.globals > 0) {
    std::vector<int32_t> first(bird.globals);
    for (size_t s = 0; s < first.size(); ++s) first[s] = static_cast<int32_t>(s);
    globals = Or(Keys(first), Queries(first));
  }
  const auto blocks = std::make_shared<const BlockRows>(BigBirdBlocks(bird, layout.order.Nk));
  return SpecOf(layout.order, blocks, bird.multiset, globals);
}

}  // namespace

ConstantsPtr Multiplicities(BlockRowsPtr blocks) {
  return std::make_shared<MultiplicitiesOf>(std::move(blocks));
}

PatternSource BlockSource(const PatternSeq& seq, BlockRows listed, bool multiset) {
  const auto shared = std::make_shared<const BlockRows>(std::move(listed));
  const BlockRows& blocks = *shared;
  PatternCounts counts;
  if (multiset) counts.term_bytes = sizeof(float);
  for (size_t t = 0; t + 1 < blocks.begin.size(); ++t) {
    const int64_t queries =
        Within(blocks.offset_q + static_cast<int64_t>(t) * blocks.bq, blocks.bq, seq.lengths.nq);
    int64_t keys = 0, tiles = 0;
    for (int64_t r = blocks.begin[t]; r < blocks.begin[t + 1]; ++r) {
      const BlockRun& run = blocks.runs[r];
      keys +=
          Within(blocks.offset_k + run.first * blocks.bk, run.count * blocks.bk, seq.lengths.nk);
      tiles += CeilDiv(run.count * blocks.bk, kTile);
    }
    counts.pairs += static_cast<double>(queries) * static_cast<double>(keys);
    counts.tiles += static_cast<double>(queries) / kTile * static_cast<double>(tiles);
  }
  PatternSource source =
      SourceOf(seq.Nq, seq.Nk, "blocks", Layout{OrderOf(seq), shared, multiset}, counts, SpecOf);
  source.is_counted = source.knows_pairs = !seq.causal;
  return source;
}

int64_t BigBird::Blocks(int64_t N) const {
  const int64_t n = std::max<int64_t>(N - globals, 0);
  return n / block + (n % block != 0 ? 1 : 0);
}

int64_t BigBird::InnerRows(int64_t N) const {
  const int64_t nb = Blocks(N), first = std::min(left, nb);
  return nb - first - std::min(right, nb - first);
}

namespace {

// Positions [begin, end) are those of inner rows; all others see and are seen by all.
struct InnerPositions {
  int64_t begin = 0, end = 0;
  Lengths Of(const Lengths& n) const {
    return {Within(begin, end - begin, n.nq), Within(begin, end - begin, n.nk)};
  }
};

InnerPositions InnerOf(const BigBird& bird, int64_t N) {
  const int64_t nb = bird.Blocks(N), left = std::min(bird.left, nb);
  const int64_t begin = std::min(bird.globals + left * bird.block, N);
  return {begin, std::min(begin + bird.InnerRows(N) * bird.block, N)};
}

// Exact without random blocks. Of these, as if those that are hidden otherwise were all alike.
double BigBirdPairs(const BigBird& bird, const PatternSeq& seq) {
  const int64_t last = seq.causal ? 0 : kUnbounded;
  const Lengths inner = InnerOf(bird, seq.Nk).Of(seq.lengths);
  const int64_t half = std::min(bird.half_window, bird.Blocks(seq.Nk));
  const Window near{.block = bird.block,
                    .before = half * bird.block,
                    .after = half * bird.block,
                    .causal = seq.causal};
  const double hidden =
      BandPairs(inner, kUnbounded, last) - WindowPairs(inner, Canonical(inner.nq, inner.nk, near));
  const auto rows = static_cast<double>(bird.InnerRows(seq.Nk));
  const auto width = static_cast<double>(2 * half + 1);
  const double others = std::max(rows - width, 1.0);  // of the blocks that a row could draw
  const double drawn = std::min(static_cast<double>(bird.r) / others, 1.0);
  return BandPairs(seq.lengths, kUnbounded, last) - hidden * (1 - drawn);
}

// About, as if random blocks met neither each other nor other ones.
double BigBirdTiles(const BigBird& bird, int64_t nb, const Lengths& lengths) {
  const auto rows = static_cast<double>(Tiles(lengths.nq)),
             columns = static_cast<double>(Tiles(lengths.nk));
  const auto b = static_cast<double>(bird.block), tile = static_cast<double>(kTile);
  const bool is_aligned = bird.globals == 0 && (bird.block % kTile == 0 || kTile % bird.block == 0);
  // Blocks that a tile of queries meets, and tiles that neighbouring blocks meet.
  const double met = is_aligned ? std::max(tile / b, 1.0) : 1 + (tile - 1) / b;
  const auto tiles_of = [&](double blocks) {
    if (blocks == 0) return 0.0;
    return is_aligned ? std::max(blocks * b / tile, 1.0) : 1 + (blocks * b - 1) / tile;
  };
  const auto first = static_cast<double>(std::min(bird.left, nb)),
             last = static_cast<double>(std::min(bird.right, nb));
  const auto globals = static_cast<double>(Tiles(std::min(bird.globals, lengths.nk)));
  const auto half = static_cast<double>(bird.half_window);
  const double window =
      is_aligned ? tiles_of(met) + 2 * std::ceil(half * b / tile) : 1 + tiles_of(2 * half + met);
  const double row = window + met * static_cast<double>(bird.r) * tiles_of(1) + tiles_of(first) +
                     tiles_of(last) + globals;
  const double whole = std::min(tiles_of(first) + tiles_of(last) + globals, rows);
  return (rows - whole) * std::min(row, columns) + whole * columns;
}

}  // namespace

PatternSource BigBirdSource(const PatternSeq& seq, BigBird bird) {
  bird.block = std::min(bird.block, kFar);
  const int64_t nb = bird.Blocks(seq.Nk);
  PatternCounts counts{.pairs = BigBirdPairs(bird, seq)};
  counts.tiles = BigBirdTiles(bird, nb, seq.lengths);
  if (bird.multiset) counts.term_bytes = sizeof(float);
  // Drawing a block and sorting it into its row. A run of blocks takes 12 bytes, three times that
  // while its list grows.
  const double listed = static_cast<double>(nb) * static_cast<double>(bird.r + 4);
  const bool draws = bird.r > 0 && bird.InnerRows(seq.Nk) > 0;
  PatternSource source = SourceOf(seq.Nq, seq.Nk, "bigbird",
                                  BirdLayout{OrderOf(seq), std::move(bird)}, counts, SpecOf);
  source.is_counted = false;
  source.knows_pairs = !draws;
  source.host.bytes += static_cast<int64_t>(48 * listed);
  source.host.seconds += 8e-8 * listed;
  return source;
}

namespace {

// Blocks of a permuted sequence: position x is of block floor(x nb / n).
struct PermutedBlocks {
  PatternSeq seq;
  std::vector<int32_t> perm;
  bool gathers;

  int64_t nb() const { return static_cast<int64_t>(perm.size()); }
  // Block t holds the positions [Start(t), Start(t + 1)).
  int64_t Start(int64_t t) const { return CeilDiv(t * seq.Nk, nb()); }

  PatternCounts Counts() const {
    PatternCounts counts{.slot_bytes = 32};
    for (int64_t t = 0; t < nb(); ++t) {
      const int64_t size = Start(t + 1) - Start(t), key = Start(perm[t]);
      const Lengths n{Within(Start(t) - seq.offset, size, seq.lengths.nq),
                      Within(key, Start(perm[t] + 1) - key, seq.lengths.nk)};
      const int64_t first = std::max(Start(t), seq.offset);  // position of the first query
      // j <= p: j' <= i' + first - start of the key block, both counted from 0.
      counts.pairs += seq.causal ? BandPairs(n, kUnbounded, first - key)
                                 : static_cast<double>(n.nq) * static_cast<double>(n.nk);
      counts.tiles += static_cast<double>(Tiles(n.nq + kTile / 2) * Tiles(n.nk + kTile / 2));
    }
    if (gathers) counts.tiles = static_cast<double>(2 * Tiles(seq.lengths.nq));
    return counts;
  }

  PatternSpec InOrder() const {
    std::vector<int32_t> q(seq.Nq, -1), k(seq.Nk);
    for (int64_t i = 0; i < seq.Nq; ++i) {
      const int64_t p = i + seq.offset;
      if (p >= 0 && p < seq.Nk) q[i] = perm[p * nb() / seq.Nk];
    }
    for (int64_t j = 0; j < seq.Nk; ++j) k[j] = static_cast<int32_t>(j * nb() / seq.Nk);
    PatternSpec spec{.Nq = seq.Nq, .Nk = seq.Nk, .visible = SameSegment(q, k)};
    if (seq.causal) {
      spec.visible = And(Band(kUnbounded, seq.offset), spec.visible);
    }
    return spec;
  }

  PatternSpec ByKeyBlock() const {
    std::vector<int32_t> query_block(perm.size()), q, k(seq.lengths.nk);
    for (size_t t = 0; t < perm.size(); ++t) query_block[perm[t]] = static_cast<int32_t>(t);
    PatternSpec spec{.Nk = seq.lengths.nk};
    for (int64_t c = 0; c < nb(); ++c) {
      const int64_t t = query_block[c], first = Start(t) - seq.offset;
      const int64_t end = std::min(Start(t + 1) - seq.offset, seq.lengths.nq);
      for (int64_t i = std::max<int64_t>(first, 0); i < end; ++i) {
        spec.query_rows.push_back(static_cast<int32_t>(i));
        q.push_back(static_cast<int32_t>(c));
      }
    }
    spec.Nq = static_cast<int64_t>(spec.query_rows.size());
    for (int64_t j = 0; j < seq.lengths.nk; ++j) k[j] = static_cast<int32_t>(j * nb() / seq.Nk);
    spec.visible = SameSegment(q, k);
    if (seq.causal) {
      std::iota(k.begin(), k.end(), 0);
      spec.visible = And(spec.visible, NotAfter(spec.query_rows, k, seq.offset));
    }
    return spec;
  }
};

}  // namespace

bool BlockwiseGathers(const PatternSeq& seq, int64_t nb) {
  return seq.Nk < nb * seq.tuning.device.least_natural_block;
}

PatternSource BlockwiseSource(const PatternSeq& seq, std::span<const int32_t> perm) {
  const bool gathers = BlockwiseGathers(seq, static_cast<int64_t>(perm.size()));
  PermutedBlocks blocks{seq, {perm.begin(), perm.end()}, gathers};
  const PatternCounts counts = blocks.Counts();
  // In natural order, Ops::Attend applies the lengths.
  if (!gathers) blocks.seq.lengths = {seq.Nq, seq.Nk};
  PatternSource source =
      SourceOf(seq.Nq, seq.Nk, "blockwise", std::move(blocks), counts,
               [](const PermutedBlocks& b) { return b.gathers ? b.ByKeyBlock() : b.InOrder(); });
  source.gathers = gathers;
  return source;
}

}  // namespace attnd
