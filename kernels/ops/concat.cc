// Ops::Concat.
#include <algorithm>

#include "kernels/ops/ops.h"
#include "kernels/ops/part.h"
#include "kernels/ops/passed_on.h"

namespace attnd {
namespace {

// The problems `list` of Concat; part i begins at begins[i][problem].
Tensor Joined(Ops& ops, const std::vector<Tensor>& parts, int axis,
              const std::vector<std::vector<int64_t>>& begins, const std::vector<size_t>& list) {
  const DType dtype = parts[0][0].dtype == DType::kI32 ? DType::kI32 : DType::kF32;
  std::vector<Shape> shapes;
  for (const size_t p : list) {
    shapes.push_back(parts[0][p].shape);
    shapes.back().dims[axis] = begins.back()[p];
  }
  const Tensor out = ops.Empty(dtype, shapes);
  if (!ops.status().ok()) return {};
  std::vector<View> from, to;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t n = 0; n < list.size(); ++n) {
      const size_t p = list[n];
      from.push_back(parts[i][p]);
      to.push_back(Part(out[n], axis, begins[i][p], begins[i + 1][p], 1));
    }
  }
  ops.CopyInto(from, to);
  return out;
}

}  // namespace

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
  const DType dtype = parts[0][0].dtype == DType::kI32 ? DType::kI32 : DType::kF32;
  std::vector<std::vector<int64_t>> begins;  // [part][problem], and the end of the last
  std::vector<int64_t> begin(shapes.size(), 0);
  for (const Tensor& part : parts) {
    begins.push_back(begin);
    for (size_t p = 0; p < shapes.size(); ++p) begin[p] += part[p].shape[a];
  }
  begins.push_back(begin);
  // Parts that have all elements of their problems pass them on.
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  Equals equals(shapes.size());
  for (size_t p = 0; p < shapes.size(); ++p) {
    const auto whole = std::find_if(parts.begin(), parts.end(), [&](const Tensor& part) {
      return CountsEach() && MayPassAs(part[p], dtype, shapes[p]);
    });
    const Tensor& part = whole == parts.end() ? parts[0] : *whole;
    views.push_back(part[p]);
    buffers.push_back(part.buffer(p));
    if (whole != parts.end()) equals[p] = p;
  }
  const Tensor out = PassedOn(
      Tensor(std::move(views), std::move(buffers)), equals,
      [&](const std::vector<size_t>& others) { return Joined(*this, parts, a, begins, others); });
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

}  // namespace attnd
