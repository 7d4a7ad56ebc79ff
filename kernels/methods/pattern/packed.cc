#include "kernels/methods/pattern/packed.h"

#include "kernels/method/declared_shape.h"
#include "kernels/method/seq_groups.h"
#include "kernels/methods/pattern/attend.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

constexpr char kCuQ[] = "cu_seqlens_q", kCuK[] = "cu_seqlens_k";

// Where sequences begin and end in q and in k. On a dry stream `counts` equal ones are one problem.
struct Cuts {
  RowCuts queries, keys;
  SeqCounts counts;  // empty: one each
};

// Without data the first sequence holds everything, which bounds every other cut.
std::vector<SeqGroup> SequencesOf(const ProblemShape& problem) {
  std::vector<SeqGroup> sequences;
  const int64_t n = problem.Find(kCuQ)->shape[0];
  Lengths begin;
  for (int64_t s = 1; s < n; ++s) {
    const Lengths end{problem.Int(kCuQ, s, problem.Nq), problem.Int(kCuK, s, problem.Nk)};
    sequences.push_back({.lengths = {end.nq - begin.nq, end.nk - begin.nk}});
    begin = end;
  }
  return sequences;
}

Cuts CutsOf(Ops& ops, const Inputs& in) {
  const bool is_planned = ops.stream().is_dry();
  Cuts cuts;
  for (const ProblemShape& problem : in.problems) {
    std::vector<SeqGroup> sequences = SequencesOf(problem);
    if (is_planned) {
      sequences = Alike(std::move(sequences), kPlannedProblems, {problem.Nq, problem.Nk});
      if (AreRounded(sequences)) ops.EstimatePairs();
      cuts.counts.emplace_back();
    }
    std::vector<int64_t>& queries = cuts.queries.emplace_back(1, 0);
    std::vector<int64_t>& keys = cuts.keys.emplace_back(1, 0);
    for (const SeqGroup& group : sequences) {
      queries.push_back(queries.back() + group.lengths.nq * group.count);
      keys.push_back(keys.back() + group.lengths.nk * group.count);
      if (is_planned) cuts.counts.back().push_back(group.count);
    }
  }
  return cuts;
}

// The letters of the longest list of "[B,Nk] or [Nk]".
DeclaredShape::Letters LongestOf(absl::string_view declared) {
  DeclaredShape::Letters longest;
  for (DeclaredShape::Letters& letters : ParseShape(declared).lists) {
    if (letters.size() > longest.size()) longest = std::move(letters);
  }
  return longest;
}

// A tensor without an axis of queries or keys: every sequence has all of it.
Tensor Repeated(Ops& ops, const Tensor& x, const Cuts& cuts) {
  std::vector<Shape> shapes, own;
  RowCuts rows;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape& before = x[p].shape;
    rows.emplace_back(1, 0);
    for (size_t s = 0; s + 1 < cuts.queries[p].size(); ++s) {
      const int64_t count = cuts.counts.empty() ? 1 : cuts.counts[p][s];
      rows.back().push_back(rows.back().back() + count);
      own.push_back(before);
      own.back().dims[0] *= count;
    }
    Shape& shape = shapes.emplace_back();
    shape.rank = before.rank + 1;
    for (int i = 0; i < before.rank; ++i) shape.dims[i + 1] = before[i];
  }
  const Tensor parts = ops.SplitRows(ops.Reshape(x, shapes), 0, rows, cuts.counts);
  return parts.empty() ? parts : ops.Reshape(parts, own);
}

// Places [begin, end) of an axis of each sequence; an axis of size 1 that repeats stays.
Tensor Cut(Ops& ops, const Tensor& x, int axis, const RowCuts& ends, const SeqCounts& counts) {
  std::vector<int64_t> begin, end;
  for (size_t p = 0; p < ends.size(); ++p) {
    for (size_t s = 0; s + 1 < ends[p].size() && !x.empty(); ++s) {
      const bool repeats = x[begin.size()].shape[axis] == 1 && ends[p].back() != 1;
      // Equal sequences are one problem, whose batch they are: any of them has their length.
      const int64_t length = (ends[p][s + 1] - ends[p][s]) / (counts.empty() ? 1 : counts[p][s]);
      begin.push_back(repeats || !counts.empty() ? 0 : ends[p][s]);
      end.push_back(repeats ? 1 : begin.back() + length);
    }
  }
  return ops.Slice(x, axis, begin, end);
}

// The part of each sequence: axes of queries or keys are cut unless they repeat.
Tensor Sequences(Ops& ops, const Tensor& x, absl::string_view declared, const Cuts& cuts) {
  const DeclaredShape::Letters letters = LongestOf(declared);
  // Room for the axis of the batch.
  const auto rank = std::max<int>(static_cast<int>(letters.size()), 2);
  const Tensor whole = WithRank(ops, x, rank);
  const int first = rank - static_cast<int>(letters.size());
  Tensor parts;
  for (size_t i = 0; i < letters.size() && ops.status().ok(); ++i) {
    if (letters[i] != "Nq" && letters[i] != "Nk") continue;
    const RowCuts& ends = letters[i] == "Nq" ? cuts.queries : cuts.keys;
    const int axis = first + static_cast<int>(i);
    parts = parts.empty() ? ops.SplitRows(whole, axis, ends, cuts.counts)
                          : Cut(ops, parts, axis, ends, cuts.counts);
  }
  return parts.empty() ? Repeated(ops, whole, cuts) : parts;
}

}  // namespace

Outputs ForSequences(Ops& ops, const Inputs& in, std::span<const TensorInfo> inputs,
                     const PatternFormula& formula) {
  if (!in.tensors.contains(kCuQ)) return formula(in);
  const Cuts cuts = CutsOf(ops, in);
  const auto& [queries, keys, counts] = cuts;
  std::vector<ProblemShape> problems;
  for (size_t p = 0; p < in.problems.size(); ++p) {
    for (size_t s = 0; s + 1 < queries[p].size(); ++s) {
      ProblemShape& shape = problems.emplace_back(in.problems[p]);
      shape.B = counts.empty() ? 1 : counts[p][s];
      shape.Nq = (queries[p][s + 1] - queries[p][s]) / shape.B;
      shape.Nk = (keys[p][s + 1] - keys[p][s]) / shape.B;
      shape.tensors = nullptr;
    }
  }
  Inputs sequences{.q = ops.SplitRows(in.q, 2, queries, counts),
                   .k = ops.SplitRows(in.k, 2, keys, counts),
                   .v = ops.SplitRows(in.v, 2, keys, counts),
                   .problems = problems};
  for (const TensorInfo& input : inputs) {
    const auto sent = in.tensors.find(input.name);
    if (sent == in.tensors.end() || input.name == kCuQ || input.name == kCuK) continue;
    sequences.tensors[input.name] = Sequences(ops, sent->second, input.shape, cuts);
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
    PairTotal& pairs = whole.visible_pairs.emplace_back();
    for (size_t s = 0; s < count; ++s) pairs += parts.visible_pairs[at++];
  }
  whole.out =
      ops.JoinRows(parts.out, 2, out_shapes, queries, in.q[0].dtype, LayoutsOf(in.q), counts);
  if (!parts.lse.empty()) {
    whole.lse = ops.JoinRows(parts.lse, 2, lse_shapes, queries, DType::kF32, {}, counts);
  }
  return whole;
}

}  // namespace attnd
