// Views of tensors: shapes and strides only, and their gradients.
#include <algorithm>

#include "kernels/core/integer.h"
#include "kernels/ops/ops.h"

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

// Elements [begin, end) with a step along one axis.
View Part(const View& view, int axis, int64_t begin, int64_t end, int64_t step) {
  View part = view;
  part.layout = Layout::kBHND;
  part.shape.dims[axis] = std::max<int64_t>(CeilDiv(end - begin, step), 0);
  if (view.data != nullptr && part.shape.size() > 0) {
    part.data = view.As<char>() + begin * view.stride[axis] * SizeOf(view.dtype);
  }
  part.stride[axis] = view.stride[axis] * step;
  return part;
}

// A dense tensor full of zeros.
Tensor Zeros(Ops& ops, const std::vector<Shape>& shapes) {
  const Tensor zero = ops.Constant(0, shapes);
  const Tensor full = ops.Empty(DType::kF32, shapes);
  if (ops.status().ok()) ops.CopyInto(ViewsOf(zero), ViewsOf(full));
  return full;
}

// x as elements begin, begin + step, .. of an axis of tensors of `shapes`, zeros elsewhere.
Tensor Placed(Ops& ops, const Tensor& x, int axis, const std::vector<int64_t>& begin, int64_t step,
              const std::vector<Shape>& shapes) {
  if (!ops.status().ok()) return {};
  const Tensor full = Zeros(ops, shapes);
  if (!ops.status().ok()) return {};
  std::vector<View> parts;
  for (size_t p = 0; p < full.size(); ++p) {
    const int64_t first = At(begin, p), end = first + x[p].shape[axis] * step;
    parts.push_back(Part(full[p], axis, first, end, step));
  }
  ops.CopyInto(ViewsOf(x), parts);
  return full;
}

int RowAxis(int rank) { return rank == 2 ? 1 : 2; }

}  // namespace

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
  CountAlike(counts);
  Tensor out(std::move(views), std::move(buffers));
  if (Records({&x})) {
    tape_->Record({x}, {out},
                  [before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                         const std::vector<bool>&) -> std::vector<Tensor> {
                    return {ops.JoinBatch(grads[0], before)};
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

Tensor Ops::Stop(const Tensor& x) {
  if (!Require(!x.empty(), "stop", "x must not be empty")) return {};
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < x.size(); ++p) buffers.push_back(x.buffer(p));
  return Tensor(ViewsOf(x), std::move(buffers));
}

Tensor Ops::Copy(const Tensor& x, DType dtype) { return Apply(ElementOp::kCopy, x, dtype); }

Tensor Ops::Concat(const std::vector<Tensor>& parts, int axis) {
  bool fits = !parts.empty() && !parts[0].empty();
  for (const Tensor& part : parts) fits = fits && part.size() == parts[0].size();
  if (!Require(fits, "concat", "parts must be lists of one length")) return {};
  const int a = AxisOf(axis, parts[0][0].shape.rank);
  std::vector<Shape> shapes = ShapesOf(parts[0]);
  for (size_t p = 0; p < shapes.size(); ++p) {
    for (size_t i = 1; i < parts.size(); ++i) {
      Shape same = parts[i][p].shape;
      shapes[p].dims[a] += same[a];
      same.dims[a] = shapes[p][a];
      fits = fits && same == shapes[p];
    }
  }
  if (!Require(fits, "concat", "all but one dimension must be equal")) return {};
  const Tensor out = Empty(parts[0][0].dtype == DType::kI32 ? DType::kI32 : DType::kF32, shapes);
  if (!status_.ok()) return {};
  std::vector<View> from, to;
  std::vector<std::vector<int64_t>> begins;  // [part][problem], and the end of the last
  std::vector<int64_t> begin(shapes.size(), 0);
  for (const Tensor& part : parts) {
    begins.push_back(begin);
    for (size_t p = 0; p < shapes.size(); ++p) {
      const int64_t end = begin[p] + part[p].shape[a];
      from.push_back(part[p]);
      to.push_back(Part(out[p], a, begin[p], end, 1));
      begin[p] = end;
    }
  }
  begins.push_back(begin);
  CopyInto(from, to);
  if (!status_.ok()) return {};
  bool records = false;
  for (const Tensor& part : parts) records = records || Records({&part});
  if (records) {
    tape_->Record(
        parts, {out},
        [a, begins](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>& wanted) {
          std::vector<Tensor> result;
          for (size_t i = 0; i < wanted.size(); ++i) {
            result.push_back(wanted[i] ? ops.Slice(grads[0], a, begins[i], begins[i + 1])
                                       : Tensor());
          }
          return result;
        });
  }
  return out;
}

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
