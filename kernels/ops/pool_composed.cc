// What stands in for launches of pool. Ranges that rise are dealt to layers in turn, so that those
// of one layer share no row: a layer is one scatter, or one sort by range.
#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/ops/composed.h"

namespace attnd {
namespace {

using RangeLists = std::vector<std::vector<RowRange>>;

int64_t RowsOf(const View& x) { return x.shape[x.shape.rank - 2]; }

// So many layers are enough for every problem: ranges m and m + Layers share no row.
size_t Layers(const RangeLists& all) {
  size_t layers = 1;
  for (const std::vector<RowRange>& ranges : all) {
    for (size_t m = 0; m + layers < ranges.size(); ++m) {
      while (m + layers < ranges.size() && ranges[m].end > ranges[m + layers].begin) ++layers;
    }
  }
  return layers;
}

// Ranges layer, layer + layers, .. of every problem.
RangeLists Layer(const RangeLists& all, size_t layer, size_t layers) {
  RangeLists own(all.size());
  for (size_t p = 0; p < all.size(); ++p) {
    for (size_t m = layer; m < all[p].size(); m += layers) own[p].push_back(all[p][m]);
  }
  return own;
}

// The rows of `out` that these ranges write.
Tensor RowsOfLayer(Ops& ops, const Tensor& out, size_t layer, size_t layers) {
  std::vector<int64_t> begin, end;
  for (size_t p = 0; p < out.size(); ++p) {
    end.push_back(RowsOf(out[p]));
    begin.push_back(std::min(static_cast<int64_t>(layer), end.back()));
  }
  return ops.Slice(out, -2, begin, end, static_cast<int64_t>(layers));
}

// [.., n, d] as columns of their own: [.., d, n, 1].
View Columns(View view) {
  const int row = view.shape.rank - 2;
  std::swap(view.shape.dims[row], view.shape.dims[row + 1]);
  std::swap(view.stride[row], view.stride[row + 1]);
  view.stride[view.shape.rank] = 1;
  view.shape.dims[view.shape.rank++] = 1;
  view.layout = Layout::kBHND;
  return view;
}

// [.., d, n] as [.., d, n, 1], and back.
View AsRows(View view) {
  view.stride[view.shape.rank] = 1;
  view.shape.dims[view.shape.rank++] = 1;
  return view;
}
View AsList(View view) {
  view.shape.dims[--view.shape.rank] = 1;
  return view;
}

// Whole numbers of the host, [1, .., 1, n] of the rank of `like` or one less (more = -1), or
// [1, .., 1, n, 1] of one more. values(p) of problem p has sizes[p] of them and is not called in a
// dry run.
template <class Values>
Tensor Numbers(Ops& ops, const Tensor& like, const std::vector<int64_t>& sizes, int more,
               const Values& values) {
  std::vector<Shape> shapes;
  std::vector<std::vector<int32_t>> lists;
  for (size_t p = 0; p < like.size(); ++p) {
    Shape& shape = shapes.emplace_back();
    shape.rank = like[p].shape.rank + more;
    shape.dims[std::min(shape.rank, like[p].shape.rank) - 1] = sizes[p];
    lists.push_back(ops.stream().is_dry() ? std::vector<int32_t>() : values(p));
  }
  return ops.FromHost(shapes, std::move(lists));
}

// Of each of `size` rows the number of its range, `none` in no range.
std::vector<int32_t> RangeOfRows(const std::vector<RowRange>& ranges, int64_t size, int32_t none) {
  std::vector<int32_t> list(static_cast<size_t>(size), none);
  for (size_t m = 0; m < ranges.size(); ++m) {
    std::fill(list.begin() + ranges[m].begin, list.begin() + ranges[m].end,
              static_cast<int32_t>(m));
  }
  return list;
}

void SumRanges(Ops& ops, const Tensor& x, const RangeLists& ranges, const Tensor& out) {
  const size_t layers = Layers(ranges);
  std::vector<int64_t> rows;
  for (size_t p = 0; p < x.size(); ++p) rows.push_back(RowsOf(x[p]));
  for (size_t l = 0; l < layers && ops.status().ok(); ++l) {
    const RangeLists own = Layer(ranges, l, layers);
    const Tensor to = RowsOfLayer(ops, out, l, layers);
    const Tensor index = Numbers(ops, x, rows, /*more=*/-1, [&](size_t p) {
      return RangeOfRows(own[p], rows[p], /*none=*/-1);
    });
    if (!ops.status().ok()) return;
    std::vector<ScatterRowsProblem> problems;
    for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], index[p], to[p]});
    ops.Run(ScatterRowsArgs{.problems = std::move(problems)});
  }
}

// `arg` names the one row of the sum that an element of x goes to.
void SumWhere(Ops& ops, const Tensor& x, const Tensor& arg, const Tensor& out) {
  std::vector<ScatterRowsProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) {
    problems.push_back({Columns(x[p]), AsList(Columns(arg[p])), Columns(out[p])});
  }
  ops.Run(ScatterRowsArgs{.problems = std::move(problems)});
}

// One launch. Problems [.., D, N, 1] by lists [.., D, M].
void GatherInto(Ops& ops, const std::vector<View>& x, const std::vector<View>& index,
                const std::vector<View>& out) {
  if (!ops.status().ok()) return;
  std::vector<GatherRowsProblem> problems;
  for (size_t p = 0; p < x.size(); ++p) problems.push_back({x[p], index[p], out[p]});
  ops.Run(GatherRowsArgs{.problems = std::move(problems)});
}

template <class F>
std::vector<View> Each(const Tensor& x, const F& f) {
  std::vector<View> views;
  for (size_t p = 0; p < x.size(); ++p) views.push_back(f(x[p]));
  return views;
}

