#include "kernels/pattern_methods.h"

#include <cmath>

#include "kernels/pattern_rows.h"

namespace attnd {
namespace {

const Tensor* Find(const Inputs& in, const std::string& name) {
  const auto found = in.tensors.find(name);
  return found == in.tensors.end() ? nullptr : &found->second;
}

Tensor Slopes(Ops& ops, const Inputs& in) {
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> values;
  for (const ProblemShape& problem : in.problems) {
    shapes.push_back({1, problem.H});
    values.push_back(StandardSlopes(problem.H));
  }
  return ops.FromHost(shapes, values);
}

AttendTensors TermsOf(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const PatternExtras& extras) {
  AttendTensors terms{.table = extras.table, .row_weight = extras.row_weight};
  if (const Tensor* bias = Find(in, "bias")) terms.bias = WithRank(ops, *bias, 4);
  if (const Tensor* sinks = Find(in, "sink_logits")) terms.sinks = WithRank(ops, *sinks, 2);
  if (const Tensor* slopes = Find(in, "alibi_slopes")) {
    terms.alibi_slopes = WithRank(ops, *slopes, 2);
  } else if (options.alibi) {
    terms.alibi_slopes = Slopes(ops, in);
  }
  if (!terms.alibi_slopes.empty() && extras.alibi_unit != 1) {
    terms.alibi_slopes = ops.Affine(terms.alibi_slopes, 1 / extras.alibi_unit);
  }
  return terms;
}

}  // namespace

Tensor WithRank(Ops& ops, const Tensor& x, int rank) {
  std::vector<Shape> shapes;
  for (size_t p = 0; p < x.size(); ++p) {
    Shape shape;
    shape.rank = rank;
    const int missing = rank - x[p].shape.rank;
    for (int i = 0; i < x[p].shape.rank; ++i) shape.dims[missing + i] = x[p].shape[i];
    shapes.push_back(shape);
  }
  return shapes == ShapesOf(x) ? x : ops.Reshape(x, shapes);
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

std::vector<TensorInfo> PatternInputs(Lacks lacks, std::vector<TensorInfo> own) {
  std::vector<TensorInfo> inputs = {
      {"q", "[B,H,Nq,D]", "float", "queries", /*required=*/true, /*differentiable=*/true},
      {"k", "[B,Hkv,Nk,D]", "float", "keys; Hkv divides H", /*required=*/true,
       /*differentiable=*/true},
      {"v", "[B,Hkv,Nk,Dv]", "float", "values", /*required=*/true, /*differentiable=*/true},
      {"q_lengths", "[B]", "int32", "0..Nq: rows beyond give out = 0, lse = -inf"},
      {"kv_lengths", "[B]", "int32", "0..Nk: keys beyond are never seen"},
  };
  if (!lacks.cross) {
    inputs.push_back({"causal_offset", "[B]", "int32", "position of query 0; default Nk - Nq"});
  }
  inputs.push_back(
      {"segment_ids_q", "[B,Nq]", "int32", "visible only if equal and >= 0; with segment_ids_kv"});
  inputs.push_back(
      {"segment_ids_kv", "[B,Nk]", "int32", "visible only if equal and >= 0; with segment_ids_q"});
  if (!lacks.packed) {
    inputs.push_back(
        {"cu_seqlens_q", "[S+1]", "int32",
         "S packed sequences, B = 1: from 0 to Nq, non-decreasing; with cu_seqlens_k"});
    inputs.push_back(
        {"cu_seqlens_k", "[S+1]", "int32", "from 0 to Nk, non-decreasing; with cu_seqlens_q"});
  }
  inputs.push_back({.name = "bias",
                    .shape = "broadcastable to [B,H,Nq,Nk]",
                    .dtype = "float",
                    .help = "added to the scores; -inf hides a pair",
                    .differentiable = true});
  if (!lacks.alibi) {
    inputs.push_back({.name = "alibi_slopes",
                      .shape = "[H] or [B,H]",
                      .dtype = "float",
                      .help = "adds -slope |p - j|",
                      .differentiable = true});
  }
  if (!lacks.sinks) {
    inputs.push_back({.name = "sink_logits",
                      .shape = "[H]",
                      .dtype = "float",
                      .help = "one more key of this score and value 0",
                      .differentiable = true});
  }
  inputs.insert(inputs.end(), own.begin(), own.end());
  return inputs;
}

std::vector<TensorInfo> PatternOutputs(Lacks lacks) {
  std::vector<TensorInfo> outputs = {
      {"out", "[B,H,Nq,Dv]", "float", "the weighted mean of the values that a query sees"}};
  if (!lacks.lse) {
    outputs.push_back({"lse", "[B,H,Nq]", "float32",
                       "natural log of the sum of exp(score), sinks included; -inf: no key"});
  }
  return outputs;
}

Support PatternSupport(Lacks lacks) {
  return {.causal = !lacks.causal,
          .lengths = true,
          .cross = !lacks.cross,
          .gqa = true,
          .lse = !lacks.lse};
}

Outputs PatternAttend(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const PartsOfRow& parts_of, const PatternExtras& extras) {
  // D is the same in all problems of a batch.
  const double D = static_cast<double>(in.problems[0].D);
  const AttendParams params{.scale = options.scale.value_or(1 / std::sqrt(D)),
                            .softcap = options.logit_softcap,
                            .weighting = extras.weighting,
                            .cap_table = extras.cap_table};
  const PatternRows rows = RowsOf(ops, in, options.causal, extras.rows_differ, parts_of);
  const AttendTensors terms = TermsOf(ops, in, options, extras);
  if (!ops.status().ok()) return {};
  AttendOut attended = ops.Attend(in.q, in.k, in.v, params, rows.parts, terms, extras.dtype);
  return {.out = std::move(attended.out),
          .lse = std::move(attended.lse),
          .visible_pairs = rows.visible_pairs};
}

Outputs MergeRows(Ops& ops, const Outputs& a, const Outputs& b, DType dtype) {
  const AttendOut merged = ops.Merge({{a.out, a.lse}, {b.out, b.lse}}, dtype);
  Outputs outputs{.out = merged.out, .lse = merged.lse, .visible_pairs = a.visible_pairs};
  for (size_t p = 0; p < b.visible_pairs.size(); ++p) {
    outputs.visible_pairs[p] += b.visible_pairs[p];
  }
  return outputs;
}

}  // namespace attnd
