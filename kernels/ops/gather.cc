// Ops on rows by index, and their gradient rules.
#include <algorithm>

#include "kernels/ops/ops.h"

namespace attnd {
namespace {

int64_t At(const std::vector<int64_t>& list, size_t problem) {
  return list.size() == 1 ? list[0] : list[problem];
}

// Whether x [.., N, D] and index [.., M] broadcast; the shape of a result with `rows` rows.
bool Broadcast(const View& x, const View& index, int64_t rows, Shape* out) {
  if (x.shape.rank < 2 || index.shape.rank != x.shape.rank - 1) return false;
  *out = x.shape;
  for (int i = 0; i + 2 < x.shape.rank; ++i) {
    const int64_t a = x.shape[i], b = index.shape[i];
    if (a != b && a != 1 && b != 1) return false;
    out->dims[i] = a == 1 ? b : a;
  }
  out->dims[x.shape.rank - 2] = rows;
  return index.dtype == DType::kI32;
}

bool Divides(const View& divisor, const Shape& out) {
  if (divisor.shape.rank != out.rank - 1 || divisor.dtype != DType::kF32) return false;
  bool fits = divisor.shape[out.rank - 2] == out[out.rank - 2];
  for (int i = 0; i + 2 < out.rank; ++i) {
    fits = fits && (divisor.shape[i] == out[i] || divisor.shape[i] == 1);
  }
  return fits;
}

Tensor GatherRows(Ops& ops, const Tensor& x, const Tensor& index, const Tensor& divisor) {
  bool fits = !x.empty() && index.size() == x.size();
  std::vector<Shape> shapes(x.size());
  for (size_t p = 0; fits && p < x.size(); ++p) {
    const int64_t M = index[p].shape[std::max(index[p].shape.rank - 1, 0)];
    fits = Broadcast(x[p], index[p], M, &shapes[p]) && x[p].dtype == x[0].dtype &&
           (IsFloat(x[p].dtype) || x[p].dtype == DType::kI32);
  }
  if (!ops.Require(fits, "gather",
                   "x [.., N, D], int32 index [.., M], leading dimensions broadcast")) {
    return {};
  }
  const Tensor out = ops.Empty(x[0].dtype == DType::kI32 ? DType::kI32 : DType::kF32, shapes);
  if (!ops.status().ok()) return {};
  std::vector<GatherRowsProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) {
    problems.push_back({x[p], index[p], out[p], {}, ViewOf(divisor, p)});
  }
  ops.Run(GatherRowsArgs{.problems = std::move(problems)});
  return ops.status().ok() ? out : Tensor();
}

// x [.., M, D] into the rows (and columns) of fresh tensors of `shapes`.
Tensor ScatterTo(Ops& ops, const Tensor& x, const Tensor& index, const std::vector<Shape>& shapes,
                 const ScatterParams& params, const Tensor& columns = {}) {
  const Tensor out = ops.Empty(DType::kF32, shapes);
  if (!ops.status().ok()) return {};
  if (params.is_returned && ops.wants_gradients_alone()) return out;
  std::vector<ScatterRowsProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) {
    problems.push_back({x[p], index[p], out[p], ViewOf(columns, p), ViewOf(params.divisor, p)});
  }
  ops.Run(ScatterRowsArgs{.problems = std::move(problems)});
  return ops.status().ok() ? out : Tensor();
}

// REQUIRES: args without problems.
Tensor SortedIndices(Ops& ops, const Tensor& x, const std::vector<int64_t>& count, SortArgs args) {
  bool fits = !x.empty() && (count.size() == 1 || count.size() == x.size());
  std::vector<Shape> shapes;
  for (size_t p = 0; fits && p < x.size(); ++p) {
    shapes.push_back(x[p].shape);
    const int last = x[p].shape.rank - 1;
    fits = last >= 0 && (x[p].dtype == DType::kF32 || x[p].dtype == DType::kI32) &&
           0 <= At(count, p) && At(count, p) <= x[p].shape[last];
    shapes[p].dims[std::max(last, 0)] = At(count, p);
  }
  if (!ops.Require(fits, "sort", "x float32 or int32, count at most its last dimension")) return {};
  const Tensor order = ops.Empty(DType::kI32, shapes);
  if (!ops.status().ok()) return {};
  for (size_t p = 0; p < x.size(); ++p) args.problems.push_back({x[p], order[p]});
  ops.Run(std::move(args));
  return ops.status().ok() ? order : Tensor();
}

}  // namespace

