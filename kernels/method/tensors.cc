#include "kernels/method/tensors.h"

#include <algorithm>
#include <utility>

#include "kernels/method/seq_groups.h"
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

Tensor ZerosBeyond(Ops& ops, const Inputs& in, const Tensor& x, absl::string_view lengths) {
  if (!ops.status().ok() || std::none_of(in.problems.begin(), in.problems.end(), HasLengths)) {
    return x;
  }
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> is_row;
  for (size_t p = 0; p < x.size(); ++p) {
    const int64_t B = x[p].shape[0], N = x[p].shape[2];
    shapes.push_back({B, 1, N, 1});
    std::vector<float>& of_problem = is_row.emplace_back();
    if (ops.stream().is_dry()) continue;
    of_problem.assign(static_cast<size_t>(B * N), 0);
    for (int64_t b = 0; b < B; ++b) {
      std::fill_n(of_problem.begin() + b * N, in.problems[p].Int(lengths, b, N), 1.0f);
    }
  }
  return ops.Select(ops.FromHost(shapes, std::move(is_row)), x, NumberLike(ops, 0, x));
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
