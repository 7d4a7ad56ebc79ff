// The composition of pool. Ranges that rise are dealt to layers in turn, so that those
// of one layer share no row: a layer is one scatter, or one sort by range.
#include <algorithm>
#include <limits>

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

std::vector<std::shared_ptr<Buffer>> Buffers(const Tensor& x) {
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < x.size(); ++p) buffers.push_back(x.buffer(p));
  return buffers;
}

// Of each of `size` rows the number of its range, -1 in no range.
std::vector<int32_t> RangeOfRows(const std::vector<RowRange>& ranges, int64_t size) {
  std::vector<int32_t> list(static_cast<size_t>(size), -1);
  for (size_t m = 0; m < ranges.size(); ++m) {
    std::fill(list.begin() + ranges[m].begin, list.begin() + ranges[m].end,
              static_cast<int32_t>(m));
  }
  return list;
}

// Where each range begins in a list of `size` rows sorted by their range: those of no range come
// first, the last row at their end. An empty range begins at that row.
std::vector<int32_t> PlacesOfRanges(const std::vector<RowRange>& ranges, int64_t size) {
  std::vector<int32_t> places;
  int64_t place = size;
  for (const RowRange& r : ranges) place -= r.end - r.begin;
  const auto last_of_none = static_cast<int32_t>(place - 1);
  for (const RowRange& r : ranges) {
    places.push_back(r.begin < r.end ? static_cast<int32_t>(place) : last_of_none);
    place += r.end - r.begin;
  }
  return places;
}

// The layers of all problems, and their index lists on the device: one upload. Lists count N + 1
// rows for a problem of N.
class LayerLists {
 public:
  LayerLists(Ops& ops, const Tensor& x, const RangeLists& ranges, bool is_max) {
    const size_t layers = Layers(ranges);
    for (size_t l = 0; l < layers; ++l) layers_.push_back(Layer(ranges, l, layers));
    std::vector<Shape> shapes;
    std::vector<std::vector<int32_t>> lists(x.size());
    for (size_t p = 0; p < x.size(); ++p) {
      size_.push_back(RowsOf(x[p]) + 1);
      const auto count = static_cast<int64_t>(layers), m = static_cast<int64_t>(ranges[p].size());
      shapes.push_back({1, size_[p] * (count + (is_max ? 1 : 0)) + (is_max ? m : 0)});
      if (!ops.stream().is_dry()) lists[p] = List(p, is_max);
    }
    all_ = ops.FromHost(shapes, std::move(lists));
  }

  size_t count() const { return layers_.size(); }
  // Rows and one more, of every problem.
  const std::vector<int64_t>& size() const { return size_; }
  // The range of each of the first `rows` rows, [1, .., 1, rows] of `rank` dimensions.
  Tensor RangeOfRow(size_t layer, const std::vector<int64_t>& rows, int rank, int axis) const {
    return Lists(rows, rank, axis,
                 [&](size_t p) { return static_cast<int64_t>(layer) * size_[p]; });
  }
  // kMax: PlacesOfRanges, [1, .., 1, ranges] of `rank` dimensions.
  Tensor Places(size_t layer, int rank) const {
    std::vector<int64_t> sizes;
    for (const auto& list : layers_[layer]) sizes.push_back(static_cast<int64_t>(list.size()));
    return Lists(sizes, rank, rank - 1, [&](size_t p) {
      int64_t begin = static_cast<int64_t>(count()) * size_[p];
      for (size_t l = 0; l < layer; ++l) begin += static_cast<int64_t>(layers_[l][p].size());
      return begin;
    });
  }
  // kMax: the value of `arg` for each row, [1, .., 1, N + 1, 1] of `rank` dimensions.
  Tensor Args(int rank) const {
    return Lists(size_, rank, rank - 2, [&](size_t p) { return all_[p].shape[1] - size_[p]; });
  }

 private:
  std::vector<int32_t> List(size_t p, bool is_max) const {
    std::vector<int32_t> list;
    const auto add = [&](const std::vector<int32_t>& part) {
      list.insert(list.end(), part.begin(), part.end());
    };
    for (const RangeLists& layer : layers_) add(RangeOfRows(layer[p], size_[p]));
    if (!is_max) return list;
    for (const RangeLists& layer : layers_) add(PlacesOfRanges(layer[p], size_[p]));
    for (int64_t n = 0; n + 1 < size_[p]; ++n) list.push_back(static_cast<int32_t>(n));
    list.push_back(-1);
    return list;
  }
  // sizes[p] numbers of every problem from begin(p) on, along `axis` of `rank` dimensions.
  template <class Begin>
  Tensor Lists(const std::vector<int64_t>& sizes, int rank, int axis, const Begin& begin) const {
    if (all_.empty()) return {};
    std::vector<View> views;
    for (size_t p = 0; p < sizes.size(); ++p) {
      Shape shape;
      shape.rank = rank;
      shape.dims[axis] = sizes[p];
      int32_t* const data = all_[p].As<int32_t>();
      views.push_back(DenseView(data == nullptr ? data : data + begin(p), DType::kI32, shape));
    }
    return Tensor(std::move(views), Buffers(all_));
  }

