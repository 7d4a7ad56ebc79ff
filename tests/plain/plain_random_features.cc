#include <algorithm>
#include <cmath>

#include "tests/plain/plain.h"
#include "tests/plain/plain_elementwise.h"

namespace attnd::testing {
namespace {

struct PlainFeatures {
  PlainArray u, half;             // [B,H,N,m] [B,H,N,1]
  PlainArray powers, phi, shift;  // powers: phi without eps
};

// s of each row, [B,H,N,1], and their largest of each head.
double SizeOf(const RandomFeaturesParams& o, const PlainFeatures& f, int64_t b, int64_t h,
              int64_t n) {
  if (o.feature == RandomFeature::kCosSin) return f.half.At({b, h, n, 0});
  double most = -INFINITY;
  for (int64_t i = 0; i < f.u.shape[3]; ++i) {
    const double u = f.u.At({b, h, n, i});
    const double size = o.feature == RandomFeature::kCosh ? std::fabs(u) : u;
    if (std::isnan(size) || size > most) most = std::isnan(most) ? most : size;
  }
  return most;
}

PlainFeatures FeaturesOf(const RandomFeaturesParams& o, const RandomFeaturesProblem& p) {
  const PlainArray x = ReadView(p.x), w = ReadView(p.w);
  const Shape& s = x.shape;
  const int64_t m = w.shape[2], group = s[1] / w.shape[1];
  PlainFeatures f = {PlainArray({s[0], s[1], s[2], m}), PlainArray({s[0], s[1], s[2], 1}),
                     PlainArray(p.phi.shape), PlainArray(p.phi.shape),
                     PlainArray(p.shift.shape, -INFINITY)};
  ForEachIndex(f.half.shape, [&](const std::vector<int64_t>& at) {
    for (int64_t d = 0; d < s[3]; ++d) {
      const double scaled = o.alpha * x.At({at[0], at[1], at[2], d});
      f.half.At(at) += scaled * scaled / 2;
      for (int64_t i = 0; i < m; ++i) {
        f.u.At({at[0], at[1], at[2], i}) += scaled * w.At({0, at[1] / group, i, d});
      }
    }
    if (!HasShift(o.feature)) return;
    double& shift = f.shift.At(at);
    const double size = SizeOf(o, f, at[0], at[1], at[2]);
    if (std::isnan(size) || size > shift) shift = std::isnan(shift) ? shift : size;
  });
  ForEachIndex(f.phi.shape, [&](const std::vector<int64_t>& at) {
    const std::vector<int64_t> row = {at[0], at[1], at[2], 0};
    const bool is_second = at[3] >= m;
    const double u = f.u.At({at[0], at[1], at[2], at[3] % m}), h = f.half.At(row);
    const double s = HasShift(o.feature) ? f.shift.At(row) : 0;
    double& power = f.powers.At(at);
    if (o.feature == RandomFeature::kSinCos) {
      power = o.factor * (is_second ? std::cos(u) : std::sin(u));
    } else if (o.feature == RandomFeature::kMapped) {
      power = o.factor * PlainMap(o.map, u);
    } else if (o.feature == RandomFeature::kCosSin) {
      power = o.factor * std::exp(h - s) * (is_second ? std::sin(u) : std::cos(u));
    } else {
      power = o.factor * std::exp((is_second ? -u : u) - h - s);
    }
    f.phi.At(at) = power + o.factor * o.eps;
  });
  return f;
}

}  // namespace

template <>
void PlainRun(const RandomFeaturesArgs& args) {
  for (const RandomFeaturesProblem& p : args.problems) {
    const PlainFeatures f = FeaturesOf(args.params, p);
    WriteView(f.phi, p.phi);
    if (p.shift.given()) WriteView(f.shift, p.shift);
  }
}

template <>
void PlainRun(const RandomFeaturesGradArgs& args) {
  const RandomFeaturesParams& o = args.params;
  for (const RandomFeaturesGradProblem& problem : args.problems) {
    const RandomFeaturesProblem& p = problem.forward;
    const PlainFeatures f = FeaturesOf(o, p);
    const PlainArray x = ReadView(p.x), w = ReadView(p.w), dphi = ReadView(problem.dphi);
    const int64_t m = w.shape[2], group = x.shape[1] / w.shape[1];
    const double of_half = !HasShift(o.feature) ? 0 : o.feature == RandomFeature::kCosSin ? 1 : -1;
    PlainArray dx(x.shape);
    ForEachIndex(f.phi.shape, [&](const std::vector<int64_t>& at) {
      const bool is_second = at[3] >= m;
      const int64_t i = at[3] % m;
      const double g = dphi.At(at), power = f.powers.At(at);
      double du = 0;
      if (o.feature == RandomFeature::kMapped) {
        du = o.factor * g * PlainSlope(o.map, f.u.At({at[0], at[1], at[2], i}));
      } else if (HasWaves(o.feature)) {
        // sin' = cos, cos' = -sin: the other half of the features.
        const double other = f.powers.At({at[0], at[1], at[2], is_second ? i : i + m});
        const bool is_sine = is_second == (o.feature == RandomFeature::kCosSin);
        du = is_sine ? g * other : -g * other;
      } else {
        du = is_second ? -g * power : g * power;
      }
      for (int64_t d = 0; d < x.shape[3]; ++d) {
        double& to = dx.At({at[0], at[1], at[2], d});
        to += o.alpha * du * w.At({0, at[1] / group, i, d});
        if (of_half == 0) continue;
        to += of_half * g * power * o.alpha * o.alpha * x.At({at[0], at[1], at[2], d});
      }
    });
    WriteView(dx, problem.dx);
  }
}

}  // namespace attnd::testing
