// The patterns of methods against the definitions of their specifications.
#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/etc.h"
#include "kernels/pattern/shapes/grids.h"
#include "kernels/pattern/shapes/lists.h"
#include "kernels/pattern/shapes/longformer.h"
#include "kernels/pattern/shapes/reformer.h"
#include "kernels/pattern/shapes/second_keys.h"
#include "kernels/pattern/shapes/strided.h"
#include "kernels/pattern/shapes/windows.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/pattern/pattern_parts_check.h"

namespace attnd {
namespace {

constexpr Half kHalves[] = {Half::kBoth, Half::kLocal, Half::kGlobal};

double PairsOf(const PatternParts& parts) {
  double pairs = 0;
  for (const PatternSource& part : parts) {
    pairs += static_cast<double>(part.build().visible_pairs);
    if (part.knows_pairs) {
      EXPECT_EQ(part.visible_pairs, static_cast<double>(part.build().visible_pairs));
    }
  }
  return pairs;
}

PatternSeq Square(int64_t n, bool causal) {
  return {.Nq = n, .Nk = n, .lengths = {n, n}, .causal = causal};
}

TEST(PatternParts, Strided) {
  Random random(1);
  for (int round = 0; round < 150; ++round) {
    const PatternSeq seq = random.Seq(/*square=*/false);
    const int64_t s = random.Coin() ? random.Pick(1, 9) : random.Pick(10, 300);
    const Half half = kHalves[random.Pick(0, 2)];
    SCOPED_TRACE(testing::Message() << "stride " << s << " half " << static_cast<int>(half));
    ASSERT_NO_FATAL_FAILURE(ExpectParts(seq, StridedParts(seq, s, half), [&](int64_t i, int64_t j) {
      const int64_t d = i + seq.offset - j;
      const bool near = std::abs(d) < s, far = Modulo(d, s) == 0;
      return half == Half::kBoth ? near || far : half == Half::kLocal ? near : far;
    }));
  }
  EXPECT_EQ(PairsOf(StridedParts(Square(16, true), 4, Half::kBoth)), 82);
  EXPECT_EQ(PairsOf(StridedParts(Square(16, false), 4, Half::kBoth)), 148);
}

TEST(PatternParts, Fixed) {
  Random random(2);
  for (int round = 0; round < 200; ++round) {
    const PatternSeq seq = random.Seq(/*square=*/false);
    FixedSegments f{.stride = random.Coin() ? random.Pick(1, 9) : random.Pick(10, 200)};
    f.summary = random.Pick(1, f.stride);
    f.vertical = random.Pick(0, f.stride / f.summary - 1);
    f.tail_summary = random.Pick(0, 3) == 0;
    const Half half = kHalves[random.Pick(0, 2)];
    f.horizontal = !seq.causal && half == Half::kBoth && random.Coin();
    const auto is_summary = [&](int64_t x) {
      const int64_t tail = seq.Nk - seq.Nk % f.stride;
      if (f.tail_summary && tail < seq.Nk && x >= 0 && x < seq.Nk) {
        const int64_t start = std::max<int64_t>(
            0, std::min(tail + f.stride - (f.vertical + 1) * f.summary, seq.Nk - f.summary));
        if (x >= start && x < start + f.summary) return true;
        if (x >= tail) return false;
      }
      const int64_t r = Modulo(x, f.stride);
      return f.stride - (f.vertical + 1) * f.summary <= r && r < f.stride - f.vertical * f.summary;
    };
    SCOPED_TRACE(testing::Message() << "stride " << f.stride << " summary " << f.summary << " "
                                    << f.vertical << " horizontal " << f.horizontal << " tail "
                                    << f.tail_summary << " half " << static_cast<int>(half));
    ASSERT_NO_FATAL_FAILURE(
        ExpectParts(seq, {FixedSource(seq, f, half)}, [&](int64_t i, int64_t j) {
          const int64_t p = i + seq.offset;
          const bool own = FloorDivide(p, f.stride) == FloorDivide(j, f.stride);
          const bool far = is_summary(j) || (f.horizontal && is_summary(p));
          return half == Half::kBoth ? own || far : half == Half::kLocal ? own : far;
        }));
  }
  const FixedSegments check{.stride = 4, .summary = 1};
  EXPECT_EQ(PairsOf({FixedSource(Square(16, true), check, Half::kBoth)}), 64);
  EXPECT_EQ(PairsOf({FixedSource(Square(16, false), check, Half::kBoth)}), 112);
}

TEST(PatternParts, Longformer) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    const PatternSeq seq = random.Seq(/*square=*/false);
    const int64_t w = random.Pick(1, 100);
    const int64_t d = random.Coin() ? 1 : random.Pick(2, 70);
    std::set<int32_t> set;
    // A few at any place, or the first ones, so many that rows stay in natural order.
    if (random.Coin()) {
      for (int32_t j : random.Numbers(seq.Nk == 0 ? 0 : random.Pick(0, 9), 0, seq.Nk - 1))
        set.insert(j);
    } else {
      const int64_t first = std::min<int64_t>(seq.Nk, random.Pick(20, 70));
      for (int32_t j = 0; j < first; ++j) set.insert(j);
    }
    const std::vector<int32_t> globals(set.begin(), set.end());
    SCOPED_TRACE(testing::Message() << "window " << w << " dilation " << d << " globals "
                                    << testing::PrintToString(globals));
    const auto is_global = [&](int64_t x) { return set.count(static_cast<int32_t>(x)) != 0; };
    ASSERT_NO_FATAL_FAILURE(ExpectParts(
        seq, {LongformerSource(seq, {w, d}, globals, Half::kLocal)}, [&](int64_t i, int64_t j) {
          const int64_t delta = i + seq.offset - j;
          return !is_global(i + seq.offset) &&
                 ((std::abs(delta) <= w * d && delta % d == 0) || is_global(j));
        }));
    ASSERT_NO_FATAL_FAILURE(
        ExpectParts(seq, {LongformerSource(seq, {w, d}, globals, Half::kGlobal)},
                    [&](int64_t i, int64_t) { return is_global(i + seq.offset); }));
    ASSERT_NO_FATAL_FAILURE(ExpectParts(
        seq, {LongformerSource(seq, {w, d}, globals, Half::kBoth)}, [&](int64_t i, int64_t j) {
          const int64_t delta = i + seq.offset - j;
          return is_global(i + seq.offset) || (std::abs(delta) <= w * d && delta % d == 0) ||
                 is_global(j);
        }));
  }
  const std::vector<int32_t> globals = {0, 7};
  for (const auto& [dilation, pairs] : {std::pair(1, 120), std::pair(2, 114)}) {
    const PatternSeq seq = Square(16, false);
    const auto half = [&, dilation = dilation](Half half) {
      return LongformerSource(seq, {2, dilation}, globals, half);
    };
    EXPECT_EQ(PairsOf({half(Half::kLocal), half(Half::kGlobal)}), pairs);
    EXPECT_EQ(PairsOf({half(Half::kBoth)}), pairs);
  }
}

