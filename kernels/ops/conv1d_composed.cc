// Compositions of depthwise_conv and of the gradient of its weight: a product for each tap.
#include <algorithm>

#include "kernels/ops/composed.h"

namespace attnd {
namespace {

// Rows n of out that tap t reads at n + shift, both inside of N rows.
struct Overlap {
  std::vector<int64_t> out_begin, out_end, begin, end;  // per problem

  Overlap(const Tensor& x, int64_t shift) {
    for (size_t p = 0; p < x.size(); ++p) {
      const int64_t N = x[p].shape[2];
      out_begin.push_back(std::clamp<int64_t>(-shift, 0, N));
      out_end.push_back(std::clamp<int64_t>(N - shift, out_begin.back(), N));
      begin.push_back(std::clamp<int64_t>(out_begin.back() + shift, 0, N));
      end.push_back(begin.back() + out_end.back() - out_begin.back());
    }
  }
};

// Column t of [H|1,w] as [1,H|1,1,1].
Tensor Tap(Ops& ops, const Tensor& weight, int64_t t) {
  if (!ops.status().ok()) return {};
  std::vector<Shape> shapes;
  for (size_t p = 0; p < weight.size(); ++p) shapes.push_back({1, weight[p].shape[0], 1, 1});
  return ops.Reshape(ops.Slice(weight, 1, {t}, {t + 1}), shapes);
}

}  // namespace

void ComposeDepthwiseConv(Ops& ops, const Tensor& x, const Tensor& weight, int64_t left,
                          bool flipped, const Tensor& out) {
  const Uncounted scope(ops);
  const int64_t width = weight[0].shape[1];
  ApplyInto(ops, ElementOp::kCopy, out, NumberLike(ops, 0, out));
  for (int64_t t = 0; t < width && ops.status().ok(); ++t) {
    const Overlap rows(x, t - left);
    const Tensor read = ops.Slice(x, 2, rows.begin, rows.end);
    const Tensor each =
        ops.Apply(ElementOp::kMultiply, read, Tap(ops, weight, flipped ? width - 1 - t : t));
    const Tensor sum = ops.Slice(out, 2, rows.out_begin, rows.out_end);
    if (ops.status().ok()) ApplyInto(ops, ElementOp::kAdd, sum, sum, each);
  }
}

void ComposeDepthwiseConvGrad(Ops& ops, const Tensor& x, const Tensor& dout, int64_t left,
                              const Tensor& dweight) {
  const Uncounted scope(ops);
  const int64_t width = dweight[0].shape[1];
  for (int64_t t = 0; t < width && ops.status().ok(); ++t) {
    const Overlap rows(x, t - left);
    const Tensor each = ops.Apply(ElementOp::kMultiply, ops.Slice(x, 2, rows.begin, rows.end),
                                  ops.Slice(dout, 2, rows.out_begin, rows.out_end));
    const Tensor to = Tap(ops, dweight, t);
    if (ops.status().ok()) ApplyInto(ops, ElementOp::kCopy, to, ops.SumTo(each, ShapesOf(to)));
  }
}

}  // namespace attnd
