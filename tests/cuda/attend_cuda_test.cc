// What attend has on this device alone: threads in any order, keys split over blocks, wide rows.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/cpu/attend_case.h"
#include "tests/cpu/attend_terms_case.h"
#include "tests/cuda/large_attention.h"
#include "tests/cuda/thread_orders.h"

namespace attnd::testing {
namespace {

Device& TheDevice() { return CpuOf("cuda", 1); }

// `run` returns outputs, the same bytes whatever the order of threads.
void ExpectTheSameInEveryOrder(const std::function<std::vector<std::byte>()>& run) {
  std::vector<std::byte> first;
  InEveryOrder([&] {
    const std::vector<std::byte> bytes = run();
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first);
  });
}

TermsSizes Everything() {
  return {.params = {.scale = 0.3, .softcap = 4},
          .per_head = true,
          .gathers_queries = true,
          .gathers_keys = true,
          .Nk2 = 20,
          .key_bias = true,
          .tile_bias = true,
          .bias = true,
          .alibi = true,
          .sinks = true,
          .table = true,
          .L = 40,
          .offset = 61};
}

TEST(CudaAttend, ThreadsMayRunInAnyOrder) {
  std::vector<TermsSizes> all = {Everything(), {.listed = 40, .bias = true, .sinks = true}};
  all.push_back({.D = 64, .Dv = 64});
  all.back().q = all.back().k = all.back().v = all.back().out = DType::kBF16;
  all.push_back({.D = 100, .Dv = 70, .params = {.weighting = Weighting::kGelu}});
  for (const TermsSizes& sizes : all) {
    SCOPED_TRACE(sizes.ToString());
    ExpectTheSameInEveryOrder([&] {
      const TermsCase c(sizes, 1);
      RunTerms(TheDevice(), {&c});
      return c.Outputs();
    });
  }
}

TEST(CudaAttend, PartsOfRowsAndOddNumbersDoNotDependOnThreads) {
  ExpectTheSameInEveryOrder([&] {
    TermsCase c({.B = 1, .H = 2, .Hkv = 1, .Nq = 3, .Nk = 3000, .D = 8, .Dv = 40, .bias = true}, 1);
    c.seqs[0].visible_tiles = 30;
    PlainArray v = c.v.Read();
    v.At({0, 0, 2000, 3}) = INFINITY;
    c.v.Write(v);
    RunTerms(TheDevice(), {&c});
    return c.Outputs();
  });
}

// Rows of any width, through chunks of columns; in every type, with every kind of row.
TEST(CudaAttend, WideRowsAgreeWithPlainCode) {
  unsigned seed = 0;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [D, Dv] :
         {std::pair<int64_t, int64_t>{129, 16}, {256, 256}, {20, 130}, {300, 64}, {512, 513}}) {
      TermsSizes sizes{.B = 1, .H = 2, .Hkv = 1, .Nq = 70, .Nk = 131, .D = D, .Dv = Dv};
      sizes.params.scale = 1 / std::sqrt(static_cast<double>(D));
      sizes.q = sizes.k = sizes.v = sizes.out = dtype;
      sizes.has_pattern = seed % 2 == 0;
      sizes.alibi = seed % 3 == 0;
      if (seed % 5 == 3) sizes.L = 50;
      SCOPED_TRACE(sizes.ToString());
      const TermsCase c(sizes, ++seed);
      RunTerms(TheDevice(), {&c});
      c.ExpectForward();
    }
  }
}

// Widths that cp.async takes as they are, and those that it does not.
TEST(CudaAttend, EveryWidthAgreesWithPlainCode) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (int64_t D : {4, 8, 12, 16, 24, 63, 64, 65, 72, 96, 128}) {
      const AttendCase c({.H = 2,
                          .Hkv = 1,
                          .Nq = 65,
                          .Nk = 140,
                          .D = D,
                          .Dv = D % 64 == 0 ? D : 136 - D,
                          .dtype = dtype,
                          .layout = D % 3 == 0 ? Layout::kBNHD : Layout::kBHND,
                          .mask = D % 2 == 0 ? MaskKind::kCausal : MaskKind::kNone,
                          .padded = D % 5 == 0},
                         static_cast<uint64_t>(D));
      SCOPED_TRACE(c.sizes.ToString());
      RunAttend(TheDevice(), {&c}, /*backward=*/false);
      c.ExpectForward();
    }
  }
}

