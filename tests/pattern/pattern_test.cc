// Patterns against boolean matrices of every pair.
#include "kernels/pattern/builder.h"
#include "kernels/pattern/cache.h"
#include "kernels/pattern/counts.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/pattern/pattern_check.h"

namespace attnd {
namespace {

TEST(Pattern, RandomBands) {
  std::mt19937 random(1);
  const auto pick = [&](int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const int64_t Nq = Sizes()[pick(0, 8)], Nk = Sizes()[pick(0, 8)];
    int64_t lo = pick(-300, 300), hi = lo + pick(-3, 300);
    if (pick(0, 4) == 0) lo = kUnbounded;
    if (pick(0, 4) == 0) hi = kUnbounded;
    PatternBuilder builder(Nq, Nk);
    builder.Add(Band(lo, hi));
    const Sees sees = [=](int64_t i, int64_t j) {
      return (lo == kUnbounded || j - i >= lo) && (hi == kUnbounded || j - i <= hi);
    };
    SCOPED_TRACE(testing::Message() << Nq << "x" << Nk << " band " << lo << ".." << hi);
    ASSERT_NO_FATAL_FAILURE(ExpectIs(std::move(builder).Build(), Nq, Nk, sees));
  }
}

TEST(Pattern, BandSourceCountsWhatIsBuilt) {
  std::mt19937 random(2);
  const auto pick = [&](int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(random);
  };
  for (int round = 0; round < 500; ++round) {
    const int64_t Nq = Sizes()[pick(0, 8)], Nk = Sizes()[pick(0, 8)];
    const Lengths lengths{pick(0, Nq), pick(0, Nk)};
    int64_t lo = pick(-300, 300), hi = lo + pick(-3, 300);
    if (pick(0, 4) == 0) lo = kUnbounded;
    if (pick(0, 4) == 0) hi = kUnbounded;
    const PatternSource source = BandSource(Nq, Nk, lo, hi, lengths);
    int64_t pairs = 0;
    std::set<std::pair<int64_t, int64_t>> tiles;
    bool all = true;
    for (int64_t i = 0; i < Nq; ++i) {
      for (int64_t j = 0; j < Nk; ++j) {
        const bool sees = (lo == kUnbounded || j - i >= lo) && (hi == kUnbounded || j - i <= hi);
        all = all && sees;
        if (!sees || i >= lengths.nq || j >= lengths.nk) continue;
        ++pairs;
        tiles.insert({i / kTile, j / kTile});
      }
    }
    SCOPED_TRACE(testing::Message() << Nq << "x" << Nk << " lengths " << lengths.nq << ","
                                    << lengths.nk << " band " << lo << ".." << hi);
    ASSERT_EQ(source.visible_pairs, pairs);
    ASSERT_GE(source.visible_tiles, tiles.size());
    ASSERT_LE(source.visible_tiles, tiles.size() + 2 + TileCount(Nq));
    if (source.build == nullptr) {
      ASSERT_TRUE(all);
    } else {
      ASSERT_EQ(source.build().visible_pairs, BandSource(Nq, Nk, lo, hi).visible_pairs);
    }
  }
}

TEST(Pattern, BandsThatShowAllNeedNoPattern) {
  EXPECT_EQ(BandSource(100, 70, kUnbounded, kUnbounded).build, nullptr);
  EXPECT_EQ(BandSource(100, 70, -99, 69).build, nullptr);
  EXPECT_NE(BandSource(100, 70, -98, 69).build, nullptr);
  EXPECT_EQ(BandSource(100, 70, -500, 5).key, BandSource(100, 70, kUnbounded, 5).key);
}

TEST(Pattern, CountsOfTheSpecifications) {
  const auto causal = [](int64_t Nq, int64_t Nk) {
    return BandSource(Nq, Nk, kUnbounded, Nk - Nq).visible_pairs;
  };
  EXPECT_EQ(causal(5, 9), 35);
  EXPECT_EQ(causal(9, 5), 15);
  EXPECT_EQ(BandSource(16, 16, -3, 0).visible_pairs, 58);
  EXPECT_EQ(BandSource(16, 16, -2, 2).visible_pairs, 74);
  const BlockBand causal_blocks{.block = 4, .look_backward = 1, .causal = true};
  const BlockBand blocks{.block = 4, .look_backward = 1, .look_forward = 1};
  EXPECT_EQ(BlockBandSource(16, 16, causal_blocks, {16, 16}).visible_pairs, 88);
  EXPECT_EQ(BlockBandSource(16, 16, blocks, {16, 16}).visible_pairs, 160);
}

TEST(Pattern, BlockBandsAgainstTheirDefinition) {
  std::mt19937 random(3);
  const auto pick = [&](int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(random);
  };
  const auto floor_div = [](int64_t a, int64_t b) { return a >= 0 ? a / b : -1 - (-1 - a) / b; };
  for (int round = 0; round < 300; ++round) {
    const int64_t Nq = Sizes()[pick(0, 8)], Nk = Sizes()[pick(0, 8)];
    const Lengths lengths{pick(0, Nq), pick(0, Nk)};
    const BlockBand band{.block = pick(0, 9) == 0 ? INT64_MAX : pick(1, 90),
                         .look_backward = pick(0, 9) == 0 ? INT64_MAX : pick(0, 4),
                         .look_forward = pick(0, 9) == 0 ? INT64_MAX : pick(0, 4),
                         .offset = pick(-150, 150),
                         .causal = pick(0, 1) == 1};
    const Sees sees = [&](int64_t i, int64_t j) {
      const int64_t p = i + band.offset;
      const int64_t distance = floor_div(j, band.block) - floor_div(p, band.block);
      return -distance <= band.look_backward && distance <= band.look_forward &&
             (!band.causal || j <= p);
    };
    SCOPED_TRACE(testing::Message()
                 << Nq << "x" << Nk << " lengths " << lengths.nq << "," << lengths.nk << " block "
                 << band.block << " look " << band.look_backward << "," << band.look_forward
                 << " offset " << band.offset << " causal " << band.causal);
    const PatternSource source = BlockBandSource(Nq, Nk, band, lengths);
    ASSERT_NO_FATAL_FAILURE(ExpectIs(source.build(), Nq, Nk, sees));
    int64_t pairs = 0;
    for (int64_t i = 0; i < lengths.nq; ++i) {
      for (int64_t j = 0; j < lengths.nk; ++j) pairs += sees(i, j);
    }
    ASSERT_EQ(source.visible_pairs, pairs);
  }
}

TEST(Pattern, NoQueriesOrNoKeysMeetNoTiles) {
  for (const int64_t block : {1, 7, 64}) {
    const BlockBand band{.block = block, .look_backward = 2, .look_forward = 1};
    EXPECT_EQ(BlockBandSource(100, 300, band, {0, 300}).visible_tiles, 0) << block;
    EXPECT_EQ(BlockBandSource(100, 300, band, {100, 0}).visible_tiles, 0) << block;
  }
}

TEST(Pattern, RandomTilesInAnyOrder) {
  std::mt19937_64 random(4);
  for (const int64_t Nq : {1, 65, 300}) {
    for (const int64_t Nk : {1, 64, 259}) {
      // Few distinct masks, so that equal ones are adjacent; some are full or empty.
      std::vector<TileMask> masks(4);
      for (uint64_t& word : masks[0]) word = random();
      for (uint64_t& word : masks[1]) word = random() & random() & random();
      masks[2].fill(~uint64_t{0});
      masks[3].fill(0);
      std::vector<std::pair<int64_t, int64_t>> tiles;
      for (int64_t r = 0; r < TileCount(Nq); ++r) {
        for (int64_t c = 0; c < TileCount(Nk); ++c) tiles.push_back({r, c});
      }
      std::shuffle(tiles.begin(), tiles.end(), random);
      std::map<std::pair<int64_t, int64_t>, TileMask> expected;
      PatternBuilder builder(Nq, Nk);
      for (const auto& [r, c] : tiles) {
        const uint64_t choice = random() % 6;
        if (choice == 5) continue;
        if (choice == 4) {
          builder.AddFull(r, c, 1);
          expected[{r, c}] = masks[2];
        } else {
          builder.AddMasked(r, c, masks[choice]);
          expected[{r, c}] = masks[choice];
        }
      }
      ASSERT_NO_FATAL_FAILURE(
          ExpectIs(std::move(builder).Build(), Nq, Nk, [&](int64_t i, int64_t j) {
            const auto found = expected.find({i / kTile, j / kTile});
            return found != expected.end() && (found->second[j % kTile] >> (i % kTile) & 1) != 0;
          }));
    }
  }
}

TEST(Pattern, RunsMergeAndEqualMasksAreOne) {
  // Given tiles of one row with the same mask side by side, and full tiles added one by one.
  TileMask stripes{};
  for (int k = 0; k < kTile; k += 2) stripes[k] = ~uint64_t{0};
  PatternBuilder builder(128, 640);
  for (const int64_t tile : {3, 1, 2}) builder.AddMasked(0, tile, stripes);
  for (const int64_t tile : {5, 4, 6}) builder.AddFull(0, tile, 1);
  builder.AddMasked(1, 2, stripes);
  const Pattern pattern = std::move(builder).Build();
  EXPECT_EQ(pattern.by_query.runs,
            (std::vector<attnd::Run>{{1, 3, 0}, {4, 3, attnd::Run::kFull}, {2, 1, 0}}));
  EXPECT_EQ(pattern.masks.size(), 1u);
  // Key tile 2 is seen by both query tiles through the same mask: one run.
  EXPECT_EQ(pattern.by_key.begin, (std::vector<int64_t>{0, 0, 1, 2, 3, 4, 5, 6, 6, 6, 6}));
  EXPECT_EQ(pattern.by_key.runs[1], (attnd::Run{0, 2, 0}));
}

// Counts the calls of a predicate.
class Counted : public Predicate {
 public:
  explicit Counted(Visible of) : of_(std::move(of)) {}
  std::string key() const override { return of_->key(); }
  void Spans(int64_t q_tile, int64_t first, int64_t last,
             std::vector<TileSpan>* spans) const override {
    ++spans_calls;
    of_->Spans(q_tile, first, last, spans);
  }
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    ++masks_calls;
    of_->Keep(q_tile, key_tile, mask);
  }
  TileShape Shape(int64_t q_tile, int64_t key_tile) const override {
    ++shapes_calls;
    return of_->Shape(q_tile, key_tile);
  }
  mutable int64_t spans_calls = 0, masks_calls = 0, shapes_calls = 0;

