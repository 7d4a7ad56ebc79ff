// Compositions of merge and its gradient.
#include <limits>

#include "kernels/ops/composed.h"

namespace attnd {
namespace {

// [.., N] as [.., N, 1].
Tensor AsColumn(const Tensor& x) {
  std::vector<View> views = ViewsOf(x);
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < views.size(); ++p) {
    views[p].layout = Layout::kBHND;
    views[p].stride[views[p].shape.rank] = 1;
    views[p].shape.dims[views[p].shape.rank++] = 1;
    buffers.push_back(x.buffer(p));
  }
  return Tensor(std::move(views), std::move(buffers));
}

// Row by row; tensors are [.., N, 1].
struct Weights {
  Tensor zero, least;
  std::vector<Tensor> is_absent;  // of each part: 1 where its lse is -inf
  std::vector<Tensor> weights;    // e^(lse_p - most) / sum, 0 where it is absent
  Tensor most, sum;               // of lse_p, of e^(lse_p - most); lse_low_p counts in the latter

  Weights(Ops& ops, const std::vector<AttendOut>& parts) {
    if (!ops.status().ok()) return;
    std::vector<Tensor> lse;
    for (const AttendOut& part : parts) lse.push_back(AsColumn(part.lse));
    zero = NumberLike(ops, 0, lse[0]);
    least = NumberLike(ops, -std::numeric_limits<float>::infinity(), lse[0]);
    for (const Tensor& x : lse) {
      is_absent.push_back(ops.Apply(ElementOp::kEqual, x, least));
      most = most.empty() ? x : ops.Apply(ElementOp::kMaximum, most, x);
    }
    for (size_t i = 0; i < lse.size(); ++i) {
      Tensor rest = ops.Apply(ElementOp::kSubtract, lse[i], most);
      if (!parts[i].lse_low.empty()) {
        rest = ops.Apply(ElementOp::kAdd, rest, AsColumn(parts[i].lse_low));
      }
      weights.push_back(ops.Select(is_absent[i], zero, ops.Apply(ElementOp::kExp, rest)));
      sum = sum.empty() ? weights[i] : ops.Apply(ElementOp::kAdd, sum, weights[i]);
    }
    // An absent part weighs 0 even where the sum is NaN.
    for (Tensor& weight : weights) {
      weight = ops.Select(weight, ops.Apply(ElementOp::kDivide, weight, sum), zero);
    }
  }
};

}  // namespace

void ComposeMerge(Ops& ops, const std::vector<AttendOut>& parts, const AttendOut& out) {
  const Uncounted scope(ops);
  const Weights rows(ops, parts);
  if (!ops.status().ok()) return;
  Tensor total;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Tensor each = ops.Apply(ElementOp::kMultiply, rows.weights[i], parts[i].out);
    const Tensor seen = ops.Select(rows.is_absent[i], rows.zero, each);
    if (!ops.status().ok()) return;
    if (total.empty()) {
      total = seen;
    } else {
      ApplyInto(ops, ElementOp::kAdd, total, total, seen);
    }
  }
  ApplyInto(ops, ElementOp::kCopy, out.out, total);
  // Where one lse is +inf the sum is NaN, and the result +inf.
  const Tensor log_sum = ops.Apply(ElementOp::kLog, rows.sum);
  const Tensor log = ops.Apply(ElementOp::kAdd, rows.most, log_sum);
  const Tensor top = ops.Apply(ElementOp::kEqual, rows.most, ops.Affine(rows.least, -1));
  if (!ops.status().ok()) return;
  ApplyInto(ops, ElementOp::kSelect, AsColumn(out.lse), top, rows.most, log);
  const Tensor low =
      ops.Apply(ElementOp::kAdd, ops.Apply(ElementOp::kSubtract, rows.most, log), log_sum);
  // Not finite: NaN instead of 0.
  const Tensor nothing = ops.Apply(ElementOp::kSubtract, log, log);
  const Tensor is_finite = ops.Apply(ElementOp::kEqual, nothing, rows.zero);
  if (!ops.status().ok()) return;
  ApplyInto(ops, ElementOp::kSelect, AsColumn(out.lse_low), is_finite, low, rows.zero);
}

void ComposeMergeGrad(Ops& ops, const std::vector<AttendOut>& parts, const AttendOut& out,
                      const AttendOut& dout, const std::vector<AttendOut>& dparts) {
  const Uncounted scope(ops);
  const Weights rows(ops, parts);
  const auto times = [&](const Tensor& a, const Tensor& b) {
    return ops.Apply(ElementOp::kMultiply, a, b);
  };
  for (size_t i = 0; i < parts.size() && ops.status().ok(); ++i) {
    if (!dparts[i].out.empty()) {
      const Tensor flow = dout.out.empty() ? rows.zero : times(rows.weights[i], dout.out);
      ApplyInto(ops, ElementOp::kSelect, dparts[i].out, rows.is_absent[i], rows.zero, flow);
    }
    if (dparts[i].lse.empty()) continue;
    Tensor flow = dout.lse.empty() ? rows.zero : AsColumn(dout.lse);
    if (!dout.out.empty()) {
      const Tensor apart = ops.Apply(ElementOp::kSubtract, parts[i].out, out.out);
      const Tensor along = ops.Reduce(ReduceOp::kSum, times(dout.out, apart), -1);
      flow = ops.Apply(ElementOp::kAdd, flow, along);
    }
    const Tensor each = times(rows.weights[i], flow);
    if (!ops.status().ok()) return;
    ApplyInto(ops, ElementOp::kSelect, AsColumn(dparts[i].lse), rows.is_absent[i], rows.zero, each);
  }
}

}  // namespace attnd
