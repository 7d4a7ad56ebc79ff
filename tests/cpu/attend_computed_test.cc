// Attend over patterns that keep no masks and no terms: the same bits as over those that do.
#include <gtest/gtest.h>

#include "kernels/pattern/builder.h"
#include "kernels/pattern/constants.h"
#include "kernels/pattern/predicates/coordinates.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"
#include "tests/cpu/attend_grad_case.h"
#include "tests/cpu/attend_terms_case.h"
#include "tests/pattern/pattern_masks.h"

namespace attnd::testing {
namespace {

using Kept = std::shared_ptr<const Pattern>;

// The run that a tile is in; null: it is hidden.
const Run* RunOf(const Pattern& pattern, int64_t q_tile, int64_t key_tile) {
  const TileRows& rows = pattern.by_query;
  for (int64_t r = rows.begin[q_tile]; r < rows.begin[q_tile + 1]; ++r) {
    const Run& run = rows.runs[r];
    if (run.first <= key_tile && key_tile < run.first + run.count) return &run;
  }
  return nullptr;
}

// What a pattern shows and adds, tile by tile.
class MasksOf : public Predicate {
 public:
  explicit MasksOf(Kept kept) : kept_(std::move(kept)) {}
  void Spans(int64_t, int64_t first, int64_t last, std::vector<TileSpan>* spans) const override {
    spans->push_back({first, last, false});
  }
  void Keep(int64_t q_tile, int64_t key_tile, TileMask* mask) const override {
    const Run* run = RunOf(*kept_, q_tile, key_tile);
    if (run == nullptr) return mask->fill(0);
    const TileMask own = MaskOfRun(*kept_, *run, q_tile, key_tile);
    for (int64_t k = 0; k < kTile; ++k) (*mask)[k] &= own[k];
  }
  std::string key() const override { return "kept"; }

 private:
  const Kept kept_;
};

class TermsOf : public Constants {
 public:
  explicit TermsOf(Kept kept) : kept_(std::move(kept)) {}
  void Fill(int64_t q_tile, int64_t key_tile, TileTerms* terms) const override {
    *terms = TermsOfRun(*kept_, *RunOf(*kept_, q_tile, key_tile), q_tile, key_tile);
  }
  TileShape Shape(int64_t, int64_t) const override { return {}; }
  int64_t bytes() const override { return 0; }

