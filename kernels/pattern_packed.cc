// Packed sequences (cu_seqlens) of the pattern family: every sequence is a problem of its own, a
// view of the packed tensors; only results are copied.
#include <numeric>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
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

// The letters of the longest list of "[B,Nk] or [Nk]".
std::vector<std::string> LettersOf(absl::string_view declared) {
  absl::ConsumePrefix(&declared, "broadcastable to ");
  std::vector<std::string> letters;
  for (absl::string_view list : absl::StrSplit(declared, " or ")) {
    absl::ConsumePrefix(&list, "[");
    absl::ConsumeSuffix(&list, "]");
    const std::vector<std::string> own = absl::StrSplit(list, ',');
    if (own.size() > letters.size()) letters = own;
  }
  return letters;
}

// Every sequence sees all of it.
Tensor Repeated(Ops& ops, const Tensor& x, RowCuts cuts) {
  std::vector<Shape> shapes, own;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape& before = x[p].shape;
    own.insert(own.end(), cuts[p].size() - 1, before);
    std::iota(cuts[p].begin(), cuts[p].end(), 0);
    Shape& shape = shapes.emplace_back();
    shape.rank = before.rank + 1;
    for (int i = 0; i < before.rank; ++i) shape.dims[i + 1] = before[i];
  }
  const Tensor parts = ops.SplitRows(ops.Reshape(x, shapes), 0, cuts);
  return parts.empty() ? parts : ops.Reshape(parts, own);
}

// Columns [begin, end) of an axis of each sequence; what repeats stays.
Tensor Cut(Ops& ops, const Tensor& x, int axis, const RowCuts& cuts) {
  std::vector<int64_t> begin, end;
  for (const std::vector<int64_t>& of_problem : cuts) {
    for (size_t s = 0; s + 1 < of_problem.size() && !x.empty(); ++s) {
      const bool repeats = x[begin.size()].shape[axis] == 1 && of_problem.back() != 1;
      begin.push_back(repeats ? 0 : of_problem[s]);
      end.push_back(repeats ? 1 : of_problem[s + 1]);
    }
  }
  return ops.Slice(x, axis, begin, end);
}

// The part of each sequence: axes that count queries or keys are cut, where they do not repeat.
Tensor Sequences(Ops& ops, const Tensor& x, absl::string_view declared, const RowCuts& queries,
                 const RowCuts& keys) {
  const std::vector<std::string> letters = LettersOf(declared);
  const Tensor whole = WithRank(ops, x, static_cast<int>(letters.size()));
  Tensor parts;
  for (size_t i = 0; i < letters.size() && ops.status().ok(); ++i) {
    if (letters[i] != "Nq" && letters[i] != "Nk") continue;
    const RowCuts& cuts = letters[i] == "Nq" ? queries : keys;
    const int axis = static_cast<int>(i);
    parts = parts.empty() ? ops.SplitRows(whole, axis, cuts) : Cut(ops, parts, axis, cuts);
  }
  return parts.empty() ? Repeated(ops, whole, queries) : parts;
}

}  // namespace

Outputs ForSequences(Ops& ops, const Inputs& in, std::span<const TensorInfo> inputs,
                     const PatternFormula& formula) {
  if (!in.tensors.contains(kCuQ)) return formula(in);
  const RowCuts queries = CutsOf(in, kCuQ, &ProblemShape::Nq);
  const RowCuts keys = CutsOf(in, kCuK, &ProblemShape::Nk);
  std::vector<ProblemShape> problems;
  for (size_t p = 0; p < in.problems.size(); ++p) {
    for (size_t s = 0; s + 1 < queries[p].size(); ++s) {
      ProblemShape& shape = problems.emplace_back(in.problems[p]);
      shape.Nq = queries[p][s + 1] - queries[p][s];
      shape.Nk = keys[p][s + 1] - keys[p][s];
      shape.tensors = nullptr;
    }
  }
  Inputs sequences{.q = ops.SplitRows(in.q, 2, queries),
                   .k = ops.SplitRows(in.k, 2, keys),
                   .v = ops.SplitRows(in.v, 2, keys),
                   .problems = problems};
  for (const TensorInfo& input : inputs) {
    const auto sent = in.tensors.find(input.name);
    if (sent == in.tensors.end() || input.name == kCuQ || input.name == kCuK) continue;
    sequences.tensors[input.name] = Sequences(ops, sent->second, input.shape, queries, keys);
  }
  if (!ops.status().ok()) return {};
  const Outputs parts = formula(sequences);
  if (!ops.status().ok()) return {};
  std::vector<Shape> out_shapes, lse_shapes;
  Outputs whole;
  size_t at = 0;
  for (size_t p = 0; p < in.problems.size(); ++p) {
    const ProblemShape& shape = in.problems[p];
    out_shapes.push_back({shape.B, shape.H, shape.Nq, shape.Dv});
    lse_shapes.push_back({shape.B, shape.H, shape.Nq});
    const size_t count = queries[p].size() - 1;
    whole.visible_pairs.push_back(std::accumulate(parts.visible_pairs.begin() + at,
                                                  parts.visible_pairs.begin() + at + count, 0.0));
    at += count;
  }
  whole.out = ops.JoinRows(parts.out, 2, out_shapes, queries, in.q[0].dtype, LayoutsOf(in.q));
  if (!parts.lse.empty()) whole.lse = ops.JoinRows(parts.lse, 2, lse_shapes, queries);
  return whole;
}

}  // namespace attnd