// x and one more row that holds `value`.
Tensor WithLastRow(Ops& ops, const Tensor& x, float value) {
  std::vector<Shape> row = ShapesOf(x);
  for (Shape& shape : row) shape.dims[shape.rank - 2] = 1;
  return ops.Concat({x, ops.Constant(value, row)}, -2);
}

// The first maxima of ranges of rows without NaN. Rows sorted by value, largest first, and then by
// range hold the maximum of a range where the range begins. A last row that belongs to no range
// comes last in both orders and stands for the result of empty ranges.
class FirstMaxima {
 public:
  FirstMaxima(Ops& ops, const Tensor& x) : ops_(ops) {
    constexpr float kLeast = -std::numeric_limits<float>::infinity();
    for (size_t p = 0; p < x.size(); ++p) size_.push_back(RowsOf(x[p]) + 1);
    const Tensor keys = WithLastRow(ops, x, kLeast);
    if (!ops.status().ok()) return;
    order_ = ops.Sort(ops.Transpose(keys, -2, -1), size_, /*descending=*/true);  // [.., D, N + 1]
    values_ = WithLastRow(ops, x, 0);
    row_ = Numbers(ops, x, size_, /*more=*/1, [&](size_t p) {
      std::vector<int32_t> rows(static_cast<size_t>(size_[p]));
      std::iota(rows.begin(), rows.end(), 0);
      rows.back() = -1;
      return rows;
    });
  }

  // Ranges without common rows. arg may be empty.
  void Write(const RangeLists& ranges, const Tensor& out, const Tensor& arg) {
    if (!ops_.status().ok()) return;
    const Tensor range_of = Numbers(ops_, values_, size_, /*more=*/1, [&](size_t p) {
      return RangeOfRows(ranges[p], size_[p], static_cast<int32_t>(ranges[p].size()));
    });
    const Tensor range = ops_.Gather(range_of, order_);
    if (!ops_.status().ok()) return;
    const Tensor by_range = ops_.Sort(Tensor(Each(range, AsList), Buffers(range)), size_);
    std::vector<int64_t> counts;
    for (const auto& list : ranges) counts.push_back(static_cast<int64_t>(list.size()));
    const Tensor first = Numbers(ops_, values_, counts, /*more=*/0, [&](size_t p) {
      std::vector<int32_t> places;
      int64_t place = 0;
      for (const RowRange& r : ranges[p]) {
        places.push_back(static_cast<int32_t>(r.begin < r.end ? place : size_[p] - 1));
        place += r.end - r.begin;
      }
      return places;
    });
    const Tensor at = Gathered(by_range, first), row = Gathered(order_, at);
    if (!ops_.status().ok()) return;
    GatherInto(ops_, Each(values_, Columns), ViewsOf(row), Each(out, Columns));
    if (!arg.empty()) GatherInto(ops_, ViewsOf(row_), ViewsOf(row), Each(arg, Columns));
  }

 private:
  static std::vector<std::shared_ptr<Buffer>> Buffers(const Tensor& x) {
    std::vector<std::shared_ptr<Buffer>> buffers;
    for (size_t p = 0; p < x.size(); ++p) buffers.push_back(x.buffer(p));
    return buffers;
  }
  // Elements of lists [.., D, N] by index.
  Tensor Gathered(const Tensor& lists, const Tensor& index) {
    if (!ops_.status().ok()) return {};
    const Tensor found = ops_.Gather(Tensor(Each(lists, AsRows), Buffers(lists)), index);
    return ops_.status().ok() ? Tensor(Each(found, AsList), Buffers(found)) : Tensor();
  }

  Ops& ops_;
  std::vector<int64_t> size_;  // rows of every problem, and the last one
  Tensor order_, values_;
  Tensor row_;  // the row that `arg` names, [1, .., 1, N + 1, 1]
};

void MaxOfRanges(Ops& ops, const Tensor& x, const Tensor& arg, const RangeLists& ranges,
                 const Tensor& out) {
  const Tensor is_number = ops.Apply(ElementOp::kEqual, x, x);
  const Tensor least = NumberLike(ops, -std::numeric_limits<float>::infinity(), x);
  FirstMaxima maxima(ops, ops.Select(is_number, x, least));
  const size_t layers = Layers(ranges);
  for (size_t l = 0; l < layers && ops.status().ok(); ++l) {
    maxima.Write(Layer(ranges, l, layers), RowsOfLayer(ops, out, l, layers),
                 arg.empty() ? arg : RowsOfLayer(ops, arg, l, layers));
  }
  const Tensor strange = ops.Empty(DType::kF32, ShapesOf(out));
  SumRanges(ops, ops.Affine(is_number, -1, 1), ranges, strange);
  const Tensor nan = NumberLike(ops, std::numeric_limits<float>::quiet_NaN(), out);
  ApplyInto(ops, ElementOp::kSelect, out, strange, nan, out);
}

}  // namespace

void ComposePool(Ops& ops, PoolOp op, const Tensor& x, const Tensor& arg, const RangeLists& ranges,
                 const Tensor& out) {
  const Uncounted scope(ops);
  const bool fits = op == PoolOp::kSum || x[0].shape.rank < kMaxRank;
  if (!ops.Require(fits, "pool", "without a kernel, maxima have 5 dimensions at most")) return;
  switch (op) {
    case PoolOp::kMax:
      return MaxOfRanges(ops, x, arg, ranges, out);
    case PoolOp::kSumWhere:
      return SumWhere(ops, x, arg, out);
    default:
      return SumRanges(ops, x, ranges, out);
  }
}

}  // namespace attnd