 private:
  const Visible of_;
};

TEST(Pattern, CausalAtAMillionTokensIsSmallAndComputesOneShapePerRowOfTiles) {
  constexpr int64_t N = int64_t{1} << 20;
  const auto counted = std::make_shared<const Counted>(Band(kUnbounded, 0));
  const Pattern pattern = SourceOf(N, N, counted, {}).build();
  EXPECT_EQ(counted->spans_calls, N / kTile);
  EXPECT_EQ(counted->shapes_calls, N / kTile);  // the tile on the diagonal
  EXPECT_EQ(counted->masks_calls, 1);
  EXPECT_EQ(pattern.visible_pairs, N * (N + 1) / 2);
  EXPECT_EQ(pattern.by_query.runs.size(), static_cast<size_t>(2 * N / kTile - 1));
  EXPECT_EQ(pattern.by_key.runs.size(), static_cast<size_t>(2 * N / kTile - 1));
  EXPECT_EQ(pattern.masks.size(), 1u);
}

TEST(PatternCache, SharesPatternsAndEvictsTheLeastRecentlyUsed) {
  int builds = 0;
  const auto source = [&](const std::string& key) {
    PatternSource s = BandSource(640, 640, kUnbounded, 0);
    s.key = key;
    s.build = [&builds, build = s.build] {
      ++builds;
      return build();
    };
    return s;
  };
  PatternCache cache(/*max_bytes=*/7 << 9);  // holds two of about 1.4 KB
  const auto a = cache.Get(source("a"));
  EXPECT_EQ(cache.Get(source("a")), a);
  EXPECT_EQ(builds, 1);
  cache.Get(source("b"));
  cache.Get(source("a"));
  cache.Get(source("c"));  // evicts b
  EXPECT_EQ(builds, 3);
  EXPECT_EQ(cache.Get(source("a")), a);
  EXPECT_EQ(builds, 3);
  cache.Get(source("b"));
  EXPECT_EQ(builds, 4);
}

TEST(PatternCache, EveryListOfAPatternCounts) {
  const auto more = [](const auto& fill) {
    Pattern pattern;
    fill(&pattern);
    return BytesOf(pattern) - BytesOf(Pattern());
  };
  const auto rows = [](TileRows* rows) {
    rows->begin.resize(10);
    rows->runs.resize(9);
  };
  const auto list = [](PairList* list) {
    list->begin.resize(10);
    list->columns.resize(9);
  };
  constexpr int64_t kRows = 10 * 8 + 9 * 16, kList = 10 * 8 + 9 * 4;
  EXPECT_EQ(more([&](Pattern* p) { rows(&p->by_query); }), kRows);
  EXPECT_EQ(more([&](Pattern* p) { rows(&p->by_key); }), kRows);
  EXPECT_EQ(more([&](Pattern* p) { list(&p->keys_of); }), kList);
  EXPECT_EQ(more([&](Pattern* p) { list(&p->queries_of); }), kList);
  EXPECT_EQ(more([](Pattern* p) { p->masks.resize(3); }), 3 * 512);
  EXPECT_EQ(more([](Pattern* p) { p->query_rows.resize(7); }), 7 * 4);
  EXPECT_EQ(more([](Pattern* p) { p->key_rows.resize(7); }), 7 * 4);
  EXPECT_EQ(more([](Pattern* p) { p->key_bias.resize(7); }), 7 * 4);
  const auto terms = [&](size_t bias, size_t labels) {
    return more([&](Pattern* p) {
      p->terms.resize(1);
      p->terms[0].bias.resize(bias);
      p->terms[0].labels.resize(labels);
    });
  };
  EXPECT_EQ(terms(4096, 0) - terms(0, 0), 4096 * 4);
  EXPECT_EQ(terms(0, 4096) - terms(0, 0), 4096 * 2);
  EXPECT_GT(terms(0, 0), 0);
}

TEST(PatternCache, ReturnsPatternsThatItCannotKeep) {
  PatternCache cache(/*max_bytes=*/0);
  const auto pattern = cache.Get(BandSource(65, 65, kUnbounded, 0));
  EXPECT_EQ(pattern->visible_pairs, 65 * 66 / 2);
}

}  // namespace
}  // namespace attnd
