// Ops::SplitRows and Ops::JoinRows: packed sequences as lists of problems.
#include <algorithm>

#include "kernels/ops/ops.h"
#include "kernels/ops/passed_on.h"

namespace attnd {
namespace {

// A segment; on a dry stream it may stand for `count` alike, as sequences of a batch one after the
// other in memory, so that a view that needs no copy of one segment needs none of all.
View Segment(const View& view, int axis, int64_t begin, int64_t end, int64_t count) {
  View part = view;
  part.layout = Layout::kBHND;
  part.shape.dims[axis] = (end - begin) / count;
  if (count > 1) {
    part.shape.dims[0] *= count;
    int inner = 1;
    while (inner + 1 < part.shape.rank && part.shape[inner] == 1) ++inner;
    part.stride[0] = std::max<int64_t>(part.shape[inner] * part.stride[inner], 1);
  }
  if (view.data != nullptr && part.shape.size() > 0) {
    part.data = view.As<char>() + begin * view.stride[axis] * SizeOf(view.dtype);
  }
  return part;
}

// Whether the axis has one row, which belongs to every segment.
bool Repeats(const Shape& shape, int axis, const std::vector<int64_t>& cuts) {
  return shape[axis] == 1 && cuts.back() != 1;
}

int64_t CountOf(const SeqCounts& counts, size_t p, size_t s) {
  return counts.empty() ? 1 : counts[p][s];
}

// The segments of every problem, in order.
std::vector<View> Segments(const Tensor& x, int axis, const RowCuts& cuts,
                           const SeqCounts& counts) {
  std::vector<View> views;
  for (size_t p = 0; p < x.size(); ++p) {
    const bool repeats = Repeats(x[p].shape, axis, cuts[p]);
    for (size_t s = 0; s + 1 < cuts[p].size(); ++s) {
      const int64_t count = CountOf(counts, p, s);
      views.push_back(repeats ? Segment(x[p], axis, 0, count, count)
                              : Segment(x[p], axis, cuts[p][s], cuts[p][s + 1], count));
    }
  }
  return views;
}

bool FitCuts(const std::vector<Shape>& shapes, int axis, const RowCuts& cuts,
             const SeqCounts& counts) {
  bool fits = !shapes.empty() && cuts.size() == shapes.size();
  fits = fits && (counts.empty() || counts.size() == cuts.size());
  for (size_t p = 0; fits && p < shapes.size(); ++p) {
    const std::vector<int64_t>& c = cuts[p];
    fits = axis >= 0 && axis < shapes[p].rank && c.size() >= 2 && c.front() == 0;
    fits = fits &&
           (counts.empty() ? c.back() == shapes[p][axis] || shapes[p][axis] == 1
                           : counts[p].size() + 1 == c.size() && (shapes[p][0] == 1 || axis == 0));
    for (size_t s = 0; fits && s + 1 < c.size(); ++s) fits = c[s] <= c[s + 1];
  }
  return fits;
}

// The gradient of a repeated row: joined, it has one row for each segment; these are summed.
Tensor Joined(Ops& ops, const Tensor& grad, int axis, const std::vector<Shape>& before,
              RowCuts cuts, const SeqCounts& counts) {
  std::vector<Shape> joined = before;
  for (size_t p = 0; p < joined.size(); ++p) {
    if (!Repeats(before[p], axis, cuts[p])) continue;
    for (size_t s = 1; s < cuts[p].size(); ++s) {
      cuts[p][s] = cuts[p][s - 1] + CountOf(counts, p, s - 1);
    }
    joined[p].dims[axis] = cuts[p].back();
  }
  const Tensor sum = ops.JoinRows(grad, axis, joined, cuts, DType::kF32, {}, counts);
  return joined == before ? sum : ops.SumTo(sum, before);
}

// The same; problems of one segment pass it on.
Tensor JoinedGradient(Ops& ops, const Tensor& grad, int axis, const std::vector<Shape>& before,
                      const RowCuts& cuts, const SeqCounts& counts) {
  if (!ops.CountsEach()) return Joined(ops, grad, axis, before, cuts, counts);
  Equals equals(before.size());
  std::vector<size_t> first = {0};  // the first segment of every problem, and the end
  for (size_t p = 0; p < before.size(); ++p) {
    first.push_back(first.back() + cuts[p].size() - 1);
    if (cuts[p].size() == 2 && MayPassAs(grad[first[p]], DType::kF32, before[p]))
      equals[p] = first[p];
  }
  return PassedOn(grad, equals, [&](const std::vector<size_t>& others) {
    std::vector<size_t> segments;
    std::vector<Shape> of_others;
    RowCuts cuts_of_others;
    for (const size_t p : others) {
      for (size_t n = first[p]; n < first[p + 1]; ++n) segments.push_back(n);
      of_others.push_back(before[p]);
      cuts_of_others.push_back(cuts[p]);
    }
    return Joined(ops, Picked(grad, segments), axis, of_others, cuts_of_others, {});
  });
}

}  // namespace

Tensor Ops::SplitRows(const Tensor& x, int axis, const RowCuts& cuts, const SeqCounts& counts) {
  const int a = x.empty() ? 0 : AxisOf(axis, x[0].shape.rank);
  const bool fits = FitCuts(ShapesOf(x), a, cuts, counts) && (counts.empty() || stream_.is_dry());
  if (!Require(fits, "split_rows", "cuts from 0 to the size of the axis")) return {};
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < x.size(); ++p) {
    buffers.insert(buffers.end(), cuts[p].size() - 1, x.buffer(p));
  }
  CountAlike(counts);
  Tensor out(Segments(x, a, cuts, counts), std::move(buffers));
  if (Records({&x})) {
    tape_->Record({x}, {out},
                  [=, before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                            const std::vector<bool>&) -> std::vector<Tensor> {
                    return {JoinedGradient(ops, grads[0], a, before, cuts, counts)};
                  });
  }
  return out;
}

Tensor Ops::JoinRows(const Tensor& x, int axis, const std::vector<Shape>& shapes,
                     const RowCuts& cuts, DType dtype, const std::vector<Layout>& layouts,
                     const SeqCounts& counts) {
  const int a = shapes.empty() ? 0 : AxisOf(axis, shapes[0].rank);
  bool fits = FitCuts(shapes, a, cuts, counts);
  size_t n = 0;
  for (size_t p = 0; fits && p < shapes.size(); ++p) {
    for (size_t s = 0; fits && s + 1 < cuts[p].size(); ++s, ++n) {
      Shape segment = shapes[p];
      const int64_t count = CountOf(counts, p, s);
      segment.dims[a] = (cuts[p][s + 1] - cuts[p][s]) / count;
      segment.dims[0] *= count;
      const bool is_whole = !counts.empty() || cuts[p].back() == shapes[p][a];
      fits = is_whole && n < x.size() && x[n].shape == segment;
    }
  }
  if (!Require(fits && n == x.size(), "join_rows", "one problem for every segment of the axis")) {
    return {};
  }
  const Tensor out = Empty(dtype, shapes, layouts);
  if (!status_.ok()) return {};
  CopyInto(ViewsOf(x), Segments(out, a, cuts, counts));
  if (!status_.ok()) return {};
  if (Records({&x})) {
    tape_->Record({x}, {out},
                  [=](Ops& ops, std::span<const Tensor> grads,
                      const std::vector<bool>&) -> std::vector<Tensor> {
                    return {ops.SplitRows(grads[0], a, cuts, counts)};
                  });
  }
  return out;
}

}  // namespace attnd
