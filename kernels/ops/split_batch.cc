// Ops::SplitBatch and Ops::JoinBatch: the sequences of a batch as lists of problems.
#include <algorithm>

#include "kernels/ops/ops.h"
#include "kernels/ops/part.h"
#include "kernels/ops/passed_on.h"

namespace attnd {
namespace {

int RowAxis(int rank) { return rank == 2 ? 1 : 2; }

// The gradient of SplitBatch: `grad` is that of its sequences.
Tensor JoinedGradient(Ops& ops, const Tensor& grad, const std::vector<Shape>& shapes) {
  if (!ops.status().ok()) return {};
  Equals equals(shapes.size());
  std::vector<size_t> first = {0};  // the first sequence of every problem, and the end
  for (size_t p = 0; p < shapes.size(); ++p) {
    size_t n = first.back();
    for (int64_t b = 0; b < shapes[p][0] && n < grad.size(); ++n) b += grad[n].shape[0];
    if (ops.CountsEach() && n == first.back() + 1 &&
        MayPassAs(grad[n - 1], DType::kF32, shapes[p])) {
      equals[p] = n - 1;
    }
    first.push_back(n);
  }
  return PassedOn(grad, equals, [&](const std::vector<size_t>& others) {
    std::vector<size_t> seqs;
    std::vector<Shape> of_others;
    for (const size_t p : others) {
      for (size_t n = first[p]; n < first[p + 1]; ++n) seqs.push_back(n);
      of_others.push_back(shapes[p]);
    }
    return ops.JoinBatch(Picked(grad, seqs), of_others);
  });
}

}  // namespace

Tensor Ops::SplitBatch(const Tensor& x, const std::vector<std::vector<int64_t>>& lengths,
                       const SeqCounts& counts) {
  bool fits = !x.empty() && lengths.size() == x.size() && x[0].shape.rank >= 2;
  fits = fits && (counts.empty() || counts.size() == lengths.size());
  const int axis = fits ? RowAxis(x[0].shape.rank) : 0;
  const auto count = [&](size_t p, size_t n) { return counts.empty() ? 1 : counts[p][n]; };
  for (size_t p = 0; fits && p < x.size(); ++p) {
    int64_t rows = 0;
    fits = counts.empty() || counts[p].size() == lengths[p].size();
    for (size_t n = 0; fits && n < lengths[p].size(); ++n) {
      rows += count(p, n);
      fits = count(p, n) >= 1 && 0 <= lengths[p][n] && lengths[p][n] <= x[p].shape[axis];
    }
    fits = fits && rows == x[p].shape[0];
  }
  if (!Require(fits, "split_batch", "a length for every sequence, at most its rows")) return {};
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < x.size(); ++p) {
    int64_t b = 0;
    for (size_t n = 0; n < lengths[p].size(); b += count(p, n), ++n) {
      views.push_back(Part(Part(x[p], 0, b, b + count(p, n), 1), axis, 0, lengths[p][n], 1));
      buffers.push_back(x.buffer(p));
    }
  }
  const auto is_one = [](const std::vector<int64_t>& of_problem) { return of_problem.size() == 1; };
  if (!std::all_of(counts.begin(), counts.end(), is_one)) CountAlike(counts);
  Tensor out(std::move(views), std::move(buffers));
  if (Records({&x})) {
    tape_->Record({x}, {out},
                  [before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                         const std::vector<bool>&) -> std::vector<Tensor> {
                    return {JoinedGradient(ops, grads[0], before)};
                  });
  }
  return out;
}

Tensor Ops::JoinBatch(const Tensor& x, const std::vector<Shape>& shapes, float fill, DType dtype,
                      const std::vector<Layout>& layouts) {
  int64_t seqs = 0, given = 0;
  for (const Shape& shape : shapes) seqs += shape[0];
  for (size_t n = 0; n < x.size(); ++n) given += x[n].shape[0];
  if (!Require(!x.empty() && seqs == given, "join_batch", "as many sequences as problems have")) {
    return {};
  }
  const Tensor out = Empty(dtype, shapes, layouts);
  const Tensor filled = Constant(fill, shapes);
  if (!status_.ok()) return {};
  const int axis = RowAxis(shapes[0].rank);
  std::vector<View> from, to;
  std::vector<std::vector<int64_t>> lengths;
  SeqCounts counts;
  size_t n = 0;
  for (size_t p = 0; p < shapes.size(); ++p) {
    lengths.emplace_back();
    counts.emplace_back();
    for (int64_t b = 0; b < shapes[p][0] && n < x.size(); ++n) {
      const int64_t length = x[n].shape[axis], count = x[n].shape[0];
      lengths.back().push_back(length);
      counts.back().push_back(count);
      const View own = Part(out[p], 0, b, b + count, 1);
      from.push_back(x[n]);
      to.push_back(Part(own, axis, 0, length, 1));
      from.push_back(Part(Part(filled[p], 0, b, b + count, 1), axis, length, shapes[p][axis], 1));
      to.push_back(Part(own, axis, length, shapes[p][axis], 1));
      b += count;
    }
  }
  CopyInto(from, to);
  if (!status_.ok()) return {};
  if (Records({&x})) {
    tape_->Record({x}, {out},
                  [=](Ops& ops, std::span<const Tensor> grads,
                      const std::vector<bool>&) -> std::vector<Tensor> {
                    return {ops.SplitBatch(grads[0], lengths, counts)};
                  });
  }
  return out;
}

}  // namespace attnd
