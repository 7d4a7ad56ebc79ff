// Ops::ColumnMass: dv of attention whose values are one number and whose dout is 1 is sum_i P_ij.
#include <algorithm>

#include "kernels/ops/attend_call.h"
#include "kernels/ops/composed.h"

namespace attnd {
namespace {

// The rows of kv head h / (H / Hkv) for every query head h; copied unless there are as many.
Tensor PerQueryHead(Ops& ops, const Tensor& x, const Tensor& q) {
  std::vector<Shape> grouped, repeated, flat;
  bool same = true;
  for (size_t p = 0; p < x.size(); ++p) {
    const Shape& s = x[p].shape;
    const int64_t H = q[p].shape[1];
    grouped.push_back({s[0], s[1], 1, s[2], s[3]});
    repeated.push_back({s[0], s[1], H / std::max<int64_t>(s[1], 1), s[2], s[3]});
    flat.push_back({s[0], H, s[2], s[3]});
    same = same && s[1] == H;
  }
  if (same) return x;
  const Tensor groups = ops.Reshape(x, grouped), copies = ops.Empty(x[0].dtype, repeated);
  if (!ops.status().ok()) return {};
  ops.CopyInto(ViewsOf(groups), ViewsOf(copies));
  return ops.Reshape(copies, flat);
}

// `value` in place of v: one column a key row, without memory but for that number.
Tensor Column(Ops& ops, float value, const std::vector<Shape>& shapes) {
  const Tensor column = ops.Constant(value, shapes);
  if (!ops.status().ok()) return {};
  std::vector<View> views = ViewsOf(column);
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < views.size(); ++p) {
    views[p].stride[3] = 1;  // kernels require it; the dimension has one element
    buffers.push_back(column.buffer(p));
  }
  return Tensor(std::move(views), std::move(buffers));
}

std::vector<Shape> ColumnShapes(const Tensor& x) {
  std::vector<Shape> shapes = ShapesOf(x);
  for (Shape& shape : shapes) shape.dims[3] = 1;
  return shapes;
}

}  // namespace

Tensor Ops::ColumnMass(const Tensor& q, const Tensor& k, const AttendParams& params,
                       const AttendSeqs& seqs, const AttendOut& attended,
                       const AttendTensors& terms) {
  const bool softmax = params.weighting == Weighting::kSoftmax && !attended.lse.empty();
  if (!Require(softmax && !q.empty() && !k.empty() && q.size() == k.size(), "column_mass",
               "q, k and lse must be lists of one length, weighting softmax")) {
    return {};
  }
  // Pairs and FLOPs are credited to the Attend that gave lse.
  const Uncounted scope(*this);
  AttendCall call{q, PerQueryHead(*this, k, q), {}, params, terms};
  Tensor result;
  if (status_.ok()) {
    call.v = Column(*this, 0, ColumnShapes(call.k));
    if (!terms.k2.empty()) {
      call.terms.k2 = PerQueryHead(*this, terms.k2, q);
      call.terms.v2 = Column(*this, 0, ColumnShapes(call.terms.k2));
    }
  }
  if (Prepare(*this, {&seqs, 1}, &call)) {
    const std::vector<Shape> out = ColumnShapes(q);
    const AttendFlow flow{
        {Column(*this, 0, out), attended.lse, attended.lse_low}, Column(*this, 1, out), {}};
    std::vector<bool> wanted(call.Inputs().size(), false);
    wanted[2] = true;
    const Tensor mass = LaunchAttendGrad(*this, call, seqs, flow, wanted, /*sinks=*/true,
                                         /*wide=*/true)[2];
    std::vector<Shape> shapes;
    for (size_t p = 0; p < q.size() && status_.ok(); ++p) {
      shapes.push_back({q[p].shape[0], q[p].shape[1], k[p].shape[2]});
    }
    if (status_.ok()) result = Reshape(mass, shapes);
  }
  return result;
}

}  // namespace attnd
