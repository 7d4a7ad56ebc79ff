// Linear attention in double by nested loops over visible pairs: what the scan kernels must equal.
// Shares nothing with them; rows and keys beyond the lengths are never read.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace attnd::testing {

// Dense [B,H,N,D] in double.
struct PlainTensor {
  int64_t B = 0, H = 0, N = 0, D = 0;
  std::vector<double> data;

  PlainTensor() = default;
  PlainTensor(int64_t b, int64_t h, int64_t n, int64_t d)
      : B(b), H(h), N(n), D(d), data(static_cast<size_t>(b * h * n * d), 0.0) {}
  double& at(int64_t b, int64_t h, int64_t n, int64_t d) {
    return data[static_cast<size_t>(((b * H + h) * N + n) * D + d)];
  }
  double at(int64_t b, int64_t h, int64_t n, int64_t d) const {
    return data[static_cast<size_t>(((b * H + h) * N + n) * D + d)];
  }
};

inline double PlainFeature(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::kEluPlusOne:
      return x > 0 ? x + 1 : std::exp(x);
    case FeatureMap::kRelu:
      return x > 0 ? x : 0;
    case FeatureMap::kReluSquared:
      return x > 0 ? x * x : 0;
    case FeatureMap::kSquared:
      return x * x;
    case FeatureMap::kAbs:
      return std::fabs(x);
    case FeatureMap::kIdentity:
      return x;
    case FeatureMap::kExp:
      return std::exp(x);
    case FeatureMap::kSigmoid:
      return x > 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
    case FeatureMap::kSilu:
      return x * PlainFeature(FeatureMap::kSigmoid, x);
    case FeatureMap::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  }
  return 0;
}

inline double PlainDerivative(FeatureMap map, double x) {
  switch (map) {
    case FeatureMap::kEluPlusOne:
      return x > 0 ? 1 : std::exp(x);
    case FeatureMap::kRelu:
      return x > 0 ? 1 : 0;
    case FeatureMap::kReluSquared:
      return x > 0 ? 2 * x : 0;
    case FeatureMap::kSquared:
      return 2 * x;
    case FeatureMap::kAbs:
      return x > 0 ? 1 : (x < 0 ? -1 : 0);
    case FeatureMap::kIdentity:
      return 1;
    case FeatureMap::kExp:
      return std::exp(x);
    case FeatureMap::kSigmoid: {
      return PlainFeature(map, x) * PlainFeature(map, -x);
    }
    case FeatureMap::kSilu: {
      const double s = PlainFeature(FeatureMap::kSigmoid, x);
      return s + x * s * PlainFeature(FeatureMap::kSigmoid, -x);
    }
    case FeatureMap::kGelu:
      return 0.5 * std::erfc(-x / std::sqrt(2.0)) +
             x * std::exp(-x * x / 2) / std::sqrt(2 * 3.14159265358979323846);
  }
  return 0;
}

struct PlainScan {
  ScanParams params;
  PlainTensor q, k, v;
  std::vector<ScanRow> rows;  // B of them

  bool Sees(int64_t b, int64_t i, int64_t j) const {
    return i < rows[b].nq && j < rows[b].nk && (!params.causal || j <= i + rows[b].offset);
  }
  int64_t KvHead(int64_t h) const { return h / (q.H / k.H); }
  double Eps() const { return params.map == FeatureMap::kExp ? 0 : params.eps; }
};

// phi of every element; NaN in padding stays in padding.
inline PlainTensor Features(FeatureMap map, PlainTensor x) {
  for (double& value : x.data) value = PlainFeature(map, value);
  return x;
}

// phi_q,i . phi_k,j
inline double Weight(const PlainTensor& phi_q, const PlainTensor& phi_k, int64_t b, int64_t h,
                     int64_t i, int64_t kh, int64_t j) {
  double a = 0;
  for (int64_t c = 0; c < phi_q.D; ++c) a += phi_q.at(b, h, i, c) * phi_k.at(b, kh, j, c);
  return a;
}

struct PlainScanOut {
  PlainTensor out, lse, d;  // lse and d [B,H,Nq,1]
};

