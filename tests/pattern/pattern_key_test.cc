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

TEST(PatternKeys, OfWindows) {
  struct P {
    PatternSeq seq;
    Window window;
  };
  Found found;
  for (const int64_t block : {1, 7}) {
    for (const bool causal : {false, true}) {
      const Window window{.block = block, .before = 20, .after = 9, .offset = 10, .causal = causal};
      Check<P>(
          [](const P& p) {
            return std::optional(WindowSource(p.seq.Nq, p.seq.Nk, p.window, p.seq.lengths));
          },
          {Seq(130, 140, false), window}, &found);
    }
  }
  EXPECT_EQ(Undecided(found), (Fields{".0.2.0", ".0.2.1", ".0.3", ".0.4"}));
}

TEST(PatternKeys, OfStrided) {
  struct P {
    PatternSeq seq;
    int64_t stride;
    Half half;
  };
  Found found;
  for (const bool causal : {false, true}) {
    for (const Half half : {Half::kBoth, Half::kGlobal}) {
      Check<P>(
          [](const P& p) {
            return If(IsValid(p.seq), [&] { return StridedParts(p.seq, p.stride, p.half).back(); });
          },
          {Seq(130, 140, causal), 6, half}, &found);
    }
  }
  // A gathered pattern is one of lengths.
  EXPECT_EQ(Undecided(found), (Fields{".0.0", ".0.1"}));
}

TEST(PatternKeys, OfFixed) {
  struct P {
    PatternSeq seq;
    FixedSegments segments;
    Half half;
  };
  Found found;
  for (const bool causal : {false, true}) {
    for (const Half half : {Half::kBoth, Half::kGlobal}) {
      const FixedSegments segments{.stride = 15, .summary = 5, .vertical = 1};
      Check<P>(
          [](const P& p) {
            const bool is_whole = !p.seq.causal && p.half == Half::kBoth;
            return If(IsValid(p.seq) && (is_whole || !p.segments.horizontal),
                      [&] { return FixedSource(p.seq, p.segments, p.half); });
          },
          {Seq(130, 140, causal), segments, half}, &found);
    }
  }
  EXPECT_EQ(Undecided(found), (Fields{".0.0", ".0.1"}));
}

TEST(PatternKeys, OfLongformer) {
  struct P {
    PatternSeq seq;
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
                return If(IsValid(p.seq) && std::is_sorted(p.globals.begin(), p.globals.end()),
                          [&] { return source(p.seq, p.window, p.dilation, p.globals); });
              },
              {Seq(130, 140, causal), 5, dilation, globals}, &found);
        }
      }
    }
    EXPECT_EQ(Undecided(found), Fields());
  }
  Found found;
  for (const bool causal : {false, true}) {
    Check<P>(
        [](const P& p) {
          return If(IsValid(p.seq) && std::is_sorted(p.globals.begin(), p.globals.end()),
                    [&] { return LongformerGlobal(p.seq, p.globals); });
        },
        {Seq(130, 140, causal), 5, 1, few}, &found);
  }
  // Nq and its length leave no row out here; the window is that of local rows.
  EXPECT_EQ(Undecided(found), (Fields{".0.0", ".0.1", ".0.2.0", ".1", ".2"}));
}

TEST(PatternKeys, OfLists) {
  struct P {
    PatternSeq seq;
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
              return If(IsValid(p.seq) && p.seq.Nq <= 60 && p.seq.Nk <= 50 &&
                            (listed == 0 || listed >= p.seq.Nq * p.lists.R),
                        [&] { return ListSource(p.seq, p.lists); });
            },
            {Seq(59, 49, causal), lists}, &found);
      }
    }
  }
  EXPECT_EQ(Undecided(found), Fields());
}

TEST(PatternKeys, OfBlocks) {
  struct P {
    PatternSeq seq;
    BlockRows blocks;
    bool multiset;
  };
  Found found;
  for (const bool causal : {false, true}) {
    const std::vector<int32_t> indptr = {0, 2, 5}, indices = {0, 2, 1, 1, 3};
    Check<P>(
        [](const P& p) {
          const int64_t runs = static_cast<int64_t>(p.blocks.runs.size());
          return If(IsValid(p.seq) && p.blocks.begin.front() == 0 && p.blocks.begin.back() == runs,
                    [&] { return BlockSource(p.seq, p.blocks, p.multiset); });
        },
        {Seq(70, 75, causal), BlocksOfLists(indptr, indices, 30, 20), true}, &found);
  }
  EXPECT_TRUE(found.decisive.contains(".2")) << "multiset";
}