// The same numbers in rows that cp.async cannot copy.
std::vector<double> OutOfLine(const LargeAttention& attention) {
  AttendProblem p = attention.problem();
  std::vector<TestArray> arrays;
  for (View* view : {&p.q, &p.k, &p.v, &p.out}) {
    TestArray& array = arrays.emplace_back(view->dtype, view->shape, Memory::kPitched);
    array.Write(ReadView(*view));
    *view = array.view();
  }
  const TestArray lse(DType::kF32, p.lse.shape);
  p.lse = lse.view();
  const AttendArgs args{.params = {.scale = LargeAttention::kScale}, .problems = {p}};
  RunOn(
      TheDevice(), [&](Stream& stream) { return TheDevice().Run(stream, args); },
      p.seqs[0].pattern == nullptr ? Planned::kExactly : Planned::kAtLeast);
  std::vector<double> results = arrays.back().Read().values;
  const PlainArray of_lse = lse.Read();
  results.insert(results.end(), of_lse.values.begin(), of_lse.values.end());
  return results;
}

// Of many blocks each takes two tiles of queries that follow one another; the last one of a head
// has one here. Of few blocks each takes one. Rows that are not plain have a kernel of their own.
TEST(CudaAttend, ManyHeadsHaveTheBitsOfFew) {
  struct Form {
    int64_t D;
    DType dtype;
    int64_t lo, hi;  // of a band
  };
  for (const Form& form :
       {Form{64, DType::kBF16, kUnbounded, kUnbounded}, Form{64, DType::kF16, -90, 70},
        Form{128, DType::kBF16, kUnbounded, 0}, Form{128, DType::kF16, kUnbounded, 30}}) {
    SCOPED_TRACE(form.D);
    LargeAttention all({.dtype = form.dtype,
                        .H = 26,
                        .Hkv = 13,
                        .Nq = 300,
                        .Nk = 330,
                        .D = form.D,
                        .Dv = form.D,
                        .lo = form.lo,
                        .hi = form.hi,
                        .lengths = {{300, 330}, {290, 330}, {257, 300}, {200, 110}}});
    RunAttention(TheDevice(), {&all});
    all.Expect();
    for (size_t b = 0; b < all.sizes.lengths.size(); ++b) {
      LargeAttention alone = all.Alone(b);
      RunAttention(TheDevice(), {&alone});
      EXPECT_TRUE(all.ResultsOf(b) == alone.ResultsOf(0)) << b;
      if (b > 1) {
        EXPECT_TRUE(OutOfLine(alone) == alone.ResultsOf(0)) << b;
      }
    }
  }
}

TEST(CudaAttend, RowsOfFloat32OutOfLineHaveTheSameBits) {
  for (const int64_t D : {64, 128}) {
    LargeAttention one({.dtype = DType::kF32,
                        .H = 2,
                        .Hkv = 1,
                        .Nq = 150,
                        .Nk = 170,
                        .D = D,
                        .Dv = D,
                        .lo = -100,
                        .hi = 40,
                        .lengths = {{140, 165}}});
    RunAttention(TheDevice(), {&one});
    EXPECT_TRUE(OutOfLine(one) == one.ResultsOf(0)) << D;
  }
}

