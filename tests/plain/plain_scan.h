// scan by its contract, one key after the other with every state kept: the reference of the
// kernels. Shares no code with them; rows and keys beyond the lengths are never read.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/device/device.h"

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

// [B,H,D,1] as [B,H,1,D] and back.
inline PlainTensor AsRow(PlainTensor x) {
  std::swap(x.N, x.D);
  return x;
}

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
  std::vector<ScanSeq> seqs;  // B of them
  // Absent: no data. [B,Hkv,Nk,1|D] [B,Hkv,Nk,1] [B,Hkv,D,Dv] [B,Hkv,1,D]
  PlainTensor log_decay = {}, beta = {}, s0 = {}, z0 = {};

  bool HasState() const { return !s0.data.empty() || !z0.data.empty(); }
  int64_t KvHead(int64_t h) const { return h / (q.H / k.H); }
  // How many keys query i sees.
  int64_t Seen(int64_t b, int64_t i) const {
    const ScanSeq& seq = seqs[b];
    return params.causal ? std::clamp<int64_t>(i + seq.offset + 1, 0, seq.nk) : seq.nk;
  }
  double Decay(int64_t b, int64_t g, int64_t t, int64_t c) const {
    if (log_decay.data.empty()) return 1;
    return std::exp(log_decay.at(b, g, t, log_decay.D == 1 ? 0 : c));
  }
  double Beta(int64_t b, int64_t g, int64_t t) const {
    return beta.data.empty() ? 1 : beta.at(b, g, t, 0);
  }

  double Den(double d) const {
    const double eps = params.map == FeatureMap::kExp ? 0 : params.eps;
    switch (params.den) {
      case ScanDen::kOne:
        return 1;
      case ScanDen::kAdd:
        return d + eps;
      case ScanDen::kJax:
        return std::fabs(d) <= eps ? d + 2 * eps : d;
      case ScanDen::kClamp:
        return params.map == FeatureMap::kExp ? d : std::max(d, eps);
      case ScanDen::kAbsClamp:
        return std::max(std::fabs(d), eps);
    }
    return 1;
  }
  double DenSlope(double d) const {
    if (params.den == ScanDen::kOne) return 0;
    if (params.den == ScanDen::kClamp) return d <= params.eps ? 0 : 1;
    if (params.den == ScanDen::kAbsClamp) return std::fabs(d) <= params.eps ? 0 : d < 0 ? -1 : 1;
    return 1;
  }
};

// phi of every element; NaN in padding stays in padding.
inline PlainTensor Features(const ScanParams& params, PlainTensor x) {
  for (double& value : x.data) value = PlainFeature(params.map, value) + params.offset;
  return x;
}

// The states of one kv head: after t keys, S[t] is [D,Dv] and z[t] [D]. errors[t] is the value
// that key t adds: v less what the state holds (delta rule), else v itself.
template <class Real>
struct PlainStates {
  std::vector<std::vector<Real>> S, z, errors;

  PlainStates(const PlainScan& s, const PlainTensor& phi_k, int64_t b, int64_t g) {
    const int64_t D = s.k.D, Dv = s.v.D;
    std::vector<Real> state(D * Dv, 0), sum(D, 0);
    for (int64_t c = 0; c < D; ++c) {
      if (!s.z0.data.empty()) sum[c] = static_cast<Real>(s.z0.at(b, g, 0, c));
      for (int64_t d = 0; d < Dv && !s.s0.data.empty(); ++d) {
        state[c * Dv + d] = static_cast<Real>(s.s0.at(b, g, c, d));
      }
    }
    S.push_back(state);
    z.push_back(sum);
    for (int64_t t = 0; t < s.seqs[b].nk; ++t) {
      for (int64_t c = 0; c < D; ++c) {
        const Real a = static_cast<Real>(s.Decay(b, g, t, c));
        sum[c] *= a;
        for (int64_t d = 0; d < Dv; ++d) state[c * Dv + d] *= a;
      }
      std::vector<Real> write(Dv);
      for (int64_t d = 0; d < Dv; ++d) {
        Real stored = 0;
        for (int64_t c = 0; c < D && s.params.rule == ScanRule::kDelta; ++c) {
          stored += state[c * Dv + d] * static_cast<Real>(phi_k.at(b, g, t, c));
        }
        write[d] = static_cast<Real>(s.v.at(b, g, t, d)) - stored;
      }
      errors.push_back(write);
      for (int64_t c = 0; c < D; ++c) {
        const Real key = static_cast<Real>(s.Beta(b, g, t) * phi_k.at(b, g, t, c));
        sum[c] += key;
        for (int64_t d = 0; d < Dv; ++d) state[c * Dv + d] += key * write[d];
      }
      S.push_back(state);
      z.push_back(sum);
    }
  }
};

struct PlainScanOut {
  PlainTensor out, lse, d;   // lse and d [B,H,Nq,1]
  PlainTensor s_out, z_out;  // [B,Hkv,D,Dv] [B,Hkv,1,D]
};

