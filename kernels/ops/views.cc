// Views of tensors: shapes and strides only, and their gradients.
#include <algorithm>

#include "kernels/ops/ops.h"
#include "kernels/ops/part.h"
#include "kernels/ops/passed_on.h"

namespace attnd {
namespace {

// The value of problem p; a list of one value serves all problems.
int64_t At(const std::vector<int64_t>& list, size_t problem) {
  return list.size() == 1 ? list[0] : list[problem];
}

bool IsPerProblem(const std::vector<int64_t>& list, const Tensor& x) {
  return list.size() == 1 || list.size() == x.size();
}

// The strides of `shape` over the memory of `view`, if its elements lie so that one view can show
// them in row-major order.
bool Restride(const View& view, const Shape& shape, View* to) {
  *to = view;
  to->shape = shape;
  to->layout = Layout::kBHND;
  to->stride = {};
  if (shape.size() == 0) {
    to->stride = DenseView(nullptr, view.dtype, shape).stride;
    return true;
  }
  // From the innermost dimension out: dimensions that are contiguous form one stretch, and a new
  // dimension must lie inside a stretch.
  int64_t left = 1, distance = 0;  // elements of the stretch that are left for new dimensions
  int o = view.shape.rank - 1;
  for (int n = shape.rank - 1; n >= 0; --n) {
    if (shape[n] == 1) continue;
    while (left == 1 && o >= 0) {
      int64_t next = view.stride[o];
      for (; o >= 0 && (view.shape[o] == 1 || left == 1 || view.stride[o] == next); --o) {
        if (view.shape[o] == 1) continue;
        if (left == 1) distance = next = view.stride[o];
        left *= view.shape[o];
        next *= view.shape[o];
      }
    }
    if (left % shape[n] != 0) return false;
    to->stride[n] = distance;
    distance *= shape[n];
    left /= shape[n];
  }
  return true;
}

// x as elements begin, begin + step, .. of an axis of tensors of `shapes`, zeros elsewhere.
Tensor PlacedInZeros(Ops& ops, const Tensor& x, int axis, const std::vector<int64_t>& begin,
                     int64_t step, const std::vector<Shape>& shapes) {
  const Tensor zero = ops.Constant(0, shapes), full = ops.Empty(DType::kF32, shapes);
  if (!ops.status().ok()) return {};
  if (step != 1) ops.CopyInto(ViewsOf(zero), ViewsOf(full));
  std::vector<View> from, to;
  for (size_t p = 0; p < full.size(); ++p) {
    const int64_t first = At(begin, p), end = first + x[p].shape[axis] * step;
    from.push_back(x[p]);
    to.push_back(Part(full[p], axis, first, end, step));
    if (step != 1) continue;
    for (const auto& [b, e] : {std::pair(int64_t{0}, first), {end, shapes[p][axis]}}) {
      from.push_back(Part(zero[p], axis, b, e, 1));
      to.push_back(Part(full[p], axis, b, e, 1));
    }
  }
  ops.CopyInto(from, to);
  return full;
}

// The same; x where it has all elements.
Tensor Placed(Ops& ops, const Tensor& x, int axis, const std::vector<int64_t>& begin, int64_t step,
              const std::vector<Shape>& shapes) {
  if (!ops.status().ok()) return {};
  Equals equals(shapes.size());
  for (size_t p = 0; p < shapes.size(); ++p) {
    if (ops.CountsEach() && MayPassAs(x[p], DType::kF32, shapes[p])) equals[p] = p;
  }
  return PassedOn(x, equals, [&](const std::vector<size_t>& others) {
    std::vector<int64_t> begins;
    std::vector<Shape> of_others;
    for (const size_t p : others) {
      begins.push_back(At(begin, p));
      of_others.push_back(shapes[p]);
    }
    return PlacedInZeros(ops, Picked(x, others), axis, begins, step, of_others);
  });
}

}  // namespace

bool HasContiguousRows(const Tensor& x) {
  for (size_t p = 0; p < x.size(); ++p) {
    const int last = x[p].shape.rank - 1;
    if (x[p].shape[last] > 1 && x[p].stride[last] != 1) return false;
  }
  return true;
}

Tensor WithContiguousRows(Ops& ops, const Tensor& x) {
  return HasContiguousRows(x) ? x : ops.Copy(x);
}

Tensor Ops::Viewed(const Tensor& x, std::vector<View> views, GradRule rule) {
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < x.size(); ++p) buffers.push_back(x.buffer(p));
  Tensor out(std::move(views), std::move(buffers));
  if (Records({&x})) tape_->Record({x}, {out}, std::move(rule));
  return out;
}

