// Attend with terms, parts and a second source, column mass, merge and scan of Ops, forward and
// gradient, on the CPU device: a table of formulas.
#include "kernels/pattern/builder.h"
#include "kernels/pattern/predicates/sets.h"
#include "kernels/pattern/predicates/windows.h"
#include "kernels/pattern/shapes/etc.h"
#include "kernels/pattern/shapes/longformer.h"
#include "kernels/pattern/shapes/second_keys.h"
#include "kernels/pattern/shapes/strided.h"
#include "kernels/pattern/shapes/windows.h"
#include "tests/ops/ops_on_cpu_case.h"

namespace attnd::testing {
namespace {

// [B,H,n,D] and its keys and values, with two query heads a kv head.
Shape Queries(int64_t n) { return {2, 2, n, 9}; }
Shape Keys(int64_t n) { return {2, 1, n, 9}; }
const ShapeOf kSecond = Fixed({2, 1, 6, 9});

// The pattern of a sequence; the last key and the last query both have position n - 1.
using SeqOf = std::function<AttendSeq(Ops& ops, int64_t nq, int64_t nk)>;

AttendSeqs SeqsOf(Ops& ops, const Tensor& q, const Tensor& k, const SeqOf& seq_of) {
  AttendSeqs seqs;
  for (size_t p = 0; p < q.size(); ++p) {
    std::vector<AttendSeq>& list = seqs.emplace_back();
    for (int64_t b = 0; b < q[p].shape[0]; ++b) {
      list.push_back(seq_of(ops, q[p].shape[2], k[p].shape[2]));
      list.back().offset = k[p].shape[2] - q[p].shape[2];
    }
  }
  return seqs;
}

AttendSeq Everything(Ops&, int64_t nq, int64_t nk) {
  return {.nq = nq, .nk = nk, .visible_pairs = static_cast<double>(nq * nk)};
}

AttendSeq Causal(Ops& ops, int64_t nq, int64_t nk) {
  return ops.Seq(nq, nk, BandSource(nq, nk, kUnbounded, nk - nq));
}

// Half of the sequence is padding.
AttendSeq Short(Ops& ops, int64_t nq, int64_t nk) {
  return ops.Seq(nq / 2, nk / 2, BandSource(nq, nk, -20, 3, {nq / 2, nk / 2}));
}

AttendSeq ByHead(Ops& ops, int64_t nq, int64_t nk) {
  AttendSeq seq = Causal(ops, nq, nk);
  seq.head_patterns = {seq.pattern, ops.Seq(nq, nk, BandSource(nq, nk, -9, 9)).pattern};
  seq.pattern = nullptr;
  return seq;
}

// Distances up to 3 either way have labels, the rest share one.
AttendSeq Labelled(Ops& ops, int64_t nq, int64_t nk) {
  const PatternSeq row{nq, nk, {nq, nk}, nk - nq, /*causal=*/false};
  return ops.Seq(
      nq, nk, EtcSource(row, {.radius = 20, .is_labelled = true, .max_distance = 3}, Half::kLocal));
}

// A window and, gathered behind the keys, four rows of the second source.
AttendSeq WithSecond(Ops& ops, int64_t nq, int64_t nk) {
  SecondKeys second;
  for (int64_t i = 0; i < 4; ++i) second.rows.push_back(static_cast<int32_t>(nk + i));
  second.counts = {4.0 * static_cast<double>(nq), 1};
  const PatternSeq row{nq, nk, {nq, nk}, nk - nq, /*causal=*/false};
  const Window window{.block = 1, .before = 3, .after = 2, .offset = nk - nq};
  AttendSeq result = ops.Seq(nq, nk, WithSecondKeys(row, window, second));
  result.gathers = true;
  return result;
}

Out All(const AttendOut& out) { return out.lse.empty() ? Out{out.out} : Out{out.out, out.lse}; }

// Terms made of the inputs behind q, k and v.
using TermsOf = std::function<AttendTensors(Ops& ops, In in)>;

FormulaCase Attend(const std::string& name, const std::vector<ShapeOf>& terms, const SeqOf& seq_of,
                   const TermsOf& terms_of,
                   const AttendParams& params = {.scale = 0.3, .softcap = 2}) {
  std::vector<ShapeOf> inputs = {Queries, Keys, Keys};
  inputs.insert(inputs.end(), terms.begin(), terms.end());
  return {name, inputs, [=](Ops& ops, In in) {
            const AttendSeqs seqs = SeqsOf(ops, in[0], in[1], seq_of);
            return All(ops.Attend(in[0], in[1], in[2], params, seqs, terms_of(ops, in)));
          }};
}

// Small slopes, as with many heads: a distance of 131 keys costs less than 1/4. The gradient sums
// terms of either sign times the distance over all pairs; a factor of 1/512 gives them unit size.
AttendTensors Slopes(Ops& ops, In in) { return {.alibi_slopes = ops.Affine(in[3], 1.0 / 512)}; }

Cases Attends() {
  const ShapeOf heads = Fixed({1, 2});
  const TermsOf none = [](Ops&, In) { return AttendTensors{}; };
  const TermsOf second = [](Ops&, In in) { return AttendTensors{.k2 = in[3], .v2 = in[4]}; };
  Cases cases = {
      Attend("All", {}, Everything, none),
      Attend("Short", {}, Short, none),
      Attend("PatternsOfHeads", {}, ByHead, none),
      Attend("Slopes", {heads}, Causal, Slopes),
      Attend("Sinks", {Fixed({2, 2})}, Causal,
             [](Ops&, In in) { return AttendTensors{.sinks = in[3]}; }),
      Attend("Table", {[](int64_t n) {
               return Shape{2, 2, n, 9};
             }},
             Labelled, [](Ops&, In in) { return AttendTensors{.table = in[3]}; }),
      Attend("Relative", {Queries, Fixed({1, 1, 7, 9})}, Causal,
             [](Ops&, In in) { return AttendTensors{.q_rel = in[3], .r = in[4]}; }),
      Attend("SecondSource", {kSecond, kSecond}, WithSecond, second),
  };
  const ShapeOf biases[] = {[](int64_t n) {
                              return Shape{2, 2, n, n};
                            },
                            [](int64_t n) {
                              return Shape{1, 2, n, 1};
                            },
                            [](int64_t n) {
                              return Shape{2, 1, 1, n};
                            }};
  for (int i = 0; i < 3; ++i) {
    cases.push_back(Attend(Numbered("Bias", {i}), {biases[i]}, Causal,
                           [](Ops&, In in) { return AttendTensors{.bias = in[3]}; }));
    cases.push_back(
        Attend(Numbered("BiasAndSecondSource", {i}), {kSecond, kSecond, biases[i]}, WithSecond,
               [](Ops&, In in) { return AttendTensors{.k2 = in[3], .v2 = in[4], .bias = in[5]}; }));
  }
  // Every second case has a pattern that gathers.
  for (int i = 1; i <= static_cast<int>(Weighting::kSigmoid); ++i) {
    const AttendParams params{.scale = 0.3, .weighting = static_cast<Weighting>(i)};
    cases.push_back(i % 2 == 0 ? Attend(Numbered("Weighting", {i}), {heads}, Causal, Slopes, params)
                               : Attend(Numbered("WeightingOfSecondSource", {i}),
                                        {kSecond, kSecond}, WithSecond, second, params));
  }
  cases.push_back(Attend("FewQueries", {heads}, Causal, Slopes));
  cases.back().inputs[0] = Fixed(Queries(5));
  cases.push_back(Attend("FewKeys", {heads}, Causal, Slopes));
  cases.back().inputs[1] = cases.back().inputs[2] = Fixed(Keys(5));
  return cases;
}

// The parts of Child et al. 2019, of which the second gathers.
std::vector<AttendSeqs> Strided(Ops& ops, const Tensor& q, const Tensor& k, bool causal) {
  std::vector<AttendSeqs> parts;
  for (size_t part = 0; part < 2; ++part) {
    parts.push_back(SeqsOf(ops, q, k, [&](Ops&, int64_t nq, int64_t nk) {
      const PatternSeq row{nq, nk, {nq, nk}, nk - nq, causal};
      AttendSeq result = ops.Seq(nq, nk, StridedParts(row, 8, Half::kBoth).at(part));
      const auto& pattern = result.pattern;
      result.gathers =
          pattern != nullptr && !(pattern->query_rows.empty() && pattern->key_rows.empty());
      return result;
    }));
  }
  return parts;
}

Cases PartsAndMasses() {
  Cases cases;
  for (bool causal : {false, true}) {
    cases.push_back({causal ? "CausalParts" : "Parts",
                     {Queries, Keys, Keys, Fixed({1, 2}), Fixed({2, 2})},
                     [causal](Ops& ops, In in) {
                       return All(ops.Attend(
                           in[0], in[1], in[2], {.scale = 0.3}, Strided(ops, in[0], in[1], causal),
                           {.alibi_slopes = ops.Affine(in[3], 1.0 / 512), .sinks = in[4]}));
                     }});
  }
  cases.push_back({"Merge",
                   {Queries,
                    [](int64_t n) {
                      return Shape{2, 2, n};
                    },
                    Queries,
                    [](int64_t n) {
                      return Shape{2, 2, n};
                    }},
                   [](Ops& ops, In in) {
                     return All(ops.Merge({{in[0], in[1]}, {in[2], in[3]}, {in[2], in[1]}}));
                   }});
  const std::pair<const char*, SeqOf> patterns[] = {
      {"All", Everything}, {"Causal", Causal}, {"Short", Short}, {"PatternsOfHeads", ByHead}};
  for (const auto& [name, seq_of] : patterns) {
    cases.push_back({std::string("ColumnMassOf") + name,
                     {Queries, Keys, Keys, Fixed({2, 2})},
                     [seq_of = seq_of](Ops& ops, In in) {
                       const AttendSeqs seqs = SeqsOf(ops, in[0], in[1], seq_of);
                       const AttendParams params{.scale = 0.7};
                       const AttendTensors terms{.sinks = in[3]};
                       const AttendOut out = ops.Attend(in[0], in[1], in[2], params, seqs, terms);
                       return Out{out.out, ops.ColumnMass(in[0], in[1], params, seqs, out, terms)};
                     }});
  }
  cases.push_back({"ColumnMassBesideASecondSource",
                   {Queries, Keys, Keys, kSecond, kSecond},
                   [](Ops& ops, In in) {
                     const AttendSeqs seqs = SeqsOf(ops, in[0], in[1], WithSecond);
                     const AttendParams params{.scale = 0.7};
                     const AttendTensors terms{.k2 = in[3], .v2 = in[4]};
                     const AttendOut out = ops.Attend(in[0], in[1], in[2], params, seqs, terms);
                     return Out{out.out, ops.ColumnMass(in[0], in[1], params, seqs, out, terms)};
                   }});
  return cases;
}

ScanSeqs ScanSeqsOf(const Tensor& q) {
  ScanSeqs seqs;
  for (size_t p = 0; p < q.size(); ++p) {
    const int64_t n = q[p].shape[2];
    seqs.push_back({{.nq = n, .nk = n}, {.nq = n, .nk = n / 2}});
  }
  return seqs;
}

Cases Scans() {
  Cases cases;
  for (FeatureMap map : {FeatureMap::kEluPlusOne, FeatureMap::kSigmoid, FeatureMap::kExp}) {
    for (bool causal : {false, true}) {
      cases.push_back({Numbered(causal ? "Causal" : "All", {static_cast<int>(map)}),
                       {Queries, Keys, Keys},
                       [=](Ops& ops, In in) {
                         const ScanOut out = ops.Scan(in[0], in[1], in[2],
                                                      {.map = map, .causal = causal, .scale = 0.5},
                                                      ScanSeqsOf(in[0]));
                         return Out{out.out, out.lse};
                       }});
    }
  }
  // One decay a key, and one a feature.
  for (int64_t width : {1, 9}) {
    for (ScanRule rule : {ScanRule::kSum, ScanRule::kDelta}) {
      const bool is_sum = rule == ScanRule::kSum;
      cases.push_back({Numbered(is_sum ? "WithState" : "DeltaWithState", {static_cast<int>(width)}),
                       {Queries, Keys, Keys,
                        [=](int64_t n) {
                          return Shape{2, 1, n, width};
                        },
                        [](int64_t n) {
                          return Shape{1, 1, n};
                        },
                        Fixed({1, 1, 9, 9}), Fixed({2, 1, 9})},
                       [=](Ops& ops, In in) {
                         const ScanParams params{.rule = rule,
                                                 .causal = true,
                                                 .den = is_sum ? ScanDen::kAdd : ScanDen::kOne,
                                                 .scale = 0.5};
                         // Keys below 1 and beta small: what delta multiplies the state with
                         // shrinks. z0 > 0 keeps the normaliser far from 0.
                         const ScanTensors tensors{
                             .log_decay = ops.Apply(ElementOp::kLogSigmoid, in[3]),
                             .beta = ops.Apply(ElementOp::kSigmoid, ops.Affine(in[4], 1, -1)),
                             .s0 = in[5],
                             .z0 = ops.Affine(in[6], 0.2, 0.5),
                             .final_state = true};
                         const ScanOut out = ops.Scan(in[0], ops.Affine(in[1], 0.3, -1), in[2],
                                                      params, ScanSeqsOf(in[0]), tensors);
                         return Out{out.out, out.lse, out.s_out, out.z_out};
                       }});
    }
  }
  return cases;
}

class AttentionOnCpu : public ::testing::TestWithParam<FormulaCase> {};

TEST_P(AttentionOnCpu, RunsOnEveryInstructionSetAsInPlainLoops) {
  ExpectAsInPlainLoops(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Attend, AttentionOnCpu, ::testing::ValuesIn(Attends()), NameOf);
INSTANTIATE_TEST_SUITE_P(Parts, AttentionOnCpu, ::testing::ValuesIn(PartsAndMasses()), NameOf);
INSTANTIATE_TEST_SUITE_P(Scan, AttentionOnCpu, ::testing::ValuesIn(Scans()), NameOf);

}  // namespace
}  // namespace attnd::testing
