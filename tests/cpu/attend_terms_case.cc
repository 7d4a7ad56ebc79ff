#include "tests/cpu/attend_terms_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/cpu/attend_case.h"
#include "tests/plain/random_lists.h"

namespace attnd::testing {
namespace {

constexpr int kLabels = 9;

// Every run of both directions as runs of one tile, with terms picked by the two tiles.
void SetTerms(Pattern* pattern, int64_t count) {
  const auto set = [&](TileRows* rows, bool by_query) {
    TileRows split;
    split.begin.push_back(0);
    for (int64_t row = 0; row < rows->rows(); ++row) {
      for (int64_t n = rows->begin[row]; n < rows->begin[row + 1]; ++n) {
        Run run = rows->runs[n];
        for (; run.count > 0; ++run.first, --run.count) {
          const int64_t pick = (by_query ? row + 2 * run.first : run.first + 2 * row) % (count + 1);
          const int32_t terms = pick == count ? Run::kNoTerms : static_cast<int32_t>(pick);
          split.runs.push_back({run.first, 1, run.mask, terms});
        }
      }
      split.begin.push_back(static_cast<int64_t>(split.runs.size()));
    }
    *rows = split;
  };
  set(&pattern->by_query, true);
  set(&pattern->by_key, false);
}

View Repeat(View view, const Shape& shape) {
  for (int i = 0; i < shape.rank; ++i) {
    if (view.shape[i] != shape[i]) view.stride[i] = 0;
  }
  view.shape = shape;
  return view;
}

void ExpectClose(const TestArray& ours, const PlainArray& plain, const PlainArray& truth) {
  TestArray rounded(ours.view().dtype, truth.shape);
  rounded.Write(plain);
  double largest = 0;
  for (double x : truth.values) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  }
  ExpectNoWorse(ours.Read(), rounded.Read(), truth, 1e-6 * largest + 1e-7);
  EXPECT_TRUE(ours.GuardsIntact());
}

}  // namespace

std::string TermsSizes::ToString() const {
  return absl::StrCat("H", H, "/", Hkv, " Nq", Nq, " Nk", Nk, "+", Nk2, " D", D, "/", Dv, " ",
                      Name(q), Name(k), Name(v), Name(out), " weighting",
                      static_cast<int>(params.weighting), " cap", params.softcap, " pattern",
                      has_pattern, per_head, padded, " gather", gathers_queries, gathers_keys,
                      " listed", listed, " constants", key_bias, tile_bias, " bias", bias,
                      Name(bias_dtype), bias_repeats, " alibi", alibi, " sinks", sinks, " table",
                      table, " weight", row_weight, " L", L, " offset", offset);
}

TermsCase::TermsCase(const TermsSizes& s, unsigned seed) : sizes(s), random_(seed) {
  std::vector<int64_t> nq, nk;
  for (int64_t b = 0; b < s.B; ++b) {
    AttendSeq seq;
    seq.nq = s.padded ? s.Nq - std::min<int64_t>(s.Nq, 3 + b * 30) : s.Nq;
    seq.nk = s.padded ? s.Nk - std::min<int64_t>(s.Nk, 5 + b * 40) : s.Nk;
    seq.offset = s.offset;
    seq.is_listed = s.listed > 0;
    if (s.has_pattern && !s.per_head) seq.pattern = RandomPattern(seq.nq, seq.nk);
    for (int64_t h = 0; h < s.H && s.has_pattern && s.per_head; ++h) {
      seq.head_patterns.push_back(RandomPattern(seq.nq, seq.nk));
    }
    for (int64_t h = 0; h < s.H && seq.Of(h) != nullptr; ++h) {
      seq.longest_list = std::max(seq.longest_list, LongestList(*seq.Of(h)));
    }
    nq.push_back(seq.nq);
    nk.push_back(seq.nk);
    seqs.push_back(std::move(seq));
  }
  const std::vector<int64_t> all(static_cast<size_t>(s.B), int64_t{1} << 40);
  q = Fill(s.q, {s.B, s.H, s.Nq, s.D}, nq);
  k = Fill(s.k, {s.B, s.Hkv, s.Nk, s.D}, nk);
  v = Fill(s.v, {s.B, s.Hkv, s.Nk, s.Dv}, nk);
  if (s.Nk2 > 0) {
    k2 = Fill(s.k, {s.B, s.Hkv, s.Nk2, s.D}, all);
    v2 = Fill(s.v, {s.B, s.Hkv, s.Nk2, s.Dv}, all);
  }
  out = TestArray(s.out, {s.B, s.H, s.Nq, s.Dv}, Memory::kPitched);
  const bool is_softmax = s.params.weighting == Weighting::kSoftmax;
  if (is_softmax) lse = TestArray(DType::kF32, {s.B, s.H, s.Nq}, Memory::kPitched);
  if (s.alibi) {
    slopes = Fill(DType::kF32, {s.B, s.H}, all);
    PlainArray values = slopes.Read();
    for (double& x : values.values) x *= s.slope;
    slopes.Write(values);
  }
  if (s.sinks) sinks = Fill(DType::kF32, {s.B, s.H}, all);
  if (s.table) table = Fill(DType::kF32, {s.B, s.H, s.Nq, kLabels}, nq);
  if (s.L > 0) {
    q_rel = Fill(s.q, {s.B, s.H, s.Nq, s.D}, nq);
    r = Fill(DType::kF32, {s.B, s.H, s.L, s.D}, all);
  }
  if (s.row_weight) row_weight = Fill(DType::kF32, {s.B, s.H, s.Nq}, nq);
  if (s.bias) FillBias();
}

