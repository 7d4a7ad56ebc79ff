// Packed sequences (cu_seqlens) of the pattern family: every sequence is a problem of its own, a
// view of the packed tensors; only results are copied. So positions, offsets and draws are local
// without a word about it in any method, and equal lengths share their cached pattern.
#include "kernels/pattern_methods.h"

namespace attnd {
namespace {

constexpr char kCuQ[] = "cu_seqlens_q", kCuK[] = "cu_seqlens_k";

// `N`: Nq or Nk. Without data the first sequence holds everything, which bounds every other cut.
RowCuts CutsOf(const Inputs& in, absl::string_view name, int64_t ProblemShape::*N) {
  RowCuts cuts;
  for (const ProblemShape& problem : in.problems) {
    std::vector<int64_t>& of_problem = cuts.emplace_back(1, 0);
    const int64_t n = problem.Find(name)->shape[0];
    for (int64_t s = 1; s < n; ++s) of_problem.push_back(problem.Int(name, s, problem.*N));
  }
  return cuts;
}

// Slopes or sinks, [H] or [1,H]: every sequence sees them.
Tensor Repeated(Ops& ops, const Tensor& x, const RowCuts& cuts) {
  RowCuts rows = cuts;
  for (std::vector<int64_t>& of_problem : rows) {
    for (size_t s = 0; s < of_problem.size(); ++s) of_problem[s] = static_cast<int64_t>(s);
  }
  return ops.SplitRows(WithRank(ops, x, 2), 0, rows);
}

// A bias, broadcastable to [1,H,Nq,Nk]: the block of each sequence.
Tensor Blocks(Ops& ops, const Tensor& x, const RowCuts& queries, const RowCuts& keys) {
  const Tensor rows = ops.SplitRows(WithRank(ops, x, 4), 2, queries);
  std::vector<int64_t> begin, end;
  for (size_t p = 0; p < keys.size() && !rows.empty(); ++p) {
    for (size_t s = 0; s + 1 < keys[p].size(); ++s) {
      const bool repeats = rows[begin.size()].shape[3] == 1 && keys[p].back() != 1;
      begin.push_back(repeats ? 0 : keys[p][s]);
      end.push_back(repeats ? 1 : keys[p][s + 1]);
    }
  }
  return ops.Slice(rows, 3, begin, end);
}

}  // namespace

bool IsPacked(const Inputs& in) { return in.tensors.contains(kCuQ); }

Packed Unpack(Ops& ops, const Inputs& in) {
  Packed packed{.queries = CutsOf(in, kCuQ, &ProblemShape::Nq)};
  const RowCuts& queries = packed.queries;
  const RowCuts keys = CutsOf(in, kCuK, &ProblemShape::Nk);
  for (size_t p = 0; p < in.problems.size(); ++p) {
    for (size_t s = 0; s + 1 < queries[p].size(); ++s) {
      ProblemShape& shape = packed.shapes.emplace_back(in.problems[p]);
      shape.Nq = queries[p][s + 1] - queries[p][s];
      shape.Nk = keys[p][s + 1] - keys[p][s];
      shape.tensors = nullptr;
    }
  }
  packed.in = {.q = ops.SplitRows(in.q, 2, queries),
               .k = ops.SplitRows(in.k, 2, keys),
               .v = ops.SplitRows(in.v, 2, keys),
               .problems = packed.shapes};
  for (const auto& [name, tensor] : in.tensors) {
    if (name == "bias") packed.in.tensors[name] = Blocks(ops, tensor, queries, keys);
    if (name == "alibi_slopes" || name == "sink_logits") {
      packed.in.tensors[name] = Repeated(ops, tensor, queries);
    }
  }
  return packed;
}

AttendOut Repack(Ops& ops, const Packed& packed, const Inputs& in, const AttendOut& out) {
  std::vector<Shape> out_shapes, lse_shapes;
  for (const ProblemShape& p : in.problems) {
    out_shapes.push_back({p.B, p.H, p.Nq, p.Dv});
    lse_shapes.push_back({p.B, p.H, p.Nq});
  }
  return {ops.JoinRows(out.out, 2, out_shapes, packed.queries, in.q[0].dtype, LayoutsOf(in.q)),
          ops.JoinRows(out.lse, 2, lse_shapes, packed.queries)};
}

}  // namespace attnd
