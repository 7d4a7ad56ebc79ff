// Symptom: a request got the results of another one whose pattern differs in a field that the cache
// key left out. Every field of every source is varied alone: where the built patterns differ, the
// keys must, too. Each test states exactly the fields that change no pattern.
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/etc.h"
#include "kernels/pattern/shapes/grids.h"
#include "kernels/pattern/shapes/lists.h"
#include "kernels/pattern/shapes/longformer.h"
#include "kernels/pattern/shapes/second_keys.h"
#include "kernels/pattern/shapes/strided.h"
#include "kernels/pattern/shapes/windows.h"
#include "tests/pattern/pattern_key_check.h"

#include <map>
#include <numeric>

namespace attnd {
namespace {

// The fields of PatternTuning in a PatternSeq, where that is the first field.
const char* const kPairsAListed = ".0.5.0.0";
const char* const kMostIdleKeys = ".0.5.0.1";
const char* const kLeastNaturalBlock = ".0.5.0.2";
const char* const kPlannedGlobals = ".0.5.0.3";

// `others`, and the fields of the tuning that are not `decisive`.
Fields TuningBut(const Fields& decisive, Fields others) {
  for (const char* field : {kPairsAListed, kMostIdleKeys, kLeastNaturalBlock, kPlannedGlobals}) {
    if (!decisive.contains(field)) others.insert(field);
  }
  return others;
}

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
  EXPECT_EQ(Undecided(found), TuningBut({}, {".0.2.0", ".0.2.1", ".0.3", ".0.4"}));
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
  // A gathered pattern is built for lengths, not for Nq and Nk.
  EXPECT_EQ(Undecided(found), TuningBut({}, {".0.0", ".0.1"}));
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
  EXPECT_EQ(Undecided(found), TuningBut({}, {".0.0", ".0.1"}));
}

TEST(PatternKeys, OfLongformer) {
  struct P {
    PatternSeq seq;
    DilatedWindow window;
    std::vector<int32_t> globals;
    Half half;
  };
  // With few globals local rows are gathered; with `first` one more idle key would gather them.
  const std::vector<int32_t> few = {3, 77};
  std::vector<int32_t> first(kTile - PatternTuning().most_idle_keys);
  std::iota(first.begin(), first.end(), 0);
  for (const Half half : {Half::kLocal, Half::kBoth, Half::kGlobal}) {
    Found found;
    for (const bool causal : {false, true}) {
      for (const auto& globals : {few, first}) {
        for (const int64_t dilation : {1, 3}) {
          Check<P>(
              [&](const P& p) {
                return If(IsValid(p.seq) && std::is_sorted(p.globals.begin(), p.globals.end()),
                          [&] { return LongformerSource(p.seq, p.window, p.globals, p.half); });
              },
              {Seq(130, 140, causal), {5, dilation}, globals, half}, &found);
        }
      }
    }
    if (half == Half::kGlobal) {
      // Nq and its length leave no row out here; the window is that of local rows.
      EXPECT_EQ(Undecided(found), TuningBut({}, {".0.0", ".0.1", ".0.2.0", ".1.0", ".1.1"}));
    } else {
      EXPECT_EQ(Undecided(found), TuningBut({kMostIdleKeys}, {}));
    }
  }
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
        KeyLists lists{.seed = 5, .head = 2, .R = 6, .multiset = multiset};
        for (int32_t at = 0; at < 70 * 6 && !is_drawn; ++at) lists.keys.push_back(at * at % 50);
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
  EXPECT_EQ(Undecided(found), TuningBut({kPairsAListed}, {}));
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
          const auto runs = static_cast<int64_t>(p.blocks.runs.size());
          return If(IsValid(p.seq) && p.blocks.begin.front() == 0 && p.blocks.begin.back() <= runs,
                    [&] { return BlockSource(p.seq, p.blocks, p.multiset); });
        },
        {Seq(70, 95, causal), BlocksOfLists(indptr, indices, 30, 20), true}, &found);
  }
  // Lengths leave no row out of a pattern in natural order.
  EXPECT_EQ(Undecided(found), TuningBut({}, {".0.2.0", ".0.2.1"}));
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
            PatternSeq seq = p.seq;
            seq.Nk = seq.Nq;  // of one sequence
            return If(p.bird.InnerRows(seq.Nk) * p.bird.r <= listed,
                      [&] { return BigBirdSource(seq, p.bird); });
          },
          {{.Nq = 60, .Nk = 60, .lengths = {60, 60}, .causal = causal}, bird}, &found);
    }
  }
  EXPECT_EQ(Undecided(found), TuningBut({}, {".0.1", ".0.2.0", ".0.2.1"}));
}

