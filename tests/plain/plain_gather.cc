#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/plain/plain.h"

namespace attnd::testing {
namespace {

using Index = std::vector<int64_t>;

// The shape of index, its leading dimensions broadcast with those of x and columns.
Shape Rows(const PlainArray& x, const PlainArray& index, const View& columns) {
  Shape shape = index.shape;
  for (int i = 0; i + 1 < shape.rank; ++i) {
    if (shape[i] == 1) shape.dims[i] = x.shape[i];
    if (shape[i] == 1 && columns.given()) shape.dims[i] = columns.shape[i];
  }
  return shape;
}

// The columns of a matrix that `lead` (with any last element) is in: of w, where all are not given,
// w itself.
class Columns {
 public:
  explicit Columns(const View& columns) : given_(columns.given()) {
    if (given_) list_ = ReadView(columns);
  }
  int64_t Of(Index lead, int64_t w) const {
    if (!given_) return w;
    lead.back() = w;
    return static_cast<int64_t>(list_.At(lead));
  }

 private:
  const bool given_;
  PlainArray list_;
};

Index With(Index index, int64_t row, int64_t d) {
  index.back() = row;
  index.push_back(d);
  return index;
}

// `value` of row `n`, divided by what the row is divided by.
class Divisors {
 public:
  explicit Divisors(const View& divisor) : given_(divisor.given()) {
    if (given_) list_ = ReadView(divisor);
  }
  double Divided(double value, Index lead, int64_t n) const {
    if (!given_) return value;
    lead.back() = n;
    const double by = list_.At(lead);
    return by == 0 ? 0 : value / by;
  }

 private:
  const bool given_;
  PlainArray list_;
};

}  // namespace

template <>
void PlainRun(const GatherRowsArgs& args) {
  for (const GatherRowsProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x), index = ReadView(p.index);
    const Columns columns(p.columns);
    const Divisors divisors(p.divisor);
    PlainArray out(p.out.shape);
    ForEachIndex(out.shape, [&](const Index& at) {
      const Index row(at.begin(), at.end() - 1);
      const auto n = static_cast<int64_t>(index.At(row));
      const int64_t d = columns.Of(row, at.back());
      out.At(at) = n < 0 || d < 0 ? 0 : divisors.Divided(x.At(With(row, n, d)), row, n);
    });
    WriteView(out, p.out);
  }
}

template <>
void PlainRun(const ScatterRowsArgs& args) {
  for (const ScatterRowsProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x), index = ReadView(p.index);
    const Columns columns(p.columns);
    const Divisors divisors(p.divisor);
    PlainArray out(p.out.shape);
    ForEachIndex(Rows(x, index, p.columns), [&](const Index& row) {
      const auto n = static_cast<int64_t>(index.At(row));
      if (n < 0) return;
      for (int64_t w = 0; w < x.shape[x.shape.rank - 1]; ++w) {
        const int64_t d = columns.Of(row, w);
        if (d >= 0) out.At(With(row, n, d)) += x.At(With(row, row.back(), w));
      }
    });
    ForEachIndex(out.shape, [&](const Index& at) {
      const Index row(at.begin(), at.end() - 1);
      out.At(at) = divisors.Divided(out.At(at), row, row.back());
    });
    WriteView(out, p.out);
  }
}

template <>
void PlainRun(const SortArgs& args) {
  for (const SortProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x);
    PlainArray order(p.order.shape);
    const int64_t N = x.shape[x.shape.rank - 1], M = order.shape[order.shape.rank - 1];
    const int64_t rows = N == 0 ? 0 : x.shape.size() / N;
    for (int64_t r = 0; r < rows; ++r) {
      const double* keys = x.values.data() + r * N;
      std::vector<int64_t> by_key(static_cast<size_t>(N));
      std::iota(by_key.begin(), by_key.end(), 0);
      std::stable_sort(by_key.begin(), by_key.end(), [&](int64_t a, int64_t b) {
        if (std::isnan(keys[a]) || std::isnan(keys[b])) return !std::isnan(keys[a]);
        return args.descending ? keys[a] > keys[b] : keys[a] < keys[b];
      });
      if (args.by_index) std::sort(by_key.begin(), by_key.begin() + M);
      for (int64_t m = 0; m < M; ++m) {
        order.values[static_cast<size_t>(r * M + m)] = static_cast<double>(by_key[m]);
      }
    }
    WriteView(order, p.order);
  }
}

}  // namespace attnd::testing