  std::vector<RangeLists> layers_;
  std::vector<int64_t> size_;
  Tensor all_;
};

void SumRanges(Ops& ops, const Tensor& x, const LayerLists& lists, const Tensor& out) {
  std::vector<int64_t> rows;
  for (size_t p = 0; p < x.size(); ++p) rows.push_back(RowsOf(x[p]));
  for (size_t l = 0; l < lists.count() && ops.status().ok(); ++l) {
    const int rank = x[0].shape.rank - 1;
    const Tensor to = RowsOfLayer(ops, out, l, lists.count());
    const Tensor index = lists.RangeOfRow(l, rows, rank, rank - 1);
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
// stands for the result of empty ranges; of the rows in no range it comes last in both orders.
class FirstMaxima {
 public:
  FirstMaxima(Ops& ops, const Tensor& x, const LayerLists& lists) : ops_(ops), lists_(lists) {
    constexpr float kLeast = -std::numeric_limits<float>::infinity();
    const Tensor keys = WithLastRow(ops, x, kLeast);
    if (!ops.status().ok()) return;
    // [.., D, N + 1]
    order_ = ops.Sort(ops.Transpose(keys, -2, -1), lists.size(), /*descending=*/true);
    values_ = WithLastRow(ops, x, 0);
    rank_ = x[0].shape.rank;
  }

  // Of one layer. arg may be empty.
  void Write(size_t layer, const Tensor& out, const Tensor& arg) {
    if (!ops_.status().ok()) return;
    const Tensor range_of = lists_.RangeOfRow(layer, lists_.size(), rank_ + 1, rank_ - 1);
    const Tensor range = ops_.Gather(range_of, order_);
    if (!ops_.status().ok()) return;
    const Tensor by_range = ops_.Sort(Tensor(Each(range, AsList), Buffers(range)), lists_.size());
    const Tensor at = Gathered(by_range, lists_.Places(layer, rank_));
    const Tensor row = Gathered(order_, at);
    if (!ops_.status().ok()) return;
    GatherInto(ops_, Each(values_, Columns), ViewsOf(row), Each(out, Columns));
    if (arg.empty()) return;
    GatherInto(ops_, ViewsOf(lists_.Args(rank_ + 1)), ViewsOf(row), Each(arg, Columns));
  }

 private:
  // Elements of lists [.., D, N] by index.
  Tensor Gathered(const Tensor& lists, const Tensor& index) {
    if (!ops_.status().ok()) return {};
    const Tensor found = ops_.Gather(Tensor(Each(lists, AsRows), Buffers(lists)), index);
    return ops_.status().ok() ? Tensor(Each(found, AsList), Buffers(found)) : Tensor();
  }

  Ops& ops_;
  const LayerLists& lists_;
  Tensor order_, values_;
  int rank_ = 0;
};

void MaxOfRanges(Ops& ops, const Tensor& x, const Tensor& arg, const LayerLists& lists,
                 const Tensor& out) {
  const Tensor is_number = ops.Apply(ElementOp::kEqual, x, x);
  const Tensor least = NumberLike(ops, -std::numeric_limits<float>::infinity(), x);
  FirstMaxima maxima(ops, ops.Select(is_number, x, least), lists);
  const size_t layers = lists.count();
  for (size_t l = 0; l < layers && ops.status().ok(); ++l) {
    maxima.Write(l, RowsOfLayer(ops, out, l, layers),
                 arg.empty() ? arg : RowsOfLayer(ops, arg, l, layers));
  }
  const Tensor strange = ops.Empty(DType::kF32, ShapesOf(out));
  SumRanges(ops, ops.Affine(is_number, -1, 1), lists, strange);
  const Tensor nan = NumberLike(ops, std::numeric_limits<float>::quiet_NaN(), out);
  ApplyInto(ops, ElementOp::kSelect, out, strange, nan, out);
}

// The first two dimensions as one, in problems that have no dimension left for the columns of a
// gather. A view of a dense tensor.
Tensor Folded(Ops& ops, const Tensor& x) {
  if (!ops.status().ok() || x.empty() || x[0].shape.rank < kMaxRank) return x;
  std::vector<Shape> shapes;
  for (size_t p = 0; p < x.size(); ++p) {
    Shape& folded = shapes.emplace_back();
    folded.rank = x[p].shape.rank - 1;
    folded.dims[0] = x[p].shape[0] * x[p].shape[1];
    for (int i = 1; i < folded.rank; ++i) folded.dims[i] = x[p].shape[i + 1];
  }
  return ops.Reshape(x, shapes);
}

}  // namespace

void ComposePool(Ops& ops, PoolOp op, const Tensor& x, const Tensor& arg, const RangeLists& ranges,
                 const Tensor& out) {
  const Uncounted scope(ops);
  if (op == PoolOp::kSum) return SumRanges(ops, x, LayerLists(ops, x, ranges, false), out);
  const Tensor from = Folded(ops, x), to = Folded(ops, out), rows = Folded(ops, arg);
  if (!ops.status().ok()) return;
  if (op == PoolOp::kSumWhere) return SumWhere(ops, from, rows, to);
  MaxOfRanges(ops, from, rows, LayerLists(ops, from, ranges, /*is_max=*/true), to);
}

}  // namespace attnd
