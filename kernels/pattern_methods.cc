#include "kernels/pattern_methods.h"

#include <cmath>

namespace attnd {

std::vector<TensorInfo> PatternInputs() {
  const auto unserved = [](std::string name, std::string shape, std::string dtype, std::string help,
                           bool differentiable = false) {
    return TensorInfo{.name = name,
                      .shape = shape,
                      .dtype = dtype,
                      .help = help,
                      .differentiable = differentiable,
                      .served = false};
  };
  return {
      {"q", "[B,H,Nq,D]", "float", "queries", /*required=*/true, /*differentiable=*/true},
      {"k", "[B,Hkv,Nk,D]", "float", "keys; Hkv divides H", /*required=*/true,
       /*differentiable=*/true},
      {"v", "[B,Hkv,Nk,Dv]", "float", "values", /*required=*/true, /*differentiable=*/true},
      {"q_lengths", "[B]", "int32", "0..Nq: rows beyond give out = 0, lse = -inf"},
      {"kv_lengths", "[B]", "int32", "0..Nk: keys beyond are never seen"},
      {"causal_offset", "[B]", "int32", "position of query 0; default Nk - Nq"},
      unserved("segment_ids_q", "[B,Nq]", "int32", "visible only if equal and >= 0"),
      unserved("segment_ids_kv", "[B,Nk]", "int32", "visible only if equal and >= 0"),
      unserved("cu_seqlens_q", "[S+1]", "int32", "packed sequences"),
      unserved("cu_seqlens_k", "[S+1]", "int32", "packed sequences"),
      unserved("bias", "[B,H,Nq,Nk]", "float", "added to the scores; broadcasts", true),
      unserved("alibi_slopes", "[H] or [B,H]", "float", "slopes of ALiBi", true),
      unserved("sink_logits", "[H]", "float", "one more key of value 0", true),
  };
}

std::vector<TensorInfo> PatternOutputs() {
  return {{"out", "[B,H,Nq,Dv]", "float", "the weighted mean of the values that a query sees"},
          {"lse", "[B,H,Nq]", "float32", "natural log of the sum of exp(score); -inf: no key"}};
}

Support PatternSupport() {
  return {.causal = true, .lengths = true, .cross = true, .gqa = true, .lse = true};
}

Outputs PatternAttend(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const SourceOf& source_of) {
  AttendParams params;
  AttendRows rows_of;
  // D is the same in all problems of a batch.
  params.scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(in.problems[0].D)));
  for (const ProblemShape& problem : in.problems) {
    std::vector<AttendRow>& rows = rows_of.emplace_back();
    rows.reserve(problem.B);
    int64_t last_offset = 0;
    for (int64_t b = 0; b < problem.B; ++b) {
      const Lengths lengths{problem.Int("q_lengths", b, problem.Nq),
                            problem.Int("kv_lengths", b, problem.Nk)};
      const int64_t offset = problem.Int("causal_offset", b, problem.Nk - problem.Nq);
      // Describing a pattern costs much more than copying a row, and most rows are alike.
      if (b > 0 && rows.back().nq == lengths.nq && rows.back().nk == lengths.nk &&
          offset == last_offset) {
        rows.push_back(AttendRow(rows.back()));
        continue;
      }
      last_offset = offset;
      rows.push_back(ops.Row(lengths.nq, lengths.nk, source_of(problem, offset, lengths)));
    }
  }
  AttendOut attended = ops.Attend(in.q, in.k, in.v, params, rows_of);
  return {.out = std::move(attended.out), .lse = std::move(attended.lse)};
}

}  // namespace attnd