TestArray TermsCase::Fill(DType dtype, const Shape& shape, const std::vector<int64_t>& count) {
  TestArray array(dtype, shape, Memory::kPitched);
  PlainArray values(shape, NAN);
  std::normal_distribution<double> normal;
  ForEachIndex(shape, [&](const std::vector<int64_t>& at) {
    if (at.size() < 3 || at[2] < count[at[0]]) values.At(at) = normal(random_);
  });
  array.Write(values);
  return array;
}

// NaN at pairs that no query sees.
void TermsCase::FillBias() {
  const Shape full = {sizes.B, sizes.H, sizes.Nq, sizes.Nk};
  Shape shape = full;
  for (int i = 0; i < 4; ++i) {
    if ((sizes.bias_repeats >> i & 1) != 0) shape.dims[i] = 1;
  }
  bias = TestArray(sizes.bias_dtype, shape, sizes.bias_memory);
  PlainArray values(shape, NAN);
  std::normal_distribution<double> normal;
  for (int64_t b = 0; b < sizes.B; ++b) {
    for (int64_t h = 0; h < sizes.H; ++h) {
      for (int64_t i = 0; i < sizes.Nq; ++i) {
        for (const PlainPair& pair : PlainVisible(Problem(), b, h, i)) {
          if (pair.key >= sizes.Nk) continue;
          values.At({b, h, i, pair.key}) = random_() % 8 == 0 ? -INFINITY : normal(random_);
        }
      }
    }
  }
  bias.Write(values);
}

