// Rounds of LSH attention.
#include "kernels/pattern/shapes/reformer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "kernels/pattern/spec.h"
#include "tests/pattern/pattern_key_check.h"
#include "tests/pattern/pattern_parts_check.h"

namespace attnd {
namespace {

// The slots of a round as the specification lists them: (row of the query, row of the key).
std::multiset<std::pair<int32_t, int32_t>> SlotsOfRound(const ReformerRounds& r, int64_t round) {
  const int64_t C = (r.n + r.chunk - 1) / r.chunk, T = r.rounds * C;
  const auto row_at = [&](int64_t of_round, int64_t slot) {
    return slot < r.n ? r.order[of_round * r.n + slot] : -1;
  };
  std::multiset<std::pair<int32_t, int32_t>> slots;
  for (int64_t s = 0; s < r.n; ++s) {
    const int32_t i = row_at(round, s);
    if (i >= r.queries) continue;
    for (int64_t d = r.lo; d <= r.hi; ++d) {
      const int64_t own = s / r.chunk + d;
      const int64_t chunk = r.flat ? Modulo(round * C + own, T) : round * C + Modulo(own, C);
      for (int64_t t = 0; t < r.chunk; ++t) {
        const int32_t j = row_at(chunk / C, chunk % C * r.chunk + t);
        if (j < 0 || j == i || (r.causal && j > i)) continue;
        if (!r.across &&
            (chunk / C != round || r.buckets[round * r.n + i] != r.buckets[round * r.n + j])) {
          continue;
        }
        slots.insert({i, j});
      }
    }
  }
  return slots;
}

TEST(PatternReformer, RoundsAgainstTheListOfSlots) {
  Random random(2);
  for (int round = 0; round < 60; ++round) {
    const int64_t N = random.Pick(0, 200);
    ReformerRounds r{.rounds = random.Pick(1, 4), .n = random.Pick(0, N)};
    r.chunk = random.Coin() ? random.Pick(1, 20) : random.Pick(50, 130);
    r.flat = random.Coin();
    // A window of at most all chunks, anywhere.
    const int64_t chunks = std::max<int64_t>(r.Chunks(), 1);
    r.lo = -random.Pick(0, std::min<int64_t>(chunks - 1, random.Coin() ? 2 : 200));
    r.hi = r.lo + random.Pick(0, std::min<int64_t>(chunks - 1, random.Coin() ? 3 : 200));
    if (random.Coin()) r.queries = random.Pick(0, N);
    r.causal = random.Coin();
    r.across = random.Coin();
    r.unique = random.Coin();
    std::vector<int32_t> order, buckets = random.Numbers(r.rounds * r.n, 0, 3);
    for (int64_t h = 0; h < r.rounds; ++h) {
      std::vector<int32_t> rows(r.n);
      for (int64_t i = 0; i < r.n; ++i) rows[i] = static_cast<int32_t>(i);
      std::stable_sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) {
        return buckets[h * r.n + a] < buckets[h * r.n + b];
      });
      for (int64_t s = 0; s < r.n; s += r.chunk) {
        std::sort(rows.begin() + s, rows.begin() + std::min(s + r.chunk, r.n));
      }
      order.insert(order.end(), rows.begin(), rows.end());
    }
    r.order = order;
    r.buckets = buckets;
    SCOPED_TRACE(testing::Message()
                 << "N " << N << " n " << r.n << " rounds " << r.rounds << " chunk " << r.chunk
                 << " look " << r.lo << "," << r.hi << " flat " << r.flat << " causal " << r.causal
                 << " across " << r.across << " unique " << r.unique);
    const PatternSeq seq{.Nq = N, .Nk = N, .lengths = {r.n, r.n}};
    std::multiset<std::pair<int32_t, int32_t>> expected, shown;
    for (int64_t h = 0; h < r.rounds; ++h) {
      Expanded all{.weight = std::vector<double>(N * N)};
      ASSERT_NO_FATAL_FAILURE(
          AddPart(seq, ReformerRound(N, std::make_shared<const ReformerHead>(r), h), &all));
      for (int64_t i = 0; i < N; ++i) {
        for (int64_t j = 0; j < N; ++j) {
          for (int n = 0; n < all.weight[i * N + j]; ++n) shown.insert({i, j});
        }
      }
      for (const auto& pair : SlotsOfRound(r, h)) expected.insert(pair);
      if (r.unique) continue;
      ASSERT_EQ(shown, expected) << "round " << h;
    }
    // Unique: every pair of any round once.
    const std::set<std::pair<int32_t, int32_t>> once(expected.begin(), expected.end());
    if (r.unique) {
      ASSERT_EQ(shown, (std::multiset<std::pair<int32_t, int32_t>>(once.begin(), once.end())));
    }
  }
}

