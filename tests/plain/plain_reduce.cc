#include <cmath>

#include "tests/plain/plain.h"

namespace attnd::testing {
namespace {

// The elements of `x` along `axis` through `index`.
std::vector<double> Line(const PlainArray& x, int axis, std::vector<int64_t> index) {
  std::vector<double> line;
  for (int64_t i = 0; i < x.shape[axis]; ++i) {
    index[static_cast<size_t>(axis)] = i;
    line.push_back(x.At(index));
  }
  return line;
}

// Calls visit(index) for every line along `axis`; index[axis] is 0.
void ForEachLine(const PlainArray& x, int axis,
                 const std::function<void(const std::vector<int64_t>&)>& visit) {
  Shape lines = x.shape;
  lines.dims[axis] = 1;
  ForEachIndex(lines, visit);
}

double Sum(const std::vector<double>& line) {
  double sum = 0;
  for (double x : line) sum += x;
  return sum;
}

// The largest element: NaN if there is one, -inf of none.
double Largest(const std::vector<double>& line) {
  double most = -INFINITY;
  for (double x : line) {
    if (std::isnan(x) || x > most) most = x;
    if (std::isnan(most)) return most;
  }
  return most;
}

double LogSumExp(const std::vector<double>& line) {
  const double most = Largest(line);
  if (!std::isfinite(most)) return most;
  double sum = 0;
  for (double x : line) sum += std::exp(x - most);
  return most + std::log(sum);
}

// NaN counts as -inf.
double FirstLargest(const std::vector<double>& line) {
  if (line.empty()) return -1;
  size_t best = 0;
  double most = -INFINITY;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] > most) {
      best = i;
      most = line[i];
    }
  }
  return static_cast<double>(best);
}

double Reduced(ReduceOp op, const std::vector<double>& line) {
  switch (op) {
    case ReduceOp::kSum:
      return Sum(line);
    case ReduceOp::kMean:
      return line.empty() ? 0 : Sum(line) / static_cast<double>(line.size());
    case ReduceOp::kMax:
      return Largest(line);
    case ReduceOp::kLogSumExp:
      return LogSumExp(line);
    case ReduceOp::kArgMax:
      return FirstLargest(line);
    case ReduceOp::kArgMaxSigned: {
      std::vector<double> both = line;
      for (const double x : line) both.push_back(-x);
      return FirstLargest(both);
    }
  }
  return NAN;
}

}  // namespace

template <>
void PlainRun(const ReduceArgs& args) {
  for (const ReduceProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x);
    PlainArray out(p.out.shape);
    ForEachIndex(out.shape, [&](const std::vector<int64_t>& index) {
      out.At(index) = Reduced(args.op, Line(x, args.axis, index));
    });
    WriteView(out, p.out);
  }
}

template <>
void PlainRun(const SoftmaxArgs& args) {
  for (const SoftmaxProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x);
    PlainArray out(p.out.shape);
    ForEachLine(x, args.axis, [&](const std::vector<int64_t>& index) {
      const double lse = LogSumExp(Line(x, args.axis, index));
      std::vector<int64_t> at = index;
      for (int64_t& i = at[static_cast<size_t>(args.axis)]; i < x.shape[args.axis]; ++i) {
        const double log = x.At(at) == -INFINITY ? -INFINITY : x.At(at) - lse;
        out.At(at) = args.log ? log : std::exp(log);
      }
    });
    WriteView(out, p.out);
  }
}

template <>
void PlainRun(const CumulativeArgs& args) {
  const bool is_sum = args.op == CumulativeOp::kSum;
  for (const CumulativeProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x), reset = ReadView(p.reset);
    PlainArray out(p.out.shape);
    ForEachLine(x, args.axis, [&](const std::vector<int64_t>& index) {
      const int64_t n = x.shape[args.axis];
      std::vector<int64_t> at = index;
      // The sum or maximum so far; of log sum exp also the sum of e^(x - maximum).
      double seen = is_sum ? 0 : -INFINITY, sum = 0;
      const auto result = [&] {
        const bool has_log = args.op == CumulativeOp::kLogSumExp && std::isfinite(seen);
        return has_log ? seen + std::log(sum) : seen;
      };
      for (int64_t step = 0; step < n; ++step) {
        at[static_cast<size_t>(args.axis)] = args.reverse ? n - 1 - step : step;
        if (args.exclusive) out.At(at) = result();
        const bool begins = p.reset.given() && reset.At(at) != 0;
        if (begins && args.exclusive) seen = 0;
        const double value = x.At(at), most = Largest({seen, value});
        if (args.op == CumulativeOp::kLogSumExp && std::isfinite(most)) {
          sum = sum * std::exp(seen - most) + std::exp(value - most);
        }
        seen = is_sum ? seen + value : most;
        if (!args.exclusive) out.At(at) = result();
        if (begins && !args.exclusive) seen = 0;
      }
    });
    WriteView(out, p.out);
  }
}

template <>
void PlainRun(const LayerNormArgs& args) {
  for (const LayerNormProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x);
    PlainArray y(p.y.shape), rstd(p.rstd.shape);
    const int axis = x.shape.rank - 1;
    ForEachIndex(rstd.shape, [&](const std::vector<int64_t>& index) {
      const std::vector<double> line = Line(x, axis, index);
      const double mean = Sum(line) / static_cast<double>(line.size());
      double variance = 0;
      for (double value : line) variance += (value - mean) * (value - mean);
      variance /= static_cast<double>(line.size());
      rstd.At(index) = 1 / std::sqrt(variance + args.eps);
      std::vector<int64_t> at = index;
      for (size_t i = 0; i < line.size(); ++i) {
        at.back() = static_cast<int64_t>(i);
        y.At(at) = (line[i] - mean) * rstd.At(index);
      }
    });
    WriteView(y, p.y);
    WriteView(rstd, p.rstd);
  }
}

template <>
void PlainRun(const LayerNormGradArgs& args) {
  for (const LayerNormGradProblem& p : args.problems) {
    const PlainArray y = ReadView(p.y), rstd = ReadView(p.rstd), dy = ReadView(p.dy);
    PlainArray dx(p.dx.shape);
    const int axis = y.shape.rank - 1;
    ForEachIndex(rstd.shape, [&](const std::vector<int64_t>& index) {
      const std::vector<double> of_y = Line(y, axis, index), of_dy = Line(dy, axis, index);
      double along = 0;
      for (size_t i = 0; i < of_y.size(); ++i) along += of_y[i] * of_dy[i];
      const auto n = static_cast<double>(of_y.size());
      std::vector<int64_t> at = index;
      for (size_t i = 0; i < of_y.size(); ++i) {
        at.back() = static_cast<int64_t>(i);
        dx.At(at) = rstd.At(index) * (of_dy[i] - Sum(of_dy) / n - of_y[i] * along / n);
      }
    });
    WriteView(dx, p.dx);
  }
}

}  // namespace attnd::testing