Tensor Ops::Reshape(const Tensor& x, const std::vector<Shape>& shapes) {
  bool fits = shapes.size() == x.size();
  for (size_t p = 0; fits && p < x.size(); ++p) fits = shapes[p].size() == x[p].shape.size();
  if (!Require(!x.empty() && fits, "reshape", "elements must stay as many")) return {};
  std::vector<View> views(x.size());
  std::vector<std::shared_ptr<Buffer>> buffers;
  std::vector<size_t> copied;
  for (size_t p = 0; p < x.size(); ++p) {
    if (!Restride(x[p], shapes[p], &views[p])) copied.push_back(p);
    buffers.push_back(x.buffer(p));
  }
  // A plan copies all: it counts sequences by their places in the list.
  if (!copied.empty() && stream_.is_dry()) return Reshape(Copy(x, x[0].dtype), shapes);
  if (!copied.empty()) {
    // The others stay views, so that each problem allocates what it does alone.
    std::vector<Shape> dense;
    for (const size_t p : copied) dense.push_back(shapes[p]);
    const Tensor copies = Empty(x[0].dtype, dense);
    if (!status_.ok()) return {};
    std::vector<View> from, to;
    for (size_t i = 0; i < copied.size(); ++i) {
      views[copied[i]] = copies[i];
      buffers[copied[i]] = copies.buffer(i);
      from.push_back(x[copied[i]]);
      to.push_back(DenseView(copies[i].data, x[0].dtype, x[copied[i]].shape));
    }
    CopyInto(from, to);
  }
  Tensor out(std::move(views), std::move(buffers));
  if (Records({&x})) {
    tape_->Record({x}, {out},
                  [before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                         const std::vector<bool>&) -> std::vector<Tensor> {
                    return {ops.Reshape(grads[0], before)};
                  });
  }
  return out;
}

Tensor Ops::Transpose(const Tensor& x, int axis1, int axis2) {
  if (!Require(!x.empty(), "transpose", "x must not be empty")) return {};
  const int a = AxisOf(axis1, x[0].shape.rank), b = AxisOf(axis2, x[0].shape.rank);
  std::vector<View> views = ViewsOf(x);
  for (View& view : views) {
    std::swap(view.shape.dims[a], view.shape.dims[b]);
    std::swap(view.stride[a], view.stride[b]);
    view.layout = Layout::kBHND;
  }
  return Viewed(x, std::move(views),
                [a, b](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>&)
                    -> std::vector<Tensor> { return {ops.Transpose(grads[0], a, b)}; });
}

Tensor Ops::Slice(const Tensor& x, int axis, const std::vector<int64_t>& begin,
                  const std::vector<int64_t>& end, int64_t step) {
  bool fits = !x.empty() && step >= 1 && IsPerProblem(begin, x) && IsPerProblem(end, x);
  const int a = fits ? AxisOf(axis, x[0].shape.rank) : 0;
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = 0 <= At(begin, p) && At(begin, p) <= At(end, p) && At(end, p) <= x[p].shape[a];
  }
  if (!Require(fits, "slice", "0 <= begin <= end <= size of the axis")) return {};
  std::vector<View> views;
  for (size_t p = 0; p < x.size(); ++p) {
    views.push_back(Part(x[p], a, At(begin, p), At(end, p), step));
  }
  return Viewed(x, std::move(views),
                [=, before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                          const std::vector<bool>&) -> std::vector<Tensor> {
                  return {Placed(ops, grads[0], a, begin, step, before)};
                });
}