// Sums run in Real.
template <class Real = double>
PlainScanOut Forward(const PlainScan& s) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const PlainTensor &q = s.q, &v = s.v;
  const PlainTensor phi_q = Features(s.params, q), phi_k = Features(s.params, s.k);
  PlainScanOut r = {.out = {q.B, q.H, q.N, v.D},
                    .lse = {q.B, q.H, q.N, 1},
                    .d = {q.B, q.H, q.N, 1},
                    .s_out = {q.B, s.k.H, q.D, v.D},
                    .z_out = {q.B, s.k.H, 1, q.D}};
  std::fill(r.lse.data.begin(), r.lse.data.end(), -kInf);
  for (int64_t b = 0; b < q.B; ++b) {
    for (int64_t g = 0; g < s.k.H; ++g) {
      const PlainStates<Real> states(s, phi_k, b, g);
      for (int64_t c = 0; c < q.D; ++c) {
        r.z_out.at(b, g, 0, c) = states.z.back()[c];
        for (int64_t d = 0; d < v.D; ++d) r.s_out.at(b, g, c, d) = states.S.back()[c * v.D + d];
      }
      for (int64_t h = 0; h < q.H; ++h) {
        if (s.KvHead(h) != g) continue;
        for (int64_t i = 0; i < s.seqs[b].nq; ++i) {
          const int64_t seen = s.Seen(b, i);
          if (seen == 0 && !s.HasState()) continue;
          Real d = 0;
          for (int64_t c = 0; c < q.D; ++c) {
            d += static_cast<Real>(phi_q.at(b, h, i, c)) * states.z[seen][c];
          }
          const double den = s.Den(d);
          const double factor = den == 0 ? 0 : s.params.scale / den;
          for (int64_t e = 0; e < v.D; ++e) {
            Real num = 0;
            for (int64_t c = 0; c < q.D; ++c) {
              num += static_cast<Real>(phi_q.at(b, h, i, c)) * states.S[seen][c * v.D + e];
            }
            r.out.at(b, h, i, e) = num * factor;
          }
          r.d.at(b, h, i, 0) = d;
          // Maps that can give 0 leave lse undefined; exp gives 0 by underflow only.
          const bool undefined = d == 0 && s.params.map != FeatureMap::kExp;
          r.lse.at(b, h, i, 0) = undefined ? std::nan("") : std::log(d);
        }
      }
    }
  }
  return r;
}

struct PlainScanGrads {
  PlainTensor dq, dk, dv, dlog_decay, dbeta, ds0, dz0;
};
// Incoming gradients; no data: zero.
struct PlainIncoming {
  PlainTensor dout, dlse, ds_out = {}, dz_out = {};
};

// phi'(x) * gradient of phi(x); 0 where that is 0, so that NaN in padding gives none.
inline PlainTensor ThroughMap(FeatureMap map, const PlainTensor& x, PlainTensor gradient) {
  for (size_t i = 0; i < x.data.size(); ++i) {
    if (gradient.data[i] != 0) gradient.data[i] *= PlainDerivative(map, x.data[i]);
  }
  return gradient;
}

// One kv head, from the last key back, with the names of the specification (R7, fast_weights).
template <class Real>
class PlainScanBack {
 public:
  PlainScanBack(const PlainScan& s, const PlainScanOut& fwd, const PlainIncoming& in, int64_t b,
                int64_t g, PlainScanGrads* r)
      : s_(s),
        fwd_(fwd),
        in_(in),
        b_(b),
        g_(g),
        D_(s.k.D),
        Dv_(s.v.D),
        phi_q_(Features(s.params, s.q)),
        phi_k_(Features(s.params, s.k)),
        states_(s, phi_k_, b, g),
        R_(D_ * Dv_, 0),
        r_(D_, 0),
        to_(*r) {}

  void Run() {
    for (int64_t c = 0; c < D_; ++c) {
      if (!in_.dz_out.data.empty()) r_[c] = static_cast<Real>(in_.dz_out.at(b_, g_, 0, c));
      for (int64_t d = 0; d < Dv_ && !in_.ds_out.data.empty(); ++d) {
        R_[c * Dv_ + d] = static_cast<Real>(in_.ds_out.at(b_, g_, c, d));
      }
    }
    for (int64_t seen = s_.seqs[b_].nk; seen >= 0; --seen) {
      for (int64_t h = 0; h < s_.q.H; ++h) {
        if (s_.KvHead(h) != g_) continue;
        for (int64_t i = 0; i < s_.seqs[b_].nq; ++i) {
          if (s_.Seen(b_, i) == seen && (seen > 0 || s_.HasState())) Query(h, i, seen);
        }
      }
      if (seen > 0) Key(seen - 1);
    }
    for (int64_t c = 0; c < D_; ++c) {
      to_.dz0.at(b_, g_, 0, c) = r_[c];
      for (int64_t d = 0; d < Dv_; ++d) to_.ds0.at(b_, g_, c, d) = R_[c * Dv_ + d];
    }
  }

