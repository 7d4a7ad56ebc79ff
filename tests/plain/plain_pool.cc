#include <cmath>

#include "tests/plain/plain.h"

namespace attnd::testing {

template <>
void PlainRun(const PoolArgs& args) {
  for (const PoolProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x), where = ReadView(p.arg);
    PlainArray out(p.out.shape), arg(p.out.shape, -1);
    const size_t axis = static_cast<size_t>(p.out.shape.rank) - 2;
    ForEachIndex(out.shape, [&](const std::vector<int64_t>& index) {
      const RowRange range = p.ranges[static_cast<size_t>(index[axis])];
      const bool is_max = args.op == PoolOp::kMax && range.begin < range.end;
      double sum = 0, most = -INFINITY, best = -INFINITY;
      if (range.begin < range.end) arg.At(index) = static_cast<double>(range.begin);
      std::vector<int64_t> at = index;
      for (int64_t n = range.begin; n < range.end; ++n) {
        at[axis] = n;
        const double value = x.At(at);
        const bool counts =
            args.op != PoolOp::kSumWhere || where.At(at) == static_cast<double>(index[axis]);
        if (counts) sum += value;
        if (std::isnan(value) || value > most) most = std::isnan(most) ? most : value;
        if (value > best) {
          best = value;
          arg.At(index) = static_cast<double>(n);
        }
      }
      if (args.op == PoolOp::kMean && range.begin < range.end) {
        sum /= static_cast<double>(range.end - range.begin);
      }
      out.At(index) = is_max ? most : sum;
    });
    WriteView(out, p.out);
    if (args.op == PoolOp::kMax) WriteView(arg, p.arg);
  }
}

}  // namespace attnd::testing