TEST(PatternParts, KeyLists) {
  Random random(4);
  for (int round = 0; round < 150; ++round) {
    const PatternSeq seq = random.Seq(/*square=*/false);
    const int64_t R = random.Pick(1, 5);
    const std::vector<int32_t> keys = random.Numbers(seq.Nq * R, -2, seq.Nk + 1);
    const std::vector<int32_t> q = random.Numbers(seq.Nq, -1, 2), k = random.Numbers(seq.Nk, -1, 2);
    KeyLists lists{.keys = keys, .R = R, .multiset = random.Coin(), .include_self = random.Coin()};
    if (!lists.multiset) {
      EXPECT_EQ(ListSource(seq, lists).build().listed_again, 0);
    }
    const bool segments = random.Pick(0, 2) == 0;
    if (segments) {
      lists.ids_q = q;
      lists.ids_k = k;
    }
    ASSERT_NO_FATAL_FAILURE(
        ExpectParts(seq, {ListSource(seq, lists)}, [&](int64_t i, int64_t j) -> int64_t {
          if (segments && (q[i] < 0 || q[i] != k[j])) return 0;
          const int64_t times = std::count(keys.begin() + i * R, keys.begin() + (i + 1) * R, j);
          if (times == 0) return lists.include_self && j == i + seq.offset;
          return lists.multiset ? times : 1;
        }));
  }
}

TEST(PatternParts, BlockLayouts) {
  Random random(5);
  for (int round = 0; round < 120; ++round) {
    const PatternSeq seq = random.Seq(/*square=*/false);
    const int64_t sizes[] = {1, 5, 16, 64, 100, 128};
    const int64_t bq = sizes[random.Pick(0, 5)], bk = sizes[random.Pick(0, 5)];
    const int64_t nbq = (seq.Nq + bq - 1) / bq, nbk = (seq.Nk + bk - 1) / bk;
    // Lists with repeats.
    std::vector<int32_t> indptr = {0}, indices;
    for (int64_t t = 0; t < nbq; ++t) {
      for (int32_t c : random.Numbers(nbk == 0 ? 0 : random.Pick(0, 6), 0, nbk - 1)) {
        indices.push_back(c);
      }
      indptr.push_back(static_cast<int32_t>(indices.size()));
    }
    const bool multiset = random.Coin();
    const PatternSource source = BlockSource(seq, BlocksOfLists(indptr, indices, bq, bk), multiset);
    SCOPED_TRACE(testing::Message() << "blocks " << bq << "x" << bk << " multiset " << multiset);
    ASSERT_NO_FATAL_FAILURE(ExpectParts(seq, {source}, [&](int64_t i, int64_t j) -> int64_t {
      const int64_t t = i / bq, c = j / bk;
      const int64_t times =
          std::count(indices.begin() + indptr[t], indices.begin() + indptr[t + 1], c);
      return multiset ? times : std::min<int64_t>(times, 1);
    }));
  }
}

