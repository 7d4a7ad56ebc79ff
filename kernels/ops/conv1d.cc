// Ops::Conv1d, DepthwiseConv1d and their gradient rules.
#include <algorithm>

#include "kernels/ops/composed.h"

namespace attnd {
namespace {

// x, a weight with its last axis w, and what they share.
bool FitsConv(const View& x, const View& weight, const View& bias) {
  const Shape &s = x.shape, &ws = weight.shape, &bs = bias.shape;
  bool fits = s.rank == 4 && ws.rank == 5 && IsFloat(x.dtype) && IsFloat(weight.dtype) &&
              ws[3] == s[3] && ws[4] >= 1;
  fits = fits && (!bias.given() || (bs.rank == 3 && IsFloat(bias.dtype) && bs[2] == ws[2]));
  for (int i = 0; fits && i < 2; ++i) {
    fits = (ws[i] == s[i] || ws[i] == 1) && (!bias.given() || bs[i] == s[i] || bs[i] == 1);
  }
  return fits;
}

// Rows of out that read no row outside N of them.
int64_t InnerColumns(int64_t N, int64_t width, const Conv1dParams& params) {
  const int64_t reach = (width - 1) * params.dilation + 1;
  return N < reach ? 0 : (N - reach) / params.stride + 1;
}

// x with rows of zeros at its end, so that every window lies inside; x itself where all do.
Tensor Padded(Ops& ops, const Tensor& x, const std::vector<int64_t>& columns, int64_t width,
              const Conv1dParams& params) {
  std::vector<Shape> zeros;
  bool any = false;
  for (size_t p = 0; p < x.size(); ++p) {
    Shape shape = x[p].shape;
    const int64_t last = (columns[p] - 1) * params.stride + (width - 1) * params.dilation;
    shape.dims[2] = columns[p] == 0 ? 0 : std::max<int64_t>(last + 1 - shape[2], 0);
    any = any || shape.dims[2] > 0;
    zeros.push_back(shape);
  }
  return any ? ops.Concat({x, ops.Constant(0, zeros)}, 2) : x;
}

// One row of weights for each head of x; a row that repeats has stride 0.
View PerHead(const View& weight, int64_t heads) {
  View view = weight;
  if (view.shape[0] == 1) view.stride[0] = 0;
  view.shape.dims[0] = heads;
  return view;
}

// A multiplication and an addition for each element and tap.
void CountFlops(Ops& ops, const Tensor& x, const Tensor& weight) {
  for (size_t p = 0; p < x.size(); ++p) {
    ops.stream().work().flops +=
        2 * static_cast<double>(x[p].shape.size()) * static_cast<double>(weight[p].shape[1]);
  }
}

Tensor Depthwise(Ops& ops, const Tensor& x, const Tensor& weight, int64_t left, bool flipped) {
  const Tensor rows = WithContiguousRows(ops, x);
  const Tensor out = ops.Empty(DType::kF32, ShapesOf(x), LayoutsOf(x));
  if (!ops.status().ok()) return {};
  std::vector<DepthwiseConvProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) {
    problems.push_back({rows[p], PerHead(weight[p], x[p].shape[1]), out[p]});
  }
  CountFlops(ops, rows, weight);
  DepthwiseConvArgs args{.left = left, .flipped = flipped, .problems = std::move(problems)};
  if (!ops.TryRun(std::move(args))) ComposeDepthwiseConv(ops, rows, weight, left, flipped, out);
  return ops.status().ok() ? out : Tensor();
}

Tensor DepthwiseWeightGrad(Ops& ops, const Tensor& x, const Tensor& weight, const Tensor& g,
                           int64_t left) {
  const Tensor rows = WithContiguousRows(ops, x), grads = WithContiguousRows(ops, g);
  std::vector<Shape> per_head;
  bool repeats = false;
  for (size_t p = 0; p < x.size(); ++p) {
    per_head.push_back({x[p].shape[1], weight[p].shape[1]});
    repeats = repeats || per_head.back()[0] != weight[p].shape[0];
  }
  const Tensor dweight = ops.Empty(DType::kF32, per_head);
  if (!ops.status().ok()) return {};
  std::vector<DepthwiseConvGradProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) problems.push_back({rows[p], grads[p], dweight[p]});
  CountFlops(ops, rows, weight);
  if (!ops.TryRun(DepthwiseConvGradArgs{.left = left, .problems = std::move(problems)})) {
    ComposeDepthwiseConvGrad(ops, rows, grads, left, dweight);
  }
  return repeats ? ops.SumTo(dweight, ShapesOf(weight)) : dweight;
}