// Symptom: keys of other rounds stood twice among the key slots of a round, so that its gradients
// of keys were sums.
TEST(PatternReformer, FarKeysAreRowsOfTheirOwn) {
  Random random(3);
  for (int round = 0; round < 40; ++round) {
    ReformerRounds r{.rounds = random.Pick(1, 3), .n = random.Pick(0, 200)};
    const int64_t N = r.n + random.Pick(0, 9);
    r.chunk = random.Pick(1, 80);
    r.flat = random.Coin();
    // A window of at most all chunks, anywhere.
    const int64_t chunks = std::max<int64_t>(r.Chunks(), 1);
    r.lo = -random.Pick(0, std::min<int64_t>(chunks - 1, 4));
    r.hi = r.lo + random.Pick(0, std::min<int64_t>(chunks - 1, 6));
    r.causal = random.Coin();
    for (int64_t h = 0; h < r.rounds; ++h) {
      std::vector<int32_t> rows(r.n);
      for (int64_t i = 0; i < r.n; ++i) rows[i] = static_cast<int32_t>(i);
      std::shuffle(rows.begin(), rows.end(), std::mt19937(static_cast<uint32_t>(round * 5 + h)));
      r.order.insert(r.order.end(), rows.begin(), rows.end());
    }
    const auto near = std::make_shared<const ReformerHead>(r);
    r.far_row = N;
    const auto far = std::make_shared<const ReformerHead>(r);
    const std::vector<int32_t> rows = far->FarRows();
    ASSERT_EQ(static_cast<int64_t>(rows.size()), r.rounds * r.FarSlots());
    for (int64_t h = 0; h < r.rounds; ++h) {
      const std::vector<int32_t> expected = ReformerRound(N, near, h).spec().key_rows;
      std::vector<int32_t> found = ReformerRound(N, far, h).spec().key_rows;
      std::set<int32_t> once;
      for (int32_t& row : found) {
        ASSERT_TRUE(row < 0 || once.insert(row).second) << row << " stands twice";
        if (row >= N) row = rows[row - N];
      }
      ASSERT_EQ(found, expected) << "round " << h;
    }
  }
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
    rounds.buckets.resize(24);
    for (int32_t s = 0; s < 24; ++s) rounds.buckets[s / 12 * 12 + rounds.order[s]] = s % 12 / 2;
    for (const int64_t round : {0, 1}) {
      Check<P>(
          [&](const P& p) {
            std::vector<int32_t> sorted(p.rounds.order.begin() + 12, p.rounds.order.end());
            std::sort(sorted.begin(), sorted.end());
            const bool fits = p.rounds.rounds <= 2 && p.rounds.n == 12 && p.rounds.chunk > 0 &&
                              p.rounds.hi >= p.rounds.lo &&
                              p.rounds.hi - p.rounds.lo < p.rounds.Chunks() &&
                              p.round < p.rounds.rounds && p.N >= 12 && sorted.back() == 11;
            return If(fits, [&] {
              const auto head = std::make_shared<const ReformerHead>(p.rounds);
              PatternSource source = ReformerRound(p.N, head, p.round);
              source.build = [spec = source.spec] {  // with masks that can be compared
                PatternSpec stored = spec();
                stored.stores_masks = true;
                return Build(std::move(stored));
              };
              return source;
            });
          },
          {14, rounds, round}, &found);
    }
  }
  // Only n rows are sorted, whatever N; n follows from the lists.
  EXPECT_EQ(Undecided(found), (Fields{".0", ".1.1"}));
}

}  // namespace
}  // namespace attnd