inline PlainScanOut Forward(const PlainScan& s) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const PlainTensor &q = s.q, &v = s.v;
  const PlainTensor phi_q = Features(s.params.map, q), phi_k = Features(s.params.map, s.k);
  PlainScanOut r = {
      .out = {q.B, q.H, q.N, v.D}, .lse = {q.B, q.H, q.N, 1}, .d = {q.B, q.H, q.N, 1}};
  for (int64_t b = 0; b < q.B; ++b) {
    for (int64_t h = 0; h < q.H; ++h) {
      for (int64_t i = 0; i < q.N; ++i) {
        double d = 0;
        bool sees_any = false;
        for (int64_t j = 0; j < s.k.N; ++j) {
          if (!s.Sees(b, i, j)) continue;
          sees_any = true;
          const double a = Weight(phi_q, phi_k, b, h, i, s.KvHead(h), j);
          d += a;
          for (int64_t c = 0; c < v.D; ++c) {
            r.out.at(b, h, i, c) += a * v.at(b, s.KvHead(h), j, c);
          }
        }
        const double den = d + s.Eps();
        double factor = s.params.scale;
        if (s.params.den != ScanDen::kOne) factor = den == 0 ? 0 : 1 / den;
        for (int64_t c = 0; c < v.D; ++c) r.out.at(b, h, i, c) *= factor;
        r.d.at(b, h, i, 0) = d;
        // Of the maps that can give 0, exp can only by underflow.
        const bool undefined = d == 0 && s.params.map != FeatureMap::kExp;
        r.lse.at(b, h, i, 0) = !sees_any ? -kInf : undefined ? std::nan("") : std::log(d);
      }
    }
  }
  return r;
}

struct PlainScanGrads {
  PlainTensor dq, dk, dv;
};

// phi'(x) * gradient of phi(x); 0 where that is 0, so that NaN in padding gives none.
inline PlainTensor ThroughMap(FeatureMap map, const PlainTensor& x, PlainTensor gradient) {
  for (size_t i = 0; i < x.data.size(); ++i) {
    if (gradient.data[i] != 0) gradient.data[i] *= PlainDerivative(map, x.data[i]);
  }
  return gradient;
}

// The gradients of sum(dout * out) + sum over rows with finite lse of dlse * lse.
inline PlainScanGrads Gradients(const PlainScan& s, const PlainTensor& dout,
                                const PlainTensor& dlse) {
  const PlainScanOut fwd = Forward(s);
  const PlainTensor &q = s.q, &k = s.k, &v = s.v;
  const FeatureMap map = s.params.map;
  const PlainTensor phi_q = Features(map, q), phi_k = Features(map, k);
  PlainTensor dphi_q = {q.B, q.H, q.N, q.D}, dphi_k = {k.B, k.H, k.N, k.D};
  PlainScanGrads g = {
      .dq = {q.B, q.H, q.N, q.D}, .dk = {k.B, k.H, k.N, k.D}, .dv = {v.B, v.H, v.N, v.D}};
  for (int64_t b = 0; b < q.B; ++b) {
    for (int64_t h = 0; h < q.H; ++h) {
      const int64_t kh = s.KvHead(h);
      for (int64_t i = 0; i < q.N; ++i) {
        const double d = fwd.d.at(b, h, i, 0), den = d + s.Eps();
        double to_num = s.params.scale, to_d = 0;
        if (s.params.den != ScanDen::kOne) {
          to_num = den == 0 ? 0 : 1 / den;
          for (int64_t c = 0; c < v.D; ++c) {
            to_d -= dout.at(b, h, i, c) * fwd.out.at(b, h, i, c) * to_num;
          }
        }
        if (std::isfinite(fwd.lse.at(b, h, i, 0))) to_d += dlse.at(b, h, i, 0) / d;
        for (int64_t j = 0; j < k.N; ++j) {
          if (!s.Sees(b, i, j)) continue;
          const double a = Weight(phi_q, phi_k, b, h, i, s.KvHead(h), j);
          double da = to_d;
          for (int64_t c = 0; c < v.D; ++c) {
            const double dnum = dout.at(b, h, i, c) * to_num;
            da += dnum * v.at(b, kh, j, c);
            g.dv.at(b, kh, j, c) += a * dnum;
          }
          for (int64_t c = 0; c < q.D; ++c) {
            dphi_q.at(b, h, i, c) += da * phi_k.at(b, kh, j, c);
            dphi_k.at(b, kh, j, c) += da * phi_q.at(b, h, i, c);
          }
        }
      }
    }
  }
  g.dq = ThroughMap(map, q, dphi_q);
  g.dk = ThroughMap(map, k, dphi_k);
  return g;
}

}  // namespace attnd::testing