bool FitsDepthwise(const View& x, const View& weight) {
  return x.shape.rank == 4 && weight.shape.rank == 2 && IsFloat(x.dtype) && IsFloat(weight.dtype) &&
         weight.shape[1] >= 1 && (weight.shape[0] == x.shape[1] || weight.shape[0] == 1);
}

}  // namespace

Tensor Ops::Conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                   const Conv1dParams& params) {
  const size_t asked = params.columns.size();
  bool fits = !x.empty() && weight.size() == x.size() &&
              (bias.empty() || bias.size() == x.size()) && params.stride >= 1 &&
              params.dilation >= 1 && (asked <= 1 || asked == x.size());
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = FitsConv(x[p], weight[p], ViewOf(bias, p)) && weight[p].shape[4] == weight[0].shape[4];
  }
  for (int64_t columns : params.columns) fits = fits && columns >= 0;
  if (!Require(fits, "conv1d",
               "x [B,H,N,I], weight [B|1,H|1,O,I,w], bias [B|1,H|1,O], stride and dilation >= 1")) {
    return {};
  }
  const int64_t width = weight[0].shape[4];
  std::vector<int64_t> columns;
  std::vector<Shape> windows, weights, biases;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape &s = x[p].shape, &w = weight[p].shape;
    columns.push_back(asked == 0 ? InnerColumns(s[2], width, params)
                                 : params.columns[asked == 1 ? 0 : p]);
    windows.push_back({s[0], s[1], columns.back(), width * s[3]});
    weights.push_back({w[0], w[1], w[2], width * w[3]});
    if (!bias.empty()) biases.push_back({bias[p].shape[0], bias[p].shape[1], 1, w[2]});
  }
  const Tensor padded = Padded(*this, x, columns, width, params);
  const Tensor rows =
      Reshape(Unfold(padded, columns, width, params.stride, params.dilation), windows);
  const Tensor matrix = Transpose(Reshape(Transpose(weight, 3, 4), weights), 2, 3);
  return MatMul(rows, matrix, {}, bias.empty() ? bias : Reshape(bias, biases));
}

Tensor Ops::DepthwiseConv1d(const Tensor& x, const Tensor& weight, int64_t left) {
  bool fits = !x.empty() && weight.size() == x.size();
  for (size_t p = 0; fits && p < x.size(); ++p) {
    // All weights have one width, since the gradient of x shifts by it.
    fits = FitsDepthwise(x[p], weight[p]) && weight[p].shape[1] == weight[0].shape[1];
  }
  if (!Require(fits, "depthwise_conv1d", "x [B,H,N,D] and weight [H|1,w] of float dtypes")) {
    return {};
  }
  const Tensor wide = weight[0].dtype == DType::kF32 ? weight : Copy(weight);
  if (!status_.ok()) return {};
  const Tensor out = Depthwise(*this, x, wide, left, /*flipped=*/false);
  if (!status_.ok() || !Records({&x, &wide})) return out;
  tape_->Record({x, wide}, {out},
                [=](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>& wanted) {
                  const int64_t width = wide[0].shape[1];
                  std::vector<Tensor> result(2);
                  // dx[m] = sum_t weight[t] g[m - t + left].
                  if (wanted[0]) {
                    result[0] = Depthwise(ops, grads[0], wide, width - 1 - left, true);
                  }
                  if (wanted[1]) result[1] = DepthwiseWeightGrad(ops, x, wide, grads[0], left);
                  return result;
                });
  return out;
}

}  // namespace attnd