std::shared_ptr<const Pattern> TermsCase::RandomPattern(int64_t nq, int64_t nk) {
  if (sizes.listed > 0) {
    return std::make_shared<Pattern>(
        RandomLists(&random_, sizes.Nq, sizes.Nk, nq, nk, sizes.listed));
  }
  std::vector<int32_t> query_rows, key_rows;
  if (sizes.gathers_queries) {
    // Some rows are left out, some slots are empty.
    query_rows.resize(static_cast<size_t>(nq));
    std::iota(query_rows.begin(), query_rows.end(), 0);
    std::shuffle(query_rows.begin(), query_rows.end(), random_);
    for (size_t s = 0; s < query_rows.size(); s += 7) query_rows[s] = -1;
    query_rows.insert(query_rows.end(), 3, -1);
  }
  if (sizes.gathers_keys) {
    // A stretch in order, which needs no gathering, then anything.
    for (int32_t row = 0; row < std::min<int64_t>(nk, 70); ++row) key_rows.push_back(row);
    for (int64_t n = 0; n < nk + sizes.Nk2; ++n) {
      const int64_t pick = static_cast<int64_t>(random_() % (nk + sizes.Nk2 + 10));
      const int64_t second = sizes.Nk + pick - nk;
      key_rows.push_back(static_cast<int32_t>(pick < nk               ? pick
                                              : pick < nk + sizes.Nk2 ? second
                                                                      : -1));
    }
  }
  const int64_t Nq = sizes.gathers_queries ? static_cast<int64_t>(query_rows.size()) : nq;
  const int64_t Nk = sizes.gathers_keys ? static_cast<int64_t>(key_rows.size()) : nk;
  std::vector<char> sees(static_cast<size_t>(Nq * Nk));
  for (int64_t i = 0; i < Nq; ++i) {
    for (int64_t j = 0; j < Nk; ++j) {
      // Tiles of nothing, of everything, of some pairs and of those near a diagonal; row 5 sees
      // nothing.
      const int64_t kind = (i / kTile + 2 * (j / kTile)) % 5;
      const bool is_near = std::abs(i % kTile - j % kTile - 9) < 14;
      sees[i * Nk + j] =
          i != 5 && (kind < 2 || (kind == 2 && random_() % 3 != 0) || (kind == 3 && is_near));
    }
  }
  Pattern pattern = DensePattern(Nq, Nk, sees);
  pattern.query_rows = query_rows;
  pattern.key_rows = key_rows;
  std::normal_distribution<float> normal;
  if (sizes.key_bias) {
    for (int64_t s = 0; s < Nk; ++s) pattern.key_bias.push_back(normal(random_));
  }
  if (sizes.tile_bias || sizes.table) {
    for (int n = 0; n < 3; ++n) {
      TileTerms terms;
      for (int64_t at = 0; at < kTile * kTile; ++at) {
        if (sizes.tile_bias && n != 1) terms.bias.push_back(normal(random_));
        if (!sizes.table || n == 2) continue;
        const auto label = static_cast<uint16_t>(random_() % (kLabels + 1));
        terms.labels.push_back(label == kLabels ? TileTerms::kNoLabel : label);
      }
      pattern.terms.push_back(std::move(terms));
    }
    SetTerms(&pattern, 3);
  }
  return std::make_shared<Pattern>(std::move(pattern));
}

AttendProblem TermsCase::Problem() const {
  AttendProblem p = {.q = q.view(),
                     .k = k.view(),
                     .v = v.view(),
                     .out = out.view(),
                     .lse = lse.view(),
                     .seqs = seqs};
  p.terms = {.k2 = k2.view(),
             .v2 = v2.view(),
             .bias = bias.view(),
             .alibi_slopes = slopes.view(),
             .sinks = sinks.view(),
             .table = table.view(),
             .q_rel = q_rel.view(),
             .r = r.view(),
             .row_weight = row_weight.view()};
  if (bias.view().given()) {
    p.terms.bias = Repeat(bias.view(), {sizes.B, sizes.H, sizes.Nq, sizes.Nk});
  }
  return p;
}

void TermsCase::ExpectForward() const {
  const AttendProblem p = Problem();
  const PlainAttendOut truth = PlainAttendTerms<double>(sizes.params, p).Forward();
  const PlainAttendOut plain = PlainAttendTerms<float>(sizes.params, p).Forward();
  ExpectClose(out, plain.out, truth.out);
  if (lse.view().given()) ExpectClose(lse, plain.lse, truth.lse);
}

std::vector<std::byte> TermsCase::Outputs() const {
  std::vector<std::byte> bytes = out.Bytes();
  if (!lse.view().given()) return bytes;
  for (std::byte b : lse.Bytes()) bytes.push_back(b);
  return bytes;
}

void RunTerms(Device& device, const std::vector<const TermsCase*>& cases) {
  std::vector<AttendProblem> problems;
  for (const TermsCase* c : cases) {
    problems.push_back(c->Problem());
    CountBytes(&problems.back().seqs);
  }
  const AttendParams params = cases.at(0)->sizes.params;
  std::vector<AttendSeq> seqs;
  for (const AttendProblem& p : problems) seqs.insert(seqs.end(), p.seqs.begin(), p.seqs.end());
  RunOn(
      device,
      [&](Stream& stream) {
        return device.Run(stream, AttendArgs{.params = params, .problems = problems});
      },
      StoresTiles(device, seqs) ? Planned::kAtLeast : Planned::kExactly);
}

}  // namespace attnd::testing