// Values that are not finite make a block compute twice, whichever of its tiles sees them; a sink
// is a key of its own. A list with a problem whose blocks take one tile.
TEST(CudaAttend, ManyHeadsHaveTheBitsOfFewWithOddNumbersAndSinks) {
  LargeAttention all({.dtype = DType::kBF16,
                      .H = 36,
                      .Hkv = 36,
                      .Nq = 300,
                      .Nk = 300,
                      .D = 64,
                      .Dv = 64,
                      .hi = 0,
                      .lengths = {{300, 300}, {300, 270}, {260, 300}}}),
      small({.dtype = DType::kBF16,
             .H = 2,
             .Hkv = 2,
             .Nq = 70,
             .Nk = 200,
             .D = 64,
             .Dv = 64,
             .lengths = {{70, 200}}});
  PlainArray v = ReadView(all.problem().v);
  v.At({0, 3, 100, 7}) = INFINITY;
  v.At({1, 30, 265, 51}) = NAN;
  v.At({2, 0, 0, 0}) = -INFINITY;
  WriteView(v, all.problem().v);
  const auto run = [&](const std::vector<AttendProblem>& problems) {
    AttendArgs args{.params = {.scale = LargeAttention::kScale}, .problems = problems};
    std::vector<TestArray> sinks;
    for (AttendProblem& p : args.problems) {
      PlainArray values({p.q.shape[0], p.q.shape[1]});
      for (size_t i = 0; i < values.values.size(); ++i) {
        values.values[i] = static_cast<double>(i % static_cast<size_t>(p.q.shape[1]) % 5) - 2;
      }
      sinks.emplace_back(DType::kF32, values.shape);
      sinks.back().Write(values);
      p.terms.sinks = sinks.back().view();
    }
    RunOn(
        TheDevice(), [&](Stream& stream) { return TheDevice().Run(stream, args); },
        Planned::kAtLeast);
  };
  run({all.problem(), small.problem()});
  int64_t odd = 0;
  for (size_t b = 0; b < all.sizes.lengths.size(); ++b) {
    const LargeAttention alone = all.Alone(b);
    run({alone.problem()});
    const std::vector<double> got = all.ResultsOf(b), right = alone.ResultsOf(0);
    ASSERT_EQ(got.size(), right.size());
    int64_t different = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      different += got[i] != right[i] && !(std::isnan(got[i]) && std::isnan(right[i])) ? 1 : 0;
      odd += std::isnan(got[i]) || got[i] == INFINITY ? 1 : 0;
    }
    EXPECT_EQ(different, 0) << b;
  }
  // Rows that see the first one, of the first and the second sequence.
  EXPECT_EQ(odd, 200 + 35);
  const LargeAttention alone = small.Alone(0);
  run({alone.problem()});
  EXPECT_TRUE(small.ResultsOf(0) == alone.ResultsOf(0));
}

// Their order of tiles names some that the problem does not have.
TEST(CudaAttend, PatternsMayHaveMoreRowsThanThereAreQueries) {
  constexpr int64_t kRows = 330, kNk = 200;
  const auto sees = [](int64_t i, int64_t j) { return j <= i / 2 + 20; };
  AttendCase c({.B = 1,
                .H = 2,
                .Hkv = 1,
                .Nq = 130,
                .Nk = kNk,
                .D = 16,
                .Dv = 16,
                .mask = MaskKind::kGiven,
                .sees = sees},
               7);
  std::vector<char> of_pattern(kRows * kNk);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kNk; ++j) of_pattern[i * kNk + j] = sees(i, j) ? 1 : 0;
  }
  c.seqs[0].pattern = std::make_shared<Pattern>(DensePattern(kRows, kNk, of_pattern));
  for (const bool backward : {false, true}) RunAttend(TheDevice(), {&c}, backward);
  c.ExpectForward();
  c.ExpectBackward();
}

// Weights of 16 bits are shares of the largest key's weight, not of the sink's.
TEST(CudaAttend, ASinkMayOutweighAllKeys) {
  TermsSizes sizes{
      .B = 1, .H = 2, .Hkv = 1, .D = 16, .Dv = 64, .params = {.scale = 0.25}, .sinks = true};
  sizes.q = sizes.k = sizes.v = sizes.out = DType::kF16;
  TermsCase c(sizes, 3);
  PlainArray sinks = c.sinks.Read(), v = c.v.Read();
  for (double& sink : sinks.values) sink = 14;
  for (double& value : v.values) value *= 5000;  // so that the result is not small
  c.sinks.Write(sinks);
  c.v.Write(v);
  RunTerms(TheDevice(), {&c});
  const PlainArray truth = PlainAttendTerms<double>(c.sizes.params, c.Problem()).Forward().out;
  const PlainArray got = c.out.Read();
  double error = 0, size = 0;
  for (size_t i = 0; i < got.values.size(); ++i) {
    error += std::pow(got.values[i] - truth.values[i], 2);
    size += std::pow(truth.values[i], 2);
  }
  EXPECT_GT(size, 0);
  EXPECT_LT(std::sqrt(error / size), std::ldexp(1.0, -11));  // as rounding the result does
}

// Some queries see them: their scores are those of float32.
TEST(CudaAttend, InfiniteKeysGiveInfiniteScores) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TermsCase c({.B = 1, .H = 1, .Hkv = 1, .has_pattern = false, .alibi = dtype == DType::kF32}, 5);
    PlainArray k = c.k.Read(), q = c.q.Read();
    k.At({0, 0, 17, 3}) = -INFINITY;
    for (int64_t i = 0; i < 70; ++i) q.At({0, 0, i, 3}) = 1 + 0.01 * static_cast<double>(i);
    c.k.Write(k);
    c.q.Write(q);
    RunTerms(TheDevice(), {&c});
    c.ExpectForward();
  }
}

}  // namespace
}  // namespace attnd::testing