Tensor Ops::Gather(const Tensor& x, const Tensor& index) {
  const Tensor out = GatherRows(*this, x, index, {});
  if (!status_.ok()) return {};
  if (Records({&x})) {
    tape_->Record({x}, {out},
                  [index, before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                                const std::vector<bool>&) -> std::vector<Tensor> {
                    return {ScatterTo(ops, grads[0], index, before, {})};
                  });
  }
  return out;
}

Tensor Ops::Scatter(const Tensor& x, const Tensor& index, const std::vector<int64_t>& rows,
                    const ScatterParams& params) {
  const Tensor& divisor = params.divisor;
  bool fits =
      !x.empty() && index.size() == x.size() && (rows.size() == 1 || rows.size() == x.size());
  fits = fits && (divisor.empty() || divisor.size() == x.size());
  std::vector<Shape> shapes(x.size());
  for (size_t p = 0; fits && p < x.size(); ++p) {
    fits = Broadcast(x[p], index[p], At(rows, p), &shapes[p]) && IsFloat(x[p].dtype) &&
           index[p].shape[index[p].shape.rank - 1] == x[p].shape[x[p].shape.rank - 2] &&
           At(rows, p) >= 0 && (divisor.empty() || Divides(divisor[p], shapes[p]));
  }
  if (!Require(fits, "scatter",
               "float x [.., M, D], int32 index [.., M], a number of rows, float32 divisor "
               "[.., rows]")) {
    return {};
  }
  const Tensor out = ScatterTo(*this, x, index, shapes, params);
  if (!status_.ok()) return {};
  if (Records({&x})) {
    tape_->Record(
        {x}, {out},
        [index, divisor, before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                               const std::vector<bool>&) -> std::vector<Tensor> {
          const Tensor rows = GatherRows(ops, grads[0], index, divisor);
          if (!ops.status().ok() || ShapesOf(rows) == before) return {rows};
          return {ops.SumTo(rows, before)};
        });
  }
  return out;
}

Tensor Ops::GatherPairs(const Tensor& x, const Tensor& rows, const Tensor& columns) {
  bool fits = !x.empty() && rows.size() == x.size() && columns.size() == x.size();
  std::vector<Shape> shapes(x.size());
  for (size_t p = 0; fits && p < x.size(); ++p) {
    const int last = std::max(rows[p].shape.rank - 1, 0);
    View both = x[p];
    fits = Broadcast(x[p], rows[p], rows[p].shape[last], &both.shape) &&
           Broadcast(both, columns[p], rows[p].shape[last], &shapes[p]) && IsFloat(x[p].dtype);
    shapes[p].dims[last + 1] = columns[p].shape[last];
  }
  if (!Require(fits, "gather_pairs",
               "float x [.., N, K], int32 rows [.., M], int32 columns [.., W], leading dimensions "
               "broadcast")) {
    return {};
  }
  const Tensor out = Empty(DType::kF32, shapes);
  if (!status_.ok()) return {};
  std::vector<GatherRowsProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], rows[p], out[p], columns[p]});
  Run(GatherRowsArgs{.problems = std::move(problems)});
  if (!status_.ok()) return {};
  if (Records({&x})) {
    tape_->Record(
        {x}, {out},
        [rows, columns, before = ShapesOf(x)](Ops& ops, std::span<const Tensor> grads,
                                              const std::vector<bool>&) -> std::vector<Tensor> {
          return {ScatterTo(ops, grads[0], rows, before, {}, columns)};
        });
  }
  return out;
}

Tensor Ops::Sort(const Tensor& x, const std::vector<int64_t>& count, bool descending) {
  return SortedIndices(*this, x, count, {.descending = descending});
}

Tensor Ops::TopK(const Tensor& x, const std::vector<int64_t>& count, bool by_index) {
  return SortedIndices(*this, x, count, {.descending = true, .by_index = by_index});
}

}  // namespace attnd