TEST(PatternParts, BigBird) {
  Random random(6);
  for (int round = 0; round < 150; ++round) {
    const PatternSeq seq = random.Seq(/*square=*/true);
    const int64_t sizes[] = {2, 16, 64, 70};
    BigBird bird{.block = sizes[random.Pick(0, 3)],
                 .half_window = random.Pick(0, 2),
                 .left = random.Pick(0, 2),
                 .right = random.Pick(0, 2),
                 .globals = random.Pick(0, 2) * random.Pick(0, std::min<int64_t>(seq.Nk, 70)),
                 .r = random.Pick(0, 3),
                 .multiset = random.Coin()};
    bird.globals = std::min(bird.globals, seq.Nk);
    if (bird.globals > 0) bird.left = bird.right = 0;
    const int64_t b = bird.block, g = bird.globals, nb = (seq.Nk - g + b - 1) / b;
    const int64_t inner = std::max<int64_t>(nb - bird.left - bird.right, 0);
    const std::vector<int32_t> blocks =
        random.Numbers(inner * bird.r, -1, std::max<int64_t>(nb - 1, 0));
    bird.random = blocks;
    SCOPED_TRACE(testing::Message() << "block " << b << " u " << bird.half_window << " left "
                                    << bird.left << " right " << bird.right << " globals " << g
                                    << " r " << bird.r << " multiset " << bird.multiset);
    ASSERT_NO_FATAL_FAILURE(
        ExpectParts(seq, {BigBirdSource(seq, bird)}, [&](int64_t i, int64_t j) -> int64_t {
          if (i < g || j < g) return 1;
          const int64_t t = (i - g) / b, c = (j - g) / b;
          if (t < bird.left || t >= nb - bird.right) return 1;
          const bool fixed =
              c < bird.left || c >= nb - bird.right || std::abs(t - c) <= bird.half_window;
          const auto own = blocks.begin() + (t - bird.left) * bird.r;
          const int64_t times = fixed + std::count(own, own + bird.r, c);
          return bird.multiset ? times : std::min<int64_t>(times, 1);
        }));
  }
  std::vector<int32_t> check;
  for (int32_t t = 1; t <= 10; ++t) check.push_back((t + 5) % 12);
  EXPECT_EQ(PairsOf({BigBirdSource(Square(24, false), {.block = 2, .random = check, .r = 1})}),
            320);
}

TEST(PatternParts, Blockwise) {
  Random random(7);
  for (int round = 0; round < 100; ++round) {
    PatternSeq seq = random.Seq(/*square=*/false);
    if (seq.Nk == 0) continue;
    const int64_t nb = random.Pick(1, std::min<int64_t>(seq.Nk, 9));
    std::vector<int32_t> perm(nb);
    for (int64_t t = 0; t < nb; ++t) perm[t] = static_cast<int32_t>((t + nb / 2) % nb);
    ASSERT_NO_FATAL_FAILURE(
        ExpectParts(seq, {BlockwiseSource(seq, perm)}, [&](int64_t i, int64_t j) {
          const int64_t p = i + seq.offset;
          return p >= 0 && p < seq.Nk && perm[p * nb / seq.Nk] == j * nb / seq.Nk;
        }));
  }
  const std::vector<int32_t> identity = {0, 1, 2}, shifted = {1, 2, 0};
  EXPECT_EQ(PairsOf({BlockwiseSource(Square(16, false), identity)}), 86);
  EXPECT_EQ(PairsOf({BlockwiseSource(Square(16, false), shifted)}), 85);
}

PatternSeq GridRow(Random& random, int64_t n) {
  PatternSeq seq = Square(n, random.Coin());
  if (random.Coin()) seq.lengths = {random.Pick(0, n), random.Pick(0, n)};
  return seq;
}

