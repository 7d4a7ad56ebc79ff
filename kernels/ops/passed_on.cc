#include "kernels/ops/passed_on.h"

#include <utility>

namespace attnd {
namespace {

bool LiesLike(const View& x, const View& dense) {
  if (x.dtype != dense.dtype || x.layout != dense.layout) return false;
  for (int i = 0; i < dense.shape.rank; ++i) {
    if (dense.shape[i] > 1 && x.stride[i] != dense.stride[i]) return false;
  }
  return true;
}

}  // namespace

Tensor Picked(const Tensor& x, const std::vector<size_t>& list) {
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (const size_t p : list) {
    views.push_back(x[p]);
    buffers.push_back(x.buffer(p));
  }
  return Tensor(std::move(views), std::move(buffers));
}

Tensor PassedOn(const Tensor& x, const Equals& equals,
                const std::function<Tensor(const std::vector<size_t>& others)>& compute) {
  std::vector<size_t> others;
  bool is_x = x.size() == equals.size();
  for (size_t p = 0; p < equals.size(); ++p) {
    if (!equals[p].has_value()) others.push_back(p);
    is_x = is_x && equals[p] == p;
  }
  if (is_x) return x;
  const Tensor computed = others.empty() ? Tensor() : compute(others);
  if (computed.size() != others.size()) return {};  // it failed
  if (others.size() == equals.size()) return computed;
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  size_t next = 0;
  for (const std::optional<size_t>& equal : equals) {
    const Tensor& from = equal.has_value() ? x : computed;
    const size_t number = equal.has_value() ? *equal : next++;
    views.push_back(from[number]);
    buffers.push_back(from.buffer(number));
  }
  return Tensor(std::move(views), std::move(buffers));
}

bool MayPassAs(const View& x, DType dtype, const Shape& shape) {
  if (x.dtype != dtype || x.shape != shape) return false;
  // Without elements, dense strides are 0 as well.
  const bool has_elements = shape.size() > 0;
  for (int i = 0; i < shape.rank; ++i) {
    const bool repeats = has_elements && x.stride[i] == 0;
    if (shape[i] > 1 && (repeats || (i == shape.rank - 1 && x.stride[i] != 1))) return false;
  }
  return true;
}

Tensor Settled(Ops& ops, const Tensor& x, DType dtype, const std::vector<Layout>& layouts) {
  if (!ops.status().ok()) return {};
  Equals equals(x.size());
  for (size_t p = 0; p < x.size(); ++p) {
    if (LiesLike(x[p], DenseView(nullptr, dtype, x[p].shape, layouts[p]))) equals[p] = p;
  }
  return PassedOn(x, equals, [&](const std::vector<size_t>& others) {
    const Tensor from = Picked(x, others);
    std::vector<Layout> of_others;
    for (const size_t p : others) of_others.push_back(layouts[p]);
    const Tensor dense = ops.Empty(dtype, ShapesOf(from), of_others);
    if (ops.status().ok()) ops.CopyInto(ViewsOf(from), ViewsOf(dense));
    return dense;
  });
}

}  // namespace attnd