TEST(PatternKeys, OfBigBird) {
  struct P {
    PatternSeq seq;
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
            const bool is_whole = p.seq.Nq == p.seq.Nk && p.seq.offset == 0;
            return If(is_whole && p.bird.InnerRows(p.seq.Nk) * p.bird.r <= listed,
                      [&] { return BigBirdSource(p.seq, p.bird); });
          },
          {{.Nq = 60, .Nk = 60, .lengths = {60, 60}, .causal = causal}, bird}, &found);
    }
  }
  EXPECT_TRUE(found.decisive.contains(".1.7")) << "multiset";
}

TEST(PatternKeys, OfPermutedBlocks) {
  struct P {
    PatternSeq seq;
    std::vector<int32_t> perm;
  };
  Found found;
  for (const bool causal : {false, true}) {
    for (const int64_t Nk : {40, 140}) {
      Check<P>(
          [](const P& p) {
            const bool is_permutation = *std::max_element(p.perm.begin(), p.perm.end()) == 2;
            return If(IsValid(p.seq) && is_permutation,
                      [&] { return BlockwiseSource(p.seq, p.perm); });
          },
          {Seq(Nk, Nk + 10, causal), {1, 2, 0}}, &found);
    }
  }
  EXPECT_EQ(Undecided(found), Fields());
}

TEST(PatternKeys, OfGrids) {
  struct P {
    PatternSeq seq;
    std::vector<int64_t> grid;
    int64_t axis;
    bool is_labelled;
  };
  Found found;
  for (const bool causal : {false, true}) {
    for (const int64_t axis : {0, 1}) {
      PatternSeq seq = Seq(6 * 11, 6 * 11, causal);
      Check<P>(
          [](const P& p) {
            const bool is_whole = p.seq.Nq == 6 * 11 && p.seq.Nk == 6 * 11 && p.seq.offset == 0;
            const bool fits = is_whole && p.grid[0] * p.grid[1] == p.seq.Nq && p.axis < 2;
            return If(fits, [&] { return AxialSource(p.seq, p.grid, p.axis, p.is_labelled); });
          },
          {seq, {6, 11}, axis, true}, &found);
    }
  }
  EXPECT_EQ(Undecided(found), (Fields{".0.0", ".0.1", ".0.3"}));
}

TEST(PatternKeys, OfImages) {
  struct P {
    PatternSeq seq;
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
          PatternSeq seq = p.seq;
          seq.Nq = seq.Nk = N;  // the image's
          return If(
              p.seq.Nq == 108 && p.seq.Nk == 108 && seq.lengths.nq <= N && seq.lengths.nk <= N,
              [&] { return ImageLocal2d(seq, p.image); });
        },
        {Seq(108, 108, causal), image}, &found);
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
            const PatternSeq seq{.Nq = p.N, .Nk = p.N, .lengths = {p.N, p.N}};
            // Lists are as long as their halves.
            const bool fits =
                !is_sent || (p.N == kN && p.etc.ng == kGlobals && p.etc.radius <= kRadius);
            return If(fits, [&] { return source(seq, p.etc); });
          },
          {kN, etc}, &found);
    }
    EXPECT_TRUE(found.decisive.contains(".1.5")) << "max_distance";
  }
}

TEST(PatternKeys, OfSecondKeys) {
  struct P {
    PatternSeq seq;
    Window window;
    std::vector<int32_t> rows, positions;
  };
  Found found;
  Check<P>(
      [](const P& p) {
        const Visible seen = NotAfter(std::vector<int32_t>(p.seq.Nq, 4), p.positions, 0);
        return If(IsValid(p.seq), [&] {
          return WithSecondKeys(p.seq, p.window, {.rows = p.rows, .visible = seen, .counts = {}});
        });
      },
      {Seq(70, 75, false), {.block = 3, .before = 7, .after = 2}, {75, 76}, {4, 5}}, &found);
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
    PatternSeq seq;
    std::vector<int32_t> ids_q, ids_k;
  };
  Found found;
  Check<P>(
      [](const P& p) {
        return If(p.seq.Nq == 8 && p.seq.Nk == 9,
                  [&] { return WithinSegments(AllKeys(p.seq), p.ids_q, p.ids_k); });
      },
      {Seq(8, 9, true), {0, 0, 0, 1, 1, 1, 2, 2}, {0, 0, 0, 1, 1, 1, 2, 2, -1}}, &found);
  EXPECT_TRUE(found.decisive.contains(".1") && found.decisive.contains(".2"));
}

}  // namespace
}  // namespace attnd
