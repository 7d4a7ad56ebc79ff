#include "kernels/method/tensors.h"

#include "kernels/ops/ops.h"
#include "kernels/ops/passed_on.h"

namespace attnd {

Tensor Sent(const Inputs& in, const std::string& name) {
  const auto found = in.tensors.find(name);
  return found == in.tensors.end() ? Tensor() : found->second;
}

Tensor WithRank(Ops& ops, const Tensor& x, int rank) {
  std::vector<Shape> shapes;
  for (size_t p = 0; p < x.size(); ++p) {
    Shape shape;
    shape.rank = rank;
    const int missing = rank - x[p].shape.rank;
    for (int i = 0; i < x[p].shape.rank; ++i) shape.dims[missing + i] = x[p].shape[i];
    shapes.push_back(shape);
  }
  return shapes == ShapesOf(x) ? x : ops.Reshape(x, shapes);
}

Tensor AsOutput(Ops& ops, const Tensor& x, DType dtype, const std::vector<Layout>& layouts) {
  const Tensor out = Settled(ops, x, dtype, layouts);
  if (!ops.status().ok() || out.id() == x.id()) return out;
  if (ops.Records({&x})) {
    ops.tape()->Record({x}, {out},
                       [](Ops&, std::span<const Tensor> grads,
                          const std::vector<bool>&) -> std::vector<Tensor> { return {grads[0]}; });
  }
  return out;
}

}  // namespace attnd
