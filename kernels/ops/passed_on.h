// Problems of a list that need no new memory: their views are passed on, and only the others are
// computed, so that each problem allocates what it does alone.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/ops/ops.h"

namespace attnd {

// For each problem of a result the problem of a tensor that it equals, if there is one.
using Equals = std::vector<std::optional<size_t>>;

// The problems `list` of x.
Tensor Picked(const Tensor& x, const std::vector<size_t>& list);

// x[equals[p]] where it is given; the others come, in their order, from `compute` with their
// numbers. Not recorded.
Tensor PassedOn(const Tensor& x, const Equals& equals,
                const std::function<Tensor(const std::vector<size_t>& others)>& compute);

// Whether a view may take the place of a new tensor: of this dtype and shape, it repeats nothing by
// strides, and attend and scan take its rows.
bool MayPassAs(const View& x, DType dtype, const Shape& shape);

// x as a result: dense in this dtype and these layouts, in memory that it keeps alive. Not
// recorded.
Tensor Settled(Ops& ops, const Tensor& x, DType dtype, const std::vector<Layout>& layouts);

}  // namespace attnd
