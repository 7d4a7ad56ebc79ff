#include <algorithm>
#include <cmath>

#include "tests/plain/plain.h"
#include "tests/plain/plain_elementwise.h"

namespace attnd::testing {
namespace {

using Line = std::vector<double>;

double Relu(double x) { return x < 0 ? 0 : x; }

// Row `row` of all axes but the last.
Line RowOf(const PlainArray& x, int64_t row) {
  const int64_t D = x.shape[x.shape.rank - 1];
  return {x.values.begin() + row * D, x.values.begin() + (row + 1) * D};
}

// r and which elements of it feature (j, i) of dpfp multiplies.
Line Halves(const Line& x) {
  Line r;
  for (double v : x) r.push_back(Relu(v));
  for (double v : x) r.push_back(Relu(-v));
  return r;
}
size_t Turned(size_t i, int64_t j, size_t width) {
  const auto turn = static_cast<size_t>(j) % width;
  return (i + width - turn) % width;
}

Line PhiOf(const FeatureRows& features, const Line& x) {
  Line phi;
  if (features.nu == 0) {
    for (double v : x) phi.push_back(PlainMap(features.map, v));
    return phi;
  }
  const Line r = Halves(x);
  for (int64_t j = 1; j <= features.nu; ++j) {
    for (size_t i = 0; i < r.size(); ++i) phi.push_back(r[i] * r[Turned(i, j, r.size())]);
  }
  return phi;
}

// Less the offset, and before the floor.
double RootOf(const FeatureRows& features, const Line& phi) {
  double sum = 0;
  if (features.norm == RowNorm::kNone) return 1;
  for (double v : phi) sum += features.norm == RowNorm::kSum ? v : v * v;
  return features.norm == RowNorm::kSum ? sum : std::sqrt(sum + features.eps);
}
double NormOf(const FeatureRows& features, double root) {
  if (features.norm == RowNorm::kL2) root = std::max(root, features.floor);
  return root + features.offset;
}

Line Forward(const FeatureRows& features, const Line& x) {
  Line phi = PhiOf(features, x);
  const double norm = NormOf(features, RootOf(features, phi));
  for (double& v : phi) v = norm == 0 ? 0 : v / norm;
  return phi;
}

Line Gradient(const FeatureRows& features, const Line& x, const Line& dout) {
  const Line phi = PhiOf(features, x);
  const double root = RootOf(features, phi), norm = NormOf(features, root);
  Line dphi(phi.size()), dx(x.size());
  if (norm == 0) return dx;
  double along = 0;
  for (size_t i = 0; i < phi.size(); ++i) along += dout[i] * phi[i] / norm;
  for (size_t i = 0; i < phi.size(); ++i) {
    const double of_norm = features.norm == RowNorm::kNone      ? 0
                           : features.norm == RowNorm::kSum     ? along
                           : root == 0 || root < features.floor ? 0
                                                                : along * phi[i] / root;
    dphi[i] = (dout[i] - of_norm) / norm;
  }
  if (features.nu == 0) {
    for (size_t i = 0; i < x.size(); ++i) {
      const double slope = PlainSlope(features.map, x[i]);
      dx[i] = slope == 0 ? 0 : dphi[i] * slope;
    }
    return dx;
  }
  const Line r = Halves(x);
  Line dr(r.size());
  for (int64_t j = 1; j <= features.nu; ++j) {
    for (size_t i = 0; i < r.size(); ++i) {
      const size_t other = Turned(i, j, r.size());
      const double g = dphi[static_cast<size_t>(j - 1) * r.size() + i];
      dr[i] += g * r[other];
      dr[other] += g * r[i];
    }
  }
  for (size_t i = 0; i < x.size(); ++i) {
    dx[i] = x[i] > 0 ? dr[i] : x[i] < 0 ? -dr[x.size() + i] : 0;
  }
  return dx;
}

}  // namespace

template <>
void PlainRun(const FeatureRowsArgs& args) {
  for (const FeatureRowsProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x), dout = ReadView(p.dout);
    PlainArray out(p.out.shape);
    out.values.clear();
    const int64_t D = x.shape[x.shape.rank - 1], rows = D == 0 ? 0 : x.shape.size() / D;
    for (int64_t row = 0; row < rows; ++row) {
      const Line line = args.derivative ? Gradient(args.features, RowOf(x, row), RowOf(dout, row))
                                        : Forward(args.features, RowOf(x, row));
      out.values.insert(out.values.end(), line.begin(), line.end());
    }
    WriteView(out, p.out);
  }
}

}  // namespace attnd::testing