Tensor Ops::Expand(const Tensor& x, const std::vector<Shape>& shapes) {
  bool fits = !x.empty() && shapes.size() == x.size();
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = shapes[p].rank == x[p].shape.rank;
    for (int i = 0; fits && i < shapes[p].rank; ++i) {
      fits = x[p].shape[i] == shapes[p][i] || x[p].shape[i] == 1;
    }
  }
  if (!Require(fits, "expand", "only dimensions of 1 repeat")) return {};
  std::vector<View> views = ViewsOf(x);
  for (size_t p = 0; p < x.size(); ++p) {
    for (int i = 0; i < shapes[p].rank; ++i) {
      if (x[p].shape[i] != shapes[p][i]) views[p].stride[i] = 0;
    }
    views[p].shape = shapes[p];
    views[p].layout = Layout::kBHND;
  }
  return Viewed(x, std::move(views),
                [before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                       const std::vector<bool>&) -> std::vector<Tensor> {
                  return {ops.SumTo(grads[0], before)};
                });
}

Tensor Ops::Unfold(const Tensor& x, const std::vector<int64_t>& columns, int64_t width,
                   int64_t stride, int64_t dilation) {
  bool fits = !x.empty() && x[0].shape.rank >= 2 && x[0].shape.rank < kMaxRank && width >= 1 &&
              stride >= 1 && dilation >= 1 && IsPerProblem(columns, x);
  const int axis = fits ? x[0].shape.rank - 2 : 0;
  for (size_t p = 0; fits && p < x.size(); ++p) {
    const int64_t last = (At(columns, p) - 1) * stride + (width - 1) * dilation;
    fits = At(columns, p) == 0 || (At(columns, p) > 0 && last < x[p].shape[axis]);
  }
  if (!Require(fits, "unfold", "windows must lie inside the rows")) return {};
  std::vector<View> views = ViewsOf(x);
  for (size_t p = 0; p < x.size(); ++p) {
    View& view = views[p];
    const int64_t row = view.stride[axis];
    view.shape.rank += 1;
    view.shape.dims[axis + 2] = view.shape[axis + 1];
    view.stride[axis + 2] = view.stride[axis + 1];
    view.shape.dims[axis] = At(columns, p);
    view.stride[axis] = stride * row;
    view.shape.dims[axis + 1] = width;
    view.stride[axis + 1] = dilation * row;
    view.layout = Layout::kBHND;
  }
  return Viewed(x, std::move(views),
                [=, before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                          const std::vector<bool>&) -> std::vector<Tensor> {
                  std::vector<Shape> rows = before;
                  const bool is_side_by_side = dilation == 1 && stride == width;
                  for (size_t p = 0; p < rows.size(); ++p) {
                    rows[p].dims[axis] = At(columns, p) * (is_side_by_side ? width : 1);
                  }
                  if (is_side_by_side) {
                    return {Placed(ops, ops.Reshape(grads[0], rows), axis, {0}, 1, before)};
                  }
                  // A row may lie in several windows, at most once as their row t.
                  Tensor sum;
                  for (int64_t t = 0; t < width && ops.status().ok(); ++t) {
                    const Tensor of_t = ops.Slice(grads[0], axis + 1, {t}, {t + 1});
                    const Tensor full =
                        Placed(ops, ops.Reshape(of_t, rows), axis, {t * dilation}, stride, before);
                    sum = sum.empty() ? full : ops.Add(sum, full);
                  }
                  return {sum};
                });
}

Tensor Ops::Stop(const Tensor& x) {
  if (!Require(!x.empty(), "stop", "x must not be empty")) return {};
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < x.size(); ++p) buffers.push_back(x.buffer(p));
  return Tensor(ViewsOf(x), std::move(buffers));
}

Tensor Ops::Copy(const Tensor& x, DType dtype) { return Apply(ElementOp::kCopy, x, dtype); }

Tensor Ops::Constant(float value, const std::vector<Shape>& shapes) {
  if (!status_.ok()) return {};
  const Tensor one = FromHost({Shape{1}}, std::vector<std::vector<float>>{{value}});
  if (!status_.ok()) return {};
  std::vector<View> views;
  for (const Shape& shape : shapes) {
    View view = one[0];
    view.shape = shape;
    view.stride = {};
    views.push_back(view);
  }
  return Tensor(std::move(views),
                std::vector<std::shared_ptr<Buffer>>(shapes.size(), one.buffer(0)));
}

}  // namespace attnd
