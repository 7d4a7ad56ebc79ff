// Ops::SplitRows and Ops::JoinRows: packed sequences as lists of problems.
#include <numeric>

#include "kernels/ops/ops.h"

namespace attnd {
namespace {

View Segment(const View& view, int axis, int64_t begin, int64_t end) {
  View part = view;
  part.layout = Layout::kBHND;
  part.shape.dims[axis] = end - begin;
  if (view.data != nullptr && part.shape.size() > 0) {
    part.data = view.As<char>() + begin * view.stride[axis] * SizeOf(view.dtype);
  }
  return part;
}

// Whether every segment sees the one row of this axis.
bool Repeats(const Shape& shape, int axis, const std::vector<int64_t>& cuts) {
  return shape[axis] == 1 && cuts.back() != 1;
}

// The segments of every problem, in order.
std::vector<View> Segments(const Tensor& x, int axis, const RowCuts& cuts) {
  std::vector<View> views;
  for (size_t p = 0; p < x.size(); ++p) {
    const bool repeats = Repeats(x[p].shape, axis, cuts[p]);
    for (size_t s = 0; s + 1 < cuts[p].size(); ++s) {
      views.push_back(repeats ? Segment(x[p], axis, 0, 1)
                              : Segment(x[p], axis, cuts[p][s], cuts[p][s + 1]));
    }
  }
  return views;
}

bool FitCuts(const std::vector<Shape>& shapes, int axis, const RowCuts& cuts) {
  bool fits = !shapes.empty() && cuts.size() == shapes.size();
  for (size_t p = 0; fits && p < shapes.size(); ++p) {
    const std::vector<int64_t>& c = cuts[p];
    fits = axis >= 0 && axis < shapes[p].rank && c.size() >= 2 && c.front() == 0 &&
           (c.back() == shapes[p][axis] || shapes[p][axis] == 1);
    for (size_t s = 0; fits && s + 1 < c.size(); ++s) fits = c[s] <= c[s + 1];
  }
  return fits;
}

// What repeats has a row a segment in the joined gradient, which is then summed.
Tensor JoinedGradient(Ops& ops, const Tensor& grad, int axis, const std::vector<Shape>& before,
                      RowCuts cuts) {
  std::vector<Shape> joined = before;
  for (size_t p = 0; p < joined.size(); ++p) {
    if (!Repeats(before[p], axis, cuts[p])) continue;
    std::iota(cuts[p].begin(), cuts[p].end(), 0);
    joined[p].dims[axis] = cuts[p].back();
  }
  const Tensor sum = ops.JoinRows(grad, axis, joined, cuts);
  return joined == before ? sum : ops.SumTo(sum, before);
}

}  // namespace

Tensor Ops::SplitRows(const Tensor& x, int axis, const RowCuts& cuts) {
  const int a = x.empty() ? 0 : AxisOf(axis, x[0].shape.rank);
  const bool fits = FitCuts(ShapesOf(x), a, cuts);
  if (!Require(fits, "split_rows", "cuts from 0 to the size of the axis")) return {};
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < x.size(); ++p) {
    buffers.insert(buffers.end(), cuts[p].size() - 1, x.buffer(p));
  }
  Tensor out(Segments(x, a, cuts), std::move(buffers));
  if (Records({&x})) {
    tape_->Record({x}, {out},
                  [=, before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                            const std::vector<bool>&) -> std::vector<Tensor> {
                    return {JoinedGradient(ops, grads[0], a, before, cuts)};
                  });
  }
  return out;
}

Tensor Ops::JoinRows(const Tensor& x, int axis, const std::vector<Shape>& shapes,
                     const RowCuts& cuts, DType dtype, const std::vector<Layout>& layouts) {
  const int a = shapes.empty() ? 0 : AxisOf(axis, shapes[0].rank);
  bool fits = FitCuts(shapes, a, cuts);
  size_t n = 0;
  for (size_t p = 0; fits && p < shapes.size(); ++p) {
    for (size_t s = 0; fits && s + 1 < cuts[p].size(); ++s, ++n) {
      Shape segment = shapes[p];
      segment.dims[a] = cuts[p][s + 1] - cuts[p][s];
      fits = cuts[p].back() == shapes[p][a] && n < x.size() && x[n].shape == segment;
    }
  }
  if (!Require(fits && n == x.size(), "join_rows", "one problem for every segment of the axis")) {
    return {};
  }
  const Tensor out = Empty(dtype, shapes, layouts);
  if (!status_.ok()) return {};
  CopyInto(ViewsOf(x), Segments(out, a, cuts));
  if (!status_.ok()) return {};
  if (Records({&x})) {
    tape_->Record({x}, {out},
                  [=](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>&)
                      -> std::vector<Tensor> { return {ops.SplitRows(grads[0], a, cuts)}; });
  }
  return out;
}

}  // namespace attnd