 private:
  void Query(int64_t h, int64_t i, int64_t seen) {
    const double d = fwd_.d.at(b_, h, i, 0), den = s_.Den(d);
    const Real to_num = static_cast<Real>(den == 0 ? 0 : s_.params.scale / den);
    Real to_d = 0;
    for (int64_t e = 0; e < Dv_ && den != 0 && s_.DenSlope(d) != 0; ++e) {
      to_d -= static_cast<Real>(in_.dout.at(b_, h, i, e) * fwd_.out.at(b_, h, i, e) *
                                s_.DenSlope(d) / den);
    }
    if (d > 0) to_d += static_cast<Real>(in_.dlse.at(b_, h, i, 0) / d);
    for (int64_t c = 0; c < D_; ++c) {
      const Real x = static_cast<Real>(phi_q_.at(b_, h, i, c));
      Real total = states_.z[seen][c] * to_d;
      for (int64_t e = 0; e < Dv_; ++e) {
        const Real dn = to_num * static_cast<Real>(in_.dout.at(b_, h, i, e));
        total += states_.S[seen][c * Dv_ + e] * dn;
        R_[c * Dv_ + e] += x * dn;
      }
      r_[c] += x * to_d;
      to_.dq.at(b_, h, i, c) = total;
    }
  }

  void Key(int64_t t) {
    const bool delta = s_.params.rule == ScanRule::kDelta;
    const Real beta = static_cast<Real>(s_.Beta(b_, g_, t));
    const std::vector<Real>& error = states_.errors[t];
    std::vector<Real> w(Dv_, 0);
    Real dbeta = 0;
    for (int64_t c = 0; c < D_; ++c) {
      const Real x = static_cast<Real>(phi_k_.at(b_, g_, t, c));
      for (int64_t d = 0; d < Dv_; ++d) w[d] += R_[c * Dv_ + d] * x;
      dbeta += r_[c] * x;
    }
    for (int64_t d = 0; d < Dv_; ++d) {
      to_.dv.at(b_, g_, t, d) = beta * w[d];
      dbeta += w[d] * error[d];
    }
    to_.dbeta.at(b_, g_, t, 0) = dbeta;
    for (int64_t c = 0; c < D_; ++c) {
      const Real a = static_cast<Real>(s_.Decay(b_, g_, t, c));
      const Real x = static_cast<Real>(phi_k_.at(b_, g_, t, c));
      Real total = beta * r_[c], decay = r_[c] * a * states_.z[t][c];
      for (int64_t d = 0; d < Dv_; ++d) {
        Real& R = R_[c * Dv_ + d];
        const Real before = a * states_.S[t][c * Dv_ + d];
        total += beta * R * error[d];
        if (delta) {
          total -= beta * before * w[d];
          R -= beta * x * w[d];
        }
        decay += R * before;
        R *= a;
      }
      r_[c] *= a;
      to_.dk.at(b_, g_, t, c) = total;
      const int64_t D = to_.dlog_decay.D;
      if (D > 0) to_.dlog_decay.at(b_, g_, t, D == 1 ? 0 : c) += decay;
    }
  }

  const PlainScan& s_;
  const PlainScanOut& fwd_;
  const PlainIncoming& in_;
  const int64_t b_, g_, D_, Dv_;
  const PlainTensor phi_q_, phi_k_;
  const PlainStates<Real> states_;
  std::vector<Real> R_, r_;
  PlainScanGrads& to_;
};

// The gradients of sum(dout * out) + the same with ds_out, dz_out + sum over rows with finite lse
// of dlse * lse.
template <class Real = double>
PlainScanGrads Gradients(const PlainScan& s, const PlainIncoming& in) {
  const PlainTensor &q = s.q, &k = s.k, &v = s.v;
  const PlainScanOut fwd = Forward<Real>(s);
  PlainScanGrads r = {.dq = {q.B, q.H, q.N, q.D},
                      .dk = {k.B, k.H, k.N, k.D},
                      .dv = {v.B, v.H, v.N, v.D},
                      .dlog_decay = {k.B, k.H, k.N, s.log_decay.D},
                      .dbeta = {k.B, k.H, k.N, 1},
                      .ds0 = {k.B, k.H, k.D, v.D},
                      .dz0 = {k.B, k.H, 1, k.D}};
  for (int64_t b = 0; b < q.B; ++b) {
    for (int64_t g = 0; g < k.H; ++g) PlainScanBack<Real>(s, fwd, in, b, g, &r).Run();
  }
  r.dq = ThroughMap(s.params.map, q, r.dq);
  r.dk = ThroughMap(s.params.map, k, r.dk);
  return r;
}

}  // namespace attnd::testing