TEST(PatternParts, Axial) {
  Random random(8);
  for (int round = 0; round < 120; ++round) {
    std::vector<int64_t> grid;
    const int64_t rank = random.Pick(1, 3);
    for (int64_t e = 0; e < rank; ++e) grid.push_back(random.Pick(1, rank == 1 ? 130 : 13));
    int64_t n = 1;
    for (int64_t extent : grid) n *= extent;
    const PatternSeq seq = GridRow(random, n);
    const int64_t axis = random.Pick(0, rank - 1);
    SCOPED_TRACE(testing::Message() << testing::PrintToString(grid) << " axis " << axis);
    // The axes in which two cells differ.
    const auto differ = [&](int64_t i, int64_t j) {
      std::vector<int64_t> axes;
      for (int64_t e = rank - 1; e >= 0; --e) {
        if (i % grid[e] != j % grid[e]) axes.push_back(e);
        i /= grid[e];
        j /= grid[e];
      }
      return axes;
    };
    ASSERT_NO_FATAL_FAILURE(
        ExpectParts(seq, {AxialSource(seq, grid, axis)}, [&](int64_t i, int64_t j) {
          const auto axes = differ(i, j);
          return axes.empty() || axes == std::vector<int64_t>{axis};
        }));
    ASSERT_NO_FATAL_FAILURE(ExpectParts(seq, AxialCross(seq, grid), [&](int64_t i, int64_t j) {
      return differ(i, j).size() <= 1;
    }));
  }
  const std::vector<int64_t> grid = {4, 5};
  EXPECT_EQ(PairsOf({AxialSource(Square(20, false), grid, 0)}), 80);
  EXPECT_EQ(PairsOf({AxialSource(Square(20, false), grid, 1)}), 100);
  EXPECT_EQ(PairsOf({AxialSource(Square(20, true), grid, 1)}), 60);
  EXPECT_EQ(PairsOf(AxialCross(Square(20, false), grid)), 160);
}

TEST(PatternParts, ImageLocal) {
  Random random(9);
  for (int round = 0; round < 120; ++round) {
    ImageBlocks m{.height = random.Pick(1, 17), .width = random.Pick(1, 17)};
    m.block_height = random.Pick(1, 9);
    m.block_width = random.Pick(1, 9);
    m.flange_height = random.Pick(0, 9);
    m.flange_width = random.Pick(0, 9);
    PatternSeq seq = GridRow(random, m.height * m.width);
    SCOPED_TRACE(testing::Message() << m.height << "x" << m.width << " block " << m.block_height
                                    << "x" << m.block_width << " flange " << m.flange_height << "x"
                                    << m.flange_width << " " << ToString(seq));
    const PatternSource source = ImageLocal2d(seq, m);
    const bool causal = seq.causal;
    seq.causal = false;  // the causal form does not require j <= p
    ASSERT_NO_FATAL_FAILURE(ExpectParts(seq, {source}, [&](int64_t i, int64_t j) {
      const int64_t y = i / m.width, x = i % m.width, v = j / m.width, u = j % m.width;
      const int64_t by = y / m.block_height * m.block_height,
                    bx = x / m.block_width * m.block_width;
      const bool beside = bx - m.flange_width <= u && u < bx + m.block_width + m.flange_width;
      if (!causal) {
        return by - m.flange_height <= v && v < by + m.block_height + m.flange_height && beside;
      }
      if (by - m.flange_height <= v && v < by) return beside;
      if (v < by || v >= by + m.block_height) return false;
      if (bx - m.flange_width <= u && u < bx) return true;
      return bx <= u && u < bx + m.block_width &&
             (v - by) * m.block_width + u - bx <= (y - by) * m.block_width + x - bx;
    }));
  }
  const ImageBlocks check{.height = 6,
                          .width = 7,
                          .block_height = 2,
                          .block_width = 3,
                          .flange_height = 1,
                          .flange_width = 2};
  EXPECT_EQ(PairsOf({ImageLocal2d(Square(42, false), check)}), 720);
  EXPECT_EQ(PairsOf({ImageLocal2d(Square(42, true), check)}), 375);
  EXPECT_EQ(PairsOf({ImageLocal1d(Square(16, true), 4, 6)}), 104);
  EXPECT_EQ(PairsOf({ImageLocal1d(Square(16, false), 4, 3)}), 136);
}

// Without flanges, a row of tiles meets one tile, and is predicted to meet two.
TEST(PatternParts, FewTilesArePredictedForSmallBlocksOfAnImage) {
  constexpr int64_t kSide = 64, kTokens = kSide * kSide;
  for (const int64_t block : {1, 2, 4}) {
    const ImageBlocks image{.height = kSide,
                            .width = kSide,
                            .block_height = block,
                            .block_width = 4,
                            .flange_height = 0,
                            .flange_width = 0};
    for (const bool causal : {false, true}) {
      const PatternSource source = ImageLocal2d(Square(kTokens, causal), image);
      const double tiles = CountsOf(source.build(), {kTokens, kTokens}).tiles;
      EXPECT_GE(source.visible_tiles, tiles) << block;
      EXPECT_LE(source.visible_tiles, 2.4 * tiles) << block;
    }
  }
}

}  // namespace
}  // namespace attnd
