// The costs of a device decide the form of a pattern. Every form shows the right pairs and has a
// key of its own; devices with equal decisions have equal keys.
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "kernels/pattern/shapes/blocks.h"
#include "kernels/pattern/shapes/lists.h"
#include "kernels/pattern/shapes/longformer.h"
#include "tests/pattern/pattern_parts_check.h"

namespace attnd {
namespace {

PatternSeq SeqOn(const PatternTuning& device) {
  return {.Nq = 200, .Nk = 200, .lengths = {190, 195}, .causal = true, .tuning = {device}};
}

TEST(PatternTuning, ListsArePairsWherePairsAreCheap) {
  KeyLists lists{.R = 5};
  for (int32_t at = 0; at < 200 * 5; ++at) lists.keys.push_back(at * 7 % 200);
  const auto sees = [&](int64_t i, int64_t j) -> int64_t {
    const auto list = lists.keys.begin() + i * 5;
    return std::find(list, list + 5, static_cast<int32_t>(j)) != list + 5;
  };
  const auto source = [&](int64_t pairs) {
    return ListSource(SeqOn({.pairs_a_listed = pairs}), lists);
  };
  EXPECT_TRUE(source(39).is_listed);  // 5 * 39 < 200
  EXPECT_FALSE(source(40).is_listed);
  for (const int64_t pairs : {39, 40}) {
    ASSERT_NO_FATAL_FAILURE(ExpectParts(SeqOn({}), {source(pairs)}, sees));
  }
  EXPECT_NE(source(39).key, source(40).key);
  EXPECT_EQ(source(8).key, source(39).key);
  EXPECT_EQ(source(40).key, source(100).key);
}

TEST(PatternTuning, GlobalKeysAreGatheredWhereIdleKeysAreExpensive) {
  const std::vector<int32_t> globals = {0, 1, 2, 130};  // 124 idle keys in two tiles
  for (const Half half : {Half::kLocal, Half::kBoth}) {
    const auto source = [&](int64_t idle) {
      return LongformerSource(SeqOn({.most_idle_keys = idle}), {5, 1}, globals, half);
    };
    EXPECT_TRUE(source(123).gathers);
    EXPECT_FALSE(source(124).gathers);
    for (const int64_t idle : {123, 124}) {
      ASSERT_NO_FATAL_FAILURE(
          ExpectParts(SeqOn({}), {source(idle)}, [&](int64_t i, int64_t j) -> int64_t {
            const auto is_global = [&](int64_t x) {
              return std::find(globals.begin(), globals.end(), x) != globals.end();
            };
            if (is_global(i)) return half == Half::kBoth;
            return std::abs(i - j) <= 5 || is_global(j);
          }));
    }
    EXPECT_NE(source(123).key, source(124).key);
    EXPECT_EQ(source(32).key, source(123).key);
    EXPECT_EQ(source(124).key, source(500).key);
  }
}

TEST(PatternTuning, BlocksAreGatheredWhereTheyAreSmallForTheDevice) {
  const std::vector<int32_t> perm = {2, 0, 3, 1};  // blocks of 50
  const auto source = [&](int64_t block) {
    return BlockwiseSource(SeqOn({.least_natural_block = block}), perm);
  };
  EXPECT_FALSE(source(50).gathers);
  EXPECT_TRUE(source(51).gathers);
  for (const int64_t block : {50, 51}) {
    ASSERT_NO_FATAL_FAILURE(
        ExpectParts(SeqOn({}), {source(block)},
                    [&](int64_t i, int64_t j) -> int64_t { return perm[i / 50] == j / 50; }));
  }
  EXPECT_NE(source(50).key, source(51).key);
  EXPECT_EQ(source(51).key, source(64).key);
}

}  // namespace
}  // namespace attnd
