// Sequences of equal lengths, packed or of a batch, which a plan counts once.
#include "kernels/method/seq_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

namespace attnd::testing {
namespace {

std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> Tuples(
    const std::vector<SeqGroup>& groups) {
  std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>> tuples;
  for (const SeqGroup& g : groups) {
    tuples.emplace_back(g.lengths.nq, g.lengths.nk, g.offset, g.count);
  }
  return tuples;
}

TEST(SeqGroups, EqualSequencesAreOneGroup) {
  const std::vector<SeqGroup> seqs = {{{3, 4}, 1}, {{5, 4}, 1}, {{3, 4}, 1}, {{3, 4}, 2}};
  EXPECT_THAT(Tuples(Alike(seqs, 10, {5, 5})),
              ::testing::UnorderedElementsAre(std::tuple(3, 4, 1, 2), std::tuple(5, 4, 1, 1),
                                              std::tuple(3, 4, 2, 1)));
  // Two groups: a list of one entry that stands for several would be planned as one sequence.
  EXPECT_THAT(Tuples(Alike({{{3, 4}, 1, 7}}, 10, {5, 5})),
              ::testing::ElementsAre(std::tuple(3, 4, 1, 6), std::tuple(3, 4, 1, 1)));
}

TEST(SeqGroups, MemoriesOfOtherLengthsAreOtherGroups) {
  const auto rows = [](const std::vector<SeqGroup>& groups) {
    std::vector<std::tuple<int64_t, int64_t, int64_t>> tuples;
    for (const SeqGroup& g : groups) tuples.emplace_back(g.mem, g.cmem, g.count);
    return tuples;
  };
  const auto seq = [](int64_t mem, int64_t cmem) {
    return SeqGroup{.lengths = {3, 3}, .mem = mem, .cmem = cmem};
  };
  EXPECT_THAT(rows(Alike({seq(7, 2), seq(7, 1), seq(7, 2), seq(0, 2)}, 10, {3, 3})),
              ::testing::UnorderedElementsAre(std::tuple(7, 2, 2), std::tuple(7, 1, 1),
                                              std::tuple(0, 2, 1)));
  // Rounded up, at most to the longest.
  EXPECT_THAT(rows(Alike({seq(7, 2), seq(5, 1), seq(6, 2), seq(7, 1)}, 1, {3, 3})),
              ::testing::UnorderedElementsAre(std::tuple(7, 2, 3), std::tuple(7, 2, 1)));
}

TEST(SeqGroups, LengthsAreRoundedUpWhereTooManyDiffer) {
  std::mt19937 random(1);
  for (const int64_t N : {100, 5000, 1 << 30}) {
    std::vector<SeqGroup> seqs;
    double queries = 0, keys = 0;
    for (int b = 0; b < 20000; ++b) {
      const auto pick = [&] { return std::uniform_int_distribution<int64_t>(0, N)(random); };
      seqs.push_back({.lengths = {pick(), pick()}, .offset = b % 2});
      queries += static_cast<double>(seqs.back().lengths.nq);
      keys += static_cast<double>(seqs.back().lengths.nk);
    }
    const std::vector<SeqGroup> groups = Alike(seqs, 1024, {N, N});
    EXPECT_LE(groups.size(), 1024u);
    int64_t count = 0;
    double more_queries = 0, more_keys = 0;
    for (const SeqGroup& g : groups) {
      EXPECT_LE(g.lengths.nq, N);
      EXPECT_LE(g.lengths.nk, N);
      count += g.count;
      more_queries += static_cast<double>(g.lengths.nq * g.count);
      more_keys += static_cast<double>(g.lengths.nk * g.count);
    }
    EXPECT_EQ(count, 20000);
    EXPECT_GE(more_queries, queries);
    EXPECT_GE(more_keys, keys);
    EXPECT_LE(more_queries, 1.15 * queries) << N;
    EXPECT_LE(more_keys, 1.15 * keys) << N;
  }
}

TEST(SeqGroups, RunsKeepTheOrderOfTheBatch) {
  std::vector<int32_t> lengths = {3, 3, 5, 3};
  const std::map<std::string, View> tensors = {
      {"q_lengths", DenseView(lengths.data(), DType::kI32, {4})}};
  const ProblemShape problem{.B = 4, .Nq = 9, .Nk = 9, .tensors = &tensors};
  EXPECT_THAT(Tuples(SeqRunsOf(problem, /*is_planned=*/false)),
              ::testing::ElementsAre(std::tuple(3, 9, 0, 2), std::tuple(5, 9, 0, 1),
                                     std::tuple(3, 9, 0, 1)));
  EXPECT_THAT(Tuples(SeqRunsOf(problem, /*is_planned=*/true)),
              ::testing::UnorderedElementsAre(std::tuple(3, 9, 0, 3), std::tuple(5, 9, 0, 1)));
  const ProblemShape plain{.B = 1 << 16, .Nq = 9, .Nk = 9};
  EXPECT_THAT(Tuples(SeqRunsOf(plain, false)),
              ::testing::ElementsAre(std::tuple(9, 9, 0, 1 << 16)));
  EXPECT_EQ(SeqRunsOf(plain, true).size(), 1u);
}

// Symptom: lengths that were rounded up to one were planned as one problem.
TEST(SeqGroups, RoundedSequencesArePlannedAsSeveralProblems) {
  std::vector<int32_t> lengths;
  for (int32_t b = 0; b < 16; ++b) lengths.push_back(6160 - b);
  const std::map<std::string, View> tensors = {
      {"kv_lengths", DenseView(lengths.data(), DType::kI32, {16})}};
  const ProblemShape problem{.B = 16, .Nq = 6160, .Nk = 6160, .tensors = &tensors};
  EXPECT_THAT(
      Tuples(SeqRunsOf(problem, /*is_planned=*/true, /*most=*/1)),
      ::testing::UnorderedElementsAre(std::tuple(6160, 6160, 0, 15), std::tuple(6160, 6160, 0, 1)));
}

}  // namespace
}  // namespace attnd::testing