 private:
  const Kept kept_;
};

// The same pattern with one run a row, hidden tiles in it.
Kept Computed(const Kept& kept) {
  if (kept == nullptr) return nullptr;
  Pattern pattern = *kept;
  const bool has_terms = !pattern.terms.empty();
  const auto compute = [&](TileRows* rows, int64_t others) {
    const int64_t count = rows->rows();
    *rows = {.begin = {0}};
    for (int64_t row = 0; row < count; ++row) {
      if (others > 0) {
        rows->runs.push_back({0, static_cast<int32_t>(others), Run::kComputed,
                              has_terms ? Run::kComputed : Run::kNoTerms});
      }
      rows->begin.push_back(static_cast<int64_t>(rows->runs.size()));
    }
  };
  const int64_t queries = pattern.by_query.rows(), keys = pattern.by_key.rows();
  compute(&pattern.by_query, keys);
  compute(&pattern.by_key, queries);
  pattern.masks.clear();
  pattern.terms.clear();
  pattern.computed_masks = std::make_shared<MasksOf>(kept);
  if (has_terms) pattern.computed_terms = std::make_shared<TermsOf>(kept);
  return std::make_shared<const Pattern>(std::move(pattern));
}

void ComputeAll(std::vector<AttendSeq>* seqs) {
  for (AttendSeq& seq : *seqs) {
    // As a method says of such patterns.
    seq.is_counted = false;
    seq.patterns = 0;
    const auto compute = [&](Kept* pattern) {
      *pattern = Computed(*pattern);
      if (*pattern == nullptr) return;
      ++seq.patterns;
      const TileRows &queries = (*pattern)->by_query, &keys = (*pattern)->by_key;
      seq.visible_tiles = static_cast<double>(queries.rows() * keys.rows());
      seq.pattern_tiles += seq.visible_tiles;
      if ((*pattern)->computed_terms != nullptr) seq.term_bytes = sizeof(float);
    };
    compute(&seq.pattern);
    for (Kept& pattern : seq.head_patterns) compute(&pattern);
  }
}

class AttendComputed : public ::testing::TestWithParam<std::string> {
 protected:
  Device& device() { return CpuOf(GetParam(), 2); }
};
INSTANTIATE_TEST_SUITE_P(Isa, AttendComputed, ::testing::ValuesIn(AvailableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(AttendComputed, ForwardGivesTheSameBits) {
  unsigned seed = 1;
  for (const bool gathers : {false, true}) {
    for (const bool per_head : {false, true}) {
      for (const bool has_terms : {false, true}) {
        TermsCase c({.Nq = 150,
                     .Nk = 600,
                     .per_head = per_head,
                     .padded = !gathers,
                     .gathers_queries = gathers,
                     .gathers_keys = gathers,
                     .Nk2 = gathers ? 20 : 0,
                     .tile_bias = has_terms,
                     .table = has_terms},
                    seed++);
        SCOPED_TRACE(c.sizes.ToString());
        RunTerms(device(), {&c});
        const std::vector<std::byte> kept = c.Outputs();
        ComputeAll(&c.seqs);
        RunTerms(device(), {&c});
        EXPECT_EQ(c.Outputs(), kept);
      }
    }
  }
}

TEST_P(AttendComputed, BackwardGivesTheSameBits) {
  unsigned seed = 1;
  for (const Slots slots : {Slots::kInOrder, Slots::kGather, Slots::kByHead}) {
    for (const char* terms : {"", "bias slopes sinks table labels relative constants cap"}) {
      GradCase c({.B = 2,
                  .H = 2,
                  .Hkv = 1,
                  .Nq = 200,
                  .Nk = 300,
                  .D = 16,
                  .Dv = 12,
                  .slots = slots,
                  .padded = true,
                  .terms = terms},
                 seed++);
      SCOPED_TRACE(terms);
      RunAttendGrad(device(), c.Params(), {c.Problem()});
      const std::vector<std::byte> kept = c.Gradients();
      ComputeAll(&c.seqs);
      RunAttendGrad(device(), c.Params(), {c.Problem()});
      EXPECT_EQ(c.Gradients(), kept);
    }
  }
}

// Few queries on many keys: the key tiles of a row are split into parts.
TEST_P(AttendComputed, PartsOfARowAgreeWithPlainCode) {
  TermsCase c({.B = 1, .H = 1, .Hkv = 1, .Nq = 70, .Nk = 12900, .D = 8, .Dv = 8}, 3);
  ComputeAll(&c.seqs);
  c.seqs[0].pair_count = std::make_shared<PairCount>();
  RunTerms(device(), {&c});
  c.ExpectForward();
  int64_t pairs = 0;
  for (int64_t i = 0; i < 70; ++i) {
    pairs += static_cast<int64_t>(PlainVisible(c.Problem(), 0, 0, i).size());
  }
  EXPECT_EQ(c.seqs[0].pair_count->pairs(), pairs);
}

// A builder hides query slots without a row; this pattern shows them.
TEST_P(AttendComputed, PairsAreCountedOnceForAllHeads) {
  for (const bool gathers : {false, true}) {
    for (const bool per_head : {false, true}) {
      TermsCase c(
          {.Nq = 150, .Nk = 200, .per_head = per_head, .padded = !gathers, .gathers_keys = gathers},
          7);
      ComputeAll(&c.seqs);
      for (AttendSeq& seq : c.seqs) seq.pair_count = std::make_shared<PairCount>();
      // Twice: a method may look at the same pairs again.
      RunTerms(device(), {&c});
      RunTerms(device(), {&c});
      for (int64_t b = 0; b < c.sizes.B; ++b) {
        int64_t pairs = 0;
        for (int64_t h = 0; h < c.sizes.H; ++h) {
          for (int64_t i = 0; i < c.sizes.Nq; ++i) {
            pairs += static_cast<int64_t>(PlainVisible(c.Problem(), b, h, i).size());
          }
        }
        EXPECT_EQ(c.seqs[b].pair_count->pairs(), pairs) << b << gathers << per_head;
      }
    }
  }
}

}  // namespace
}  // namespace attnd::testing