TEST(PatternKeys, OfPermutedBlocks) {
  struct P {
    PatternSeq seq;
    std::vector<int32_t> perm;
  };
  Found found;
  for (const bool causal : {false, true}) {
    // 96: blocks of 32 rows, the least that are not gathered.
    for (const int64_t Nk : {50, 96, 150}) {
      Check<P>(
          [](const P& p) {
            const bool is_permutation = *std::max_element(p.perm.begin(), p.perm.end()) == 2;
            return If(IsValid(p.seq) && is_permutation,
                      [&] { return BlockwiseSource(p.seq, p.perm); });
          },
          {Seq(Nk - 10, Nk, causal), {1, 2, 0}}, &found);
    }
  }
  EXPECT_EQ(Undecided(found), TuningBut({kLeastNaturalBlock}, {}));
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
  EXPECT_EQ(Undecided(found), TuningBut({}, {".0.0", ".0.1", ".0.3"}));
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
          seq.Nq = seq.Nk = N;  // those of the image
          return If(
              p.seq.Nq == 108 && p.seq.Nk == 108 && seq.lengths.nq <= N && seq.lengths.nk <= N,
              [&] { return ImageLocal2d(seq, p.image); });
        },
        {Seq(108, 108, causal), image}, &found);
  }
  EXPECT_EQ(Undecided(found), TuningBut({}, {".0.0", ".0.1", ".0.3"}));
}

TEST(PatternKeys, OfEtc) {
  struct P {
    PatternSeq seq;
    Etc etc;
    Half half;
  };
  constexpr int64_t kN = 40, kGlobals = 4, kLong = kN - kGlobals, kRadius = 3;
  const auto numbers = [](int64_t count, int64_t modulus) {
    std::vector<int32_t> list(count);
    for (int64_t at = 0; at < count; ++at) list[at] = static_cast<int32_t>(at * at % modulus);
    return list;
  };
  // Lengths, offset and Nq leave nothing out; has_examples and sent_ids are for the cost alone. The
  // hard form of one half does not affect the other half.
  const Fields common = {".0.0", ".0.2.0", ".0.2.1", ".0.3", ".0.4", ".1.7", ".1.14"};
  const std::map<Half, Fields> others = {
      {Half::kBoth, {}}, {Half::kLocal, {".1.3"}}, {Half::kGlobal, {".1.2"}}};
  for (const auto& [half, undecided] : others) {
    Found found;
    for (const bool is_sent : {false, true}) {
      Etc etc{.ng = kGlobals, .radius = kRadius, .is_labelled = true, .max_distance = 2};
      if (is_sent) {
        etc.hard_l2g = etc.hard_g2l = true;
        etc.sentence_ids = numbers(kLong, kGlobals);
        etc.has_examples = true;
        etc.long_examples = numbers(kLong, 3);
        etc.global_examples = {0, 1, 1, 2};
        etc.l2l_ids = numbers(kLong * (2 * kRadius + 1), 11);
        etc.l2g_ids = numbers(kLong * kGlobals, 7);
        etc.g2g_ids = numbers(kGlobals * kGlobals, 13);
        etc.g2l_ids = numbers(kGlobals * kLong, 5);
      }
      Check<P>(
          [&](const P& p) {
            // The lists have the length of their half.
            const bool fits =
                !is_sent || (p.seq.Nk == kN && p.etc.ng == kGlobals && p.etc.radius <= kRadius);
            return If(fits, [&] { return EtcSource(p.seq, p.etc, p.half); });
          },
          {{.Nq = kN, .Nk = kN, .lengths = {kN, kN}}, etc, half}, &found);
    }
    Fields expected = undecided;
    expected.insert(common.begin(), common.end());
    EXPECT_EQ(Undecided(found), TuningBut({}, expected));
  }
}

TEST(PatternKeys, OfSecondKeys) {
  struct P {
    PatternSeq seq;
    bool is_alone;
    Window window;
    std::vector<int32_t> rows, positions;
  };
  Found found;
  for (const bool causal : {false, true}) {
    const Window window{.block = 3, .before = 7, .after = 2, .causal = causal};
    Check<P>(
        [](const P& p) {
          const Visible seen = NotAfter(std::vector<int32_t>(p.seq.Nq, 4), p.positions, 0);
          const auto local = p.is_alone ? std::nullopt : std::optional(p.window);
          return If(IsValid(p.seq), [&] {
            return WithSecondKeys(p.seq, local, {.rows = p.rows, .visible = seen, .counts = {}});
          });
        },
        {Seq(70, 75, false), false, window, {75, 76}, {4, 5}}, &found);
  }
  // A gathered pattern is built for lengths; the window has offset and causal of its own.
  EXPECT_EQ(Undecided(found), TuningBut({}, {".0.0", ".0.1", ".0.3", ".0.4"}));
}

TEST(PatternKeys, OfSegments) {
  struct P {
    PatternSeq seq;
    std::vector<int32_t> ids_q, ids_k;
  };
  Found found;
  Check<P>(
      [](const P& p) {
        std::vector<int32_t> ids_q = p.ids_q, ids_k = p.ids_k;
        ids_q.resize(p.seq.Nq, 0);
        ids_k.resize(p.seq.Nk, 0);
        return If(IsValid(p.seq), [&] { return WithinSegments(AllKeys(p.seq), ids_q, ids_k); });
      },
      {Seq(8, 9, true), {0, 0, 0, 1, 1, 1, 2, 2}, {0, 0, 0, 1, 1, 1, 2, 2, -1}}, &found);
  EXPECT_EQ(Undecided(found), TuningBut({}, {".0.2.0", ".0.2.1"}));
}

}  // namespace
}  // namespace attnd
