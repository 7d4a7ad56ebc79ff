// A request got the numbers of another one whose pattern differs in a field that the cache key left
// out. Every field of every source is varied alone: where the built patterns differ, so do the
// keys.
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/etc.h"
#include "kernels/pattern/shapes/grids.h"
#include "kernels/pattern/shapes/lists.h"
#include "kernels/pattern/shapes/longformer.h"
#include "kernels/pattern/shapes/reformer.h"
#include "kernels/pattern/shapes/second_keys.h"
#include "kernels/pattern/shapes/strided.h"
#include "kernels/pattern/shapes/windows.h"
#include "tests/pattern/pattern_key_check.h"

namespace attnd {
namespace {

using Fields = std::set<std::string>;

TEST(PatternKeys, OfWindows) {
  struct P {
    PatternSeq row;
    Window window;
  };
  Found found;
  for (const int64_t block : {1, 7}) {
    for (const bool causal : {false, true}) {
      const Window window{.block = block, .before = 20, .after = 9, .offset = 10, .causal = causal};
      Check<P>(
          [](const P& p) {
            return std::optional(WindowSource(p.row.Nq, p.row.Nk, p.window, p.row.lengths));
          },
          {Row(130, 140, false), window}, &found);
    }
  }
  EXPECT_EQ(Undecided(found), (Fields{".0.2.0", ".0.2.1", ".0.3", ".0.4"}));
}

TEST(PatternKeys, OfPackedSequences) {
  struct P {
    std::vector<int32_t> cu_q, cu_k;
    Window window;
  };
  Found found;
  Check<P>(
      [](const P& p) {
        return If(std::is_sorted(p.cu_q.begin(), p.cu_q.end()) &&
                      std::is_sorted(p.cu_k.begin(), p.cu_k.end()),
                  [&] { return PackedSource(p.cu_q, p.cu_k, p.window); });
      },
      {{0, 40, 100}, {0, 50, 90}, {.block = 3, .before = 20, .after = 2, .causal = true}}, &found);
  Check<P>(
      [](const P& p) {
        return If(std::is_sorted(p.cu_q.begin(), p.cu_q.end()) &&
                      std::is_sorted(p.cu_k.begin(), p.cu_k.end()),
                  [&] { return PackedSource(p.cu_q, p.cu_k, p.window); });
      },
      {{0, 40, 100}, {0, 50, 90}, {.block = 3, .before = 20, .after = 2}}, &found);
  EXPECT_EQ(Undecided(found), Fields());
}

TEST(PatternKeys, OfStrided) {
  struct P {
    PatternSeq row;
    int64_t stride;
    Half half;
  };
  Found found;
  for (const bool causal : {false, true}) {
    for (const Half half : {Half::kBoth, Half::kFar}) {
      Check<P>(
          [](const P& p) {
            return If(IsValid(p.row), [&] { return StridedParts(p.row, p.stride, p.half).back(); });
          },
          {Row(130, 140, causal), 6, half}, &found);
    }
  }
  // A gathered pattern is one of lengths.
  EXPECT_EQ(Undecided(found), (Fields{".0.0", ".0.1"}));
}

TEST(PatternKeys, OfFixed) {
  struct P {
    PatternSeq row;
    FixedSegments segments;
    Half half;
  };
  Found found;
  for (const bool causal : {false, true}) {
    for (const Half half : {Half::kBoth, Half::kFar}) {
      const FixedSegments segments{.stride = 15, .summary = 5, .vertical = 1};
      Check<P>(
          [](const P& p) {
            const bool is_whole = !p.row.causal && p.half == Half::kBoth;
            return If(IsValid(p.row) && (is_whole || !p.segments.horizontal),
                      [&] { return FixedSource(p.row, p.segments, p.half); });
          },
          {Row(130, 140, causal), segments, half}, &found);
    }
  }
  EXPECT_EQ(Undecided(found), (Fields{".0.0", ".0.1"}));
}

TEST(PatternKeys, OfLongformer) {
  struct P {
    PatternSeq row;
    int64_t window, dilation;
    std::vector<int32_t> globals;
  };
  const std::vector<int32_t> few = {3, 77};
  std::vector<int32_t> first(60);
  for (size_t j = 0; j < first.size(); ++j) first[j] = static_cast<int32_t>(j);
  for (const auto source : {LongformerLocal, LongformerBoth}) {
    Found found;
    for (const bool causal : {false, true}) {
      for (const auto& globals : {few, first}) {
        for (const int64_t dilation : {1, 3}) {
          Check<P>(
              [&](const P& p) {
                return If(IsValid(p.row) && std::is_sorted(p.globals.begin(), p.globals.end()),
                          [&] { return source(p.row, p.window, p.dilation, p.globals); });
              },
              {Row(130, 140, causal), 5, dilation, globals}, &found);
        }
      }
    }
    EXPECT_EQ(Undecided(found), Fields());
  }
  Found found;
  for (const bool causal : {false, true}) {
    Check<P>(
        [](const P& p) {
          return If(IsValid(p.row) && std::is_sorted(p.globals.begin(), p.globals.end()),
                    [&] { return LongformerGlobal(p.row, p.globals); });
        },
        {Row(130, 140, causal), 5, 1, few}, &found);
  }
  // Nq and its length leave no row out here; the window is that of local rows.
  EXPECT_EQ(Undecided(found), (Fields{".0.0", ".0.1", ".0.2.0", ".1", ".2"}));
}

TEST(PatternKeys, OfLists) {
  struct P {
    PatternSeq row;
    KeyLists lists;
  };
  Found found;
  for (const bool causal : {false, true}) {
    for (const bool multiset : {false, true}) {
      for (const bool is_drawn : {false, true}) {
        KeyLists lists{.seed = 5, .head = 2, .R = 3, .multiset = multiset};
        for (int32_t at = 0; at < 70 * 3 && !is_drawn; ++at) lists.keys.push_back(at * at % 50);
        lists.ids_q.assign(60, 1);
        lists.ids_k.assign(50, 1);
        lists.ids_q[0] = lists.ids_k[0] = 2;
        Check<P>(
            [](const P& p) {
              const auto listed = static_cast<int64_t>(p.lists.keys.size());
              return If(IsValid(p.row) && p.row.Nq <= 60 && p.row.Nk <= 50 &&
                            (listed == 0 || listed >= p.row.Nq * p.lists.R),
                        [&] { return ListSource(p.row, p.lists); });
            },
            {Row(59, 49, causal), lists}, &found);
      }
    }
  }
  EXPECT_EQ(Undecided(found), Fields());
}

TEST(PatternKeys, OfBlocks) {
  struct P {
    PatternSeq row;
    BlockRows blocks;
    bool multiset;
  };
  Found found;
  for (const bool causal : {false, true}) {
    const std::vector<int32_t> indptr = {0, 2, 5}, indices = {0, 2, 1, 1, 3};
    Check<P>(
        [](const P& p) {
          const int64_t runs = static_cast<int64_t>(p.blocks.runs.size());
          return If(IsValid(p.row) && p.blocks.begin.front() == 0 && p.blocks.begin.back() == runs,
                    [&] { return BlockSource(p.row, p.blocks, p.multiset); });
        },
        {Row(70, 75, causal), BlocksOfLists(indptr, indices, 30, 20), true}, &found);
  }
  EXPECT_TRUE(found.decisive.contains(".2")) << "multiset";
}

TEST(PatternKeys, OfBigBird) {
  struct P {
    PatternSeq row;
    BigBird bird;
  };
  Found found;
  for (const bool causal : {false, true}) {
    for (const int64_t globals : {0, 3}) {
      const BigBird bird{.block = 5,
                         .half_window = 1,
                         .left = globals == 0 ? 1 : 0,
                         .right = globals == 0 ? 1 : 0,
                         .globals = globals,
                         .random = {3, 4, 5, 6, 7, 8, 9, 2, 3, 6, 5, 2, 1, 7, 4, 5, 3, 2, 6, 1,
                                    3, 4, 5, 6, 7, 8, 9, 2, 3, 6, 5, 2, 1, 7, 4, 5, 3, 2, 6, 1},
                         .r = 2,
                         .multiset = true};
      Check<P>(
          [](const P& p) {
            const auto listed = static_cast<int64_t>(p.bird.random.size());
            const bool is_whole = p.row.Nq == p.row.Nk && p.row.offset == 0;
            return If(is_whole && p.bird.InnerRows(p.row.Nk) * p.bird.r <= listed,
                      [&] { return BigBirdSource(p.row, p.bird); });
          },
          {{.Nq = 60, .Nk = 60, .lengths = {60, 60}, .causal = causal}, bird}, &found);
    }
  }
  EXPECT_TRUE(found.decisive.contains(".1.7")) << "multiset";
}

TEST(PatternKeys, OfPermutedBlocks) {
  struct P {
    PatternSeq row;
    std::vector<int32_t> perm;
  };
  Found found;
  for (const bool causal : {false, true}) {
    for (const int64_t Nk : {40, 140}) {
      Check<P>(
          [](const P& p) {
            const bool is_permutation = *std::max_element(p.perm.begin(), p.perm.end()) == 2;
            return If(IsValid(p.row) && is_permutation,
                      [&] { return BlockwiseSource(p.row, p.perm); });
          },
          {Row(Nk, Nk + 10, causal), {1, 2, 0}}, &found);
    }
  }
  EXPECT_EQ(Undecided(found), Fields());
}

TEST(PatternKeys, OfGrids) {
  struct P {
    PatternSeq row;
    std::vector<int64_t> grid;
    int64_t axis;
    bool is_labelled;
  };
  Found found;
  for (const bool causal : {false, true}) {
    for (const int64_t axis : {0, 1}) {
      PatternSeq row = Row(6 * 11, 6 * 11, causal);
      Check<P>(
          [](const P& p) {
            const bool is_whole = p.row.Nq == 6 * 11 && p.row.Nk == 6 * 11 && p.row.offset == 0;
            const bool fits = is_whole && p.grid[0] * p.grid[1] == p.row.Nq && p.axis < 2;
            return If(fits, [&] { return AxialSource(p.row, p.grid, p.axis, p.is_labelled); });
          },
          {row, {6, 11}, axis, true}, &found);
    }
  }
  EXPECT_EQ(Undecided(found), (Fields{".0.0", ".0.1", ".0.3"}));
}

TEST(PatternKeys, OfImages) {
  struct P {
    PatternSeq row;
    ImageBlocks image;
  };
  Found found;
  for (const bool causal : {false, true}) {
    const ImageBlocks image{.height = 9,
                            .width = 12,
                            .block_height = 3,
                            .block_width = 4,
                            .flange_height = 2,
                            .flange_width = 1};
    Check<P>(
        [](const P& p) {
          const int64_t N = p.image.height * p.image.width;
          PatternSeq row = p.row;
          row.Nq = row.Nk = N;  // the image's
          return If(
              p.row.Nq == 108 && p.row.Nk == 108 && row.lengths.nq <= N && row.lengths.nk <= N,
              [&] { return ImageLocal2d(row, p.image); });
        },
        {Row(108, 108, causal), image}, &found);
  }
  EXPECT_EQ(Undecided(found), (Fields{".0.0", ".0.1", ".0.3"}));
}

TEST(PatternKeys, OfEtc) {
  struct P {
    int64_t N;
    Etc etc;
  };
  constexpr int64_t kN = 40, kGlobals = 4, kLong = kN - kGlobals, kRadius = 3;
  const auto numbers = [](int64_t count, int64_t modulus) {
    std::vector<int32_t> list(count);
    for (int64_t at = 0; at < count; ++at) list[at] = static_cast<int32_t>(at * at % modulus);
    return list;
  };
  for (const auto source : {EtcLong, EtcGlobal, EtcBoth}) {
    Found found;
    for (const bool is_sent : {false, true}) {
      Etc etc{.ng = kGlobals, .radius = kRadius, .is_labelled = true, .max_distance = 2};
      if (is_sent) {
        etc.hard_l2g = etc.hard_g2l = true;
        etc.sentence_ids = numbers(kLong, kGlobals);
        etc.has_examples = true;
        etc.long_examples = numbers(kLong, 3);
        etc.global_examples = {0, 1, 1, 0};
        etc.l2l_ids = numbers(kLong * (2 * kRadius + 1), 11);
        etc.l2g_ids = numbers(kLong * kGlobals, 7);
        etc.g2g_ids = numbers(kGlobals * kGlobals, 13);
        etc.g2l_ids = numbers(kGlobals * kLong, 5);
      }
      Check<P>(
          [&](const P& p) {
            const PatternSeq row{.Nq = p.N, .Nk = p.N, .lengths = {p.N, p.N}};
            // Lists are as long as their halves.
            const bool fits =
                !is_sent || (p.N == kN && p.etc.ng == kGlobals && p.etc.radius <= kRadius);
            return If(fits, [&] { return source(row, p.etc); });
          },
          {kN, etc}, &found);
    }
    EXPECT_TRUE(found.decisive.contains(".1.5")) << "max_distance";
  }
}

TEST(PatternKeys, OfSecondKeys) {
  struct P {
    PatternSeq row;
    Window window;
    std::vector<int32_t> rows, positions;
  };
  Found found;
  Check<P>(
      [](const P& p) {
        const Visible seen = NotAfter(std::vector<int32_t>(p.row.Nq, 4), p.positions, 0);
        return If(IsValid(p.row), [&] {
          return WithSecondKeys(p.row, p.window, {.rows = p.rows, .visible = seen, .counts = {}});
        });
      },
      {Row(70, 75, false), {.block = 3, .before = 7, .after = 2}, {75, 76}, {4, 5}}, &found);
  EXPECT_TRUE(found.decisive.contains(".2") && found.decisive.contains(".3"));
}

TEST(PatternKeys, OfReformer) {
  struct P {
    int64_t N;
    ReformerRounds rounds;
    int64_t round;
  };
  Found found;
  for (const bool across : {false, true}) {
    ReformerRounds rounds{.rounds = 2, .n = 12, .chunk = 3, .causal = true, .across = across};
    for (int32_t s = 0; s < 12; ++s) rounds.order.push_back(s * 5 % 12);
    for (int32_t s = 0; s < 12; ++s) rounds.order.push_back(s * 7 % 12);
    for (int32_t s = 0; s < 24; ++s) rounds.buckets.push_back(s / 2 % 3);
    Check<P>(
        [&](const P& p) {
          std::vector<int32_t> sorted(p.rounds.order.begin() + 12, p.rounds.order.end());
          std::sort(sorted.begin(), sorted.end());
          const bool fits = p.rounds.rounds == 2 && p.rounds.n == 12 && p.round < 2 && p.N >= 12 &&
                            sorted.back() == 11;
          return If(fits, [&] { return ReformerRound(p.N, p.rounds, p.round); });
        },
        {14, rounds, 1}, &found);
  }
  EXPECT_TRUE(found.decisive.contains(".1.9") && found.decisive.contains(".1.6"));
}

TEST(PatternKeys, OfSegments) {
  struct P {
    PatternSeq row;
    std::vector<int32_t> ids_q, ids_k;
  };
  Found found;
  Check<P>(
      [](const P& p) {
        return If(p.row.Nq == 8 && p.row.Nk == 9,
                  [&] { return WithinSegments(AllKeys(p.row), p.ids_q, p.ids_k); });
      },
      {Row(8, 9, true), {0, 0, 0, 1, 1, 1, 2, 2}, {0, 0, 0, 1, 1, 1, 2, 2, -1}}, &found);
  EXPECT_TRUE(found.decisive.contains(".1") && found.decisive.contains(".2"));
}

}  // namespace
}  // namespace attnd
