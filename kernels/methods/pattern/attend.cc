#include "kernels/methods/pattern/attend.h"

#include <cmath>

#include "kernels/methods/pattern/data.h"
#include "kernels/methods/pattern/seqs.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

Tensor Slopes(Ops& ops, const Inputs& in) {
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> values;
  for (const ProblemShape& problem : in.problems) {
    shapes.push_back({1, problem.H});
    values.push_back(ops.stream().is_dry() ? std::vector<float>() : StandardSlopes(problem.H));
  }
  return ops.FromHost(shapes, values);
}

AttendTensors TermsOf(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const PatternExtras& extras) {
  AttendTensors terms{.table = extras.table, .row_weight = extras.row_weight};
  if (const Tensor bias = Sent(in, "bias"); !bias.empty()) terms.bias = WithRank(ops, bias, 4);
  if (const Tensor sinks = Sent(in, "sink_logits"); !sinks.empty()) {
    terms.sinks = WithRank(ops, sinks, 2);
  }
  if (const Tensor slopes = Sent(in, "alibi_slopes"); !slopes.empty()) {
    terms.alibi_slopes = WithRank(ops, slopes, 2);
  } else if (options.alibi) {
    terms.alibi_slopes = Slopes(ops, in);
  }
  if (!terms.alibi_slopes.empty() && extras.alibi_unit != 1) {
    terms.alibi_slopes = ops.Affine(terms.alibi_slopes, 1 / extras.alibi_unit);
  }
  return terms;
}

}  // namespace

void AddPairs(const Outputs& more, Outputs* sum) {
  sum->visible_pairs.resize(more.visible_pairs.size());
  for (size_t p = 0; p < more.visible_pairs.size(); ++p) {
    sum->visible_pairs[p] += more.visible_pairs[p];
  }
}

std::vector<float> StandardSlopes(int64_t H) {
  int64_t c = 1;
  while (2 * c <= H) c *= 2;
  std::vector<float> slopes;
  for (int64_t h = 0; h < H; ++h) {
    const auto steps = static_cast<double>(h < c ? 8 * (h + 1) : 4 * (2 * (h - c) + 1));
    slopes.push_back(static_cast<float>(std::exp2(-steps / static_cast<double>(c))));
  }
  return slopes;
}

namespace {

// A result that may be a part of a merge.
struct Attended {
  AttendOut result;
  std::vector<PairTotal> visible_pairs;

  Outputs ToOutputs() && {
    return {.out = result.out, .lse = result.lse, .visible_pairs = std::move(visible_pairs)};
  }
};

Attended AttendWith(Ops& ops, const Inputs& in, const PatternOptions& options,
                    const PartsOfSeq& parts_of, const PatternExtras& extras,
                    const AttendTensors& terms) {
  // D is the same in all problems of a batch.
  const double D = static_cast<double>(in.problems[0].D);
  const AttendParams params{.scale = options.scale.value_or(1 / std::sqrt(D)),
                            .softcap = options.logit_softcap,
                            .weighting = extras.weighting,
                            .cap_table = extras.cap_table};
  const PatternSeqs seqs = SeqsOf(ops, in, options.causal, extras.seqs_differ, parts_of);
  if (!ops.status().ok()) return {};
  return {ops.Attend(in.q, in.k, in.v, params, seqs.parts, terms, extras.dtype),
          seqs.visible_pairs};
}

}  // namespace

Outputs PatternAttend(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const PartsOfSeq& parts_of, const PatternExtras& extras) {
  return AttendWith(ops, in, options, parts_of, extras, TermsOf(ops, in, options, extras))
      .ToOutputs();
}

Outputs AttendLocalAndGlobal(Ops& ops, const Inputs& in, const PatternOptions& options,
                             const PartsOfSeq& local, const PartsOfSeq& global,
                             PatternExtras extras) {
  extras.dtype = DType::kF32;
  AttendTensors terms = TermsOf(ops, in, options, extras);
  const Attended local_rows = AttendWith(ops, in, options, local, extras, terms);
  Inputs own = in;
  terms.sinks = {};  // the first call has them for all rows
  for (const auto& [name, tensor] : {std::pair("q_global", &own.q), std::pair("k_global", &own.k),
                                     std::pair("v_global", &own.v)}) {
    if (const Tensor sent = Sent(in, name); !sent.empty()) *tensor = sent;
  }
  const Attended global_rows = AttendWith(ops, own, options, global, extras, terms);
  if (!ops.status().ok()) return {};
  // A row sees keys in one of the two and, if it is global, sinks in the other.
  Attended merged{ops.Merge({local_rows.result, global_rows.result}, in.q[0].dtype),
                  local_rows.visible_pairs};
  Outputs outputs = std::move(merged).ToOutputs();
  AddPairs({.visible_pairs = global_rows.visible_pairs}, &outputs);
  return outputs;
}

Tensor ValidQueries(Ops& ops, const Inputs& in) {
  const HostInts ids(ops, in, "segment_ids_q", 2);
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> valid;
  for (size_t p = 0; p < in.problems.size(); ++p) {
    const ProblemShape& problem = in.problems[p];
    shapes.push_back({problem.B, 1, problem.Nq, 1});
    std::vector<float>& of_problem = valid.emplace_back();
    for (int64_t b = 0; b < problem.B && !ops.stream().is_dry(); ++b) {
      const std::span<const int32_t> id = ids.OfSeq(p, b);
      const int64_t nq = problem.Int("q_lengths", b, problem.Nq);
      for (int64_t i = 0; i < problem.Nq; ++i) {
        of_problem.push_back(i < nq && (id.empty() || id[i] >= 0) ? 1.0f : 0.0f);
      }
    }
  }
  return ops.Select(ops.FromHost(shapes, valid), in.q, NumberLike(ops, 0, in.q));
}

Tensor LabelScores(Ops& ops, const Tensor& q, const Tensor& E, const Tensor& beta, int64_t V) {
  std::vector<Shape> added, scores;
  for (size_t p = 0; p < q.size(); ++p) {
    const Shape& s = q[p].shape;
    added.push_back({1, s[1], 1, V});
    scores.push_back({s[0], s[1], s[2], V});
  }
  Tensor bias;
  if (!beta.empty()) bias = ops.Reshape(ops.Transpose(beta, 0, 1), added);
  if (E.empty()) {
    return ops.Copy(ops.Expand(bias.empty() ? ops.Constant(0, added) : bias, scores));
  }
  const Tensor of_heads = WithRank(ops, ops.Transpose(E, 0, 1), 4);  // [1,H,V,D]
  return ops.MatMul(q, ops.Transpose(of_heads, 2, 3), {}, bias);
}

}  // namespace attnd
