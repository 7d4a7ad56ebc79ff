#include "kernels/methods/memory/next.h"

#include <algorithm>

#include "kernels/ops/part.h"

namespace attnd {
namespace {

constexpr int kRows = 2;

// [B,Hkv,rows,last], zeros before the stretches of each sequence.
Tensor AtEnd(Ops& ops, const SeqSplit& split, const std::vector<Stretch>& stretches,
             const std::vector<Shape>& shapes, DType dtype) {
  const Tensor out = ops.Empty(dtype, shapes), zeros = ops.Constant(0, shapes);
  if (!ops.status().ok()) return {};
  std::vector<View> from, to;
  std::vector<int64_t> place(shapes.size(), 0);  // in the batch
  for (size_t i = 0; i < split.parts().size(); ++i) {
    const SeqSplit::Part& part = split.parts()[i];
    int64_t& b = place[part.problem];
    const View own = Part(out[part.problem], 0, b, b + part.count, 1);
    int64_t end = own.shape[kRows];
    for (size_t s = stretches.size(); s-- > 0;) {
      const Stretch& stretch = stretches[s];
      // A plan of rounded lengths may have more rows than the longest sequence.
      const int64_t rows = std::min(stretch.end[i] - stretch.begin[i], end);
      from.push_back(Part(stretch.x[i], kRows, stretch.end[i] - rows, stretch.end[i], 1));
      to.push_back(Part(own, kRows, end - rows, end, 1));
      end -= rows;
    }
    from.push_back(Part(Part(zeros[part.problem], 0, b, b + part.count, 1), kRows, 0, end, 1));
    to.push_back(Part(own, kRows, 0, end, 1));
    b += part.count;
  }
  ops.CopyInto(from, to);
  return ops.status().ok() ? out : Tensor();
}

}  // namespace

void AddNextMemory(Ops& ops, const Inputs& in, const SeqSplit& split, const NextMemory& next,
                   std::map<std::string, Tensor>* outputs) {
  if (!ops.status().ok()) return;
  std::vector<Shape> k_shapes, v_shapes, counts;
  std::vector<std::vector<int32_t>> lengths;
  for (const ProblemShape& p : in.problems) {
    int64_t longest = 0;
    std::vector<int32_t>& of_problem = lengths.emplace_back();
    for (const SeqGroup& seq : SeqRunsOf(p, /*is_planned=*/false)) {
      const int64_t rows = next.rows(p, seq);
      longest = std::max(longest, rows);
      if (ops.stream().is_dry()) continue;
      of_problem.insert(of_problem.end(), static_cast<size_t>(seq.count),
                        static_cast<int32_t>(rows));
    }
    k_shapes.push_back({p.B, p.Hkv, longest, p.D});
    v_shapes.push_back({p.B, p.Hkv, longest, p.Dv});
    counts.push_back({p.B});
  }
  (*outputs)[next.name + "_k"] = AtEnd(ops, split, next.k, k_shapes, in.k[0].dtype);
  (*outputs)[next.name + "_v"] = AtEnd(ops, split, next.v, v_shapes, in.v[0].dtype);
  (*outputs)[next.name + "_lengths"] = ops.FromHost(counts, std::move(lengths));
}

}  // namespace attnd
