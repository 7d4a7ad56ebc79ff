// Softmax attention and its gradients as nested loops over pairs: the reference of the kernels. T
// is double for the truth, float for "plain code of the same precision".
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace attnd {

// One sequence; dense [H,N,D] arrays of numbers as stored (already rounded to their dtype).
struct PlainAttendCase {
  int64_t H = 1, Hkv = 1, Nq = 0, Nk = 0, D = 1, Dv = 1;
  double scale = 1;
  std::vector<float> q, k, v;
  std::vector<float> dout, dlse;  // for the backward; [H,Nq,Dv], [H,Nq]
  std::function<bool(int64_t i, int64_t j)> sees;
};

template <class T>
struct PlainAttendResult {
  std::vector<T> out, lse, dq, dk, dv;
  // Largest |scale P dP k|, |scale P delta k| and the same with q: the gradients of q and k are
  // differences of such terms, so errors of some units in the terms' last place are allowed.
  T largest_term = 0;
};

// Rows that see nothing: out 0, lse -inf, no gradient. `stored` rounds to what memory between
// forward and backward holds: the backward starts from the out and lse that were written.
template <class T>
PlainAttendResult<T> PlainAttend(const PlainAttendCase& c, bool backward,
                                 const std::function<T(T)>& stored) {
  PlainAttendResult<T> r;
  r.out.assign(c.H * c.Nq * c.Dv, 0);
  r.lse.assign(c.H * c.Nq, -std::numeric_limits<T>::infinity());
  r.dq.assign(c.q.size(), 0);
  r.dk.assign(c.k.size(), 0);
  r.dv.assign(c.v.size(), 0);
  const T scale = static_cast<T>(c.scale);
  for (int64_t h = 0; h < c.H; ++h) {
    const int64_t kv = h / (c.H / c.Hkv);
    for (int64_t i = 0; i < c.Nq; ++i) {
      const float* q = &c.q[(h * c.Nq + i) * c.D];
      const auto k = [&](int64_t j) { return (kv * c.Nk + j) * c.D; };
      const auto v = [&](int64_t j) { return (kv * c.Nk + j) * c.Dv; };
      std::vector<int64_t> seen;
      std::vector<T> p;
      T max = -std::numeric_limits<T>::infinity(), sum = 0;
      for (int64_t j = 0; j < c.Nk; ++j) {
        if (!c.sees(i, j)) continue;
        T s = 0;
        for (int64_t d = 0; d < c.D; ++d) s += T{q[d]} * T{c.k[k(j) + d]};
        seen.push_back(j);
        p.push_back(s * scale);
        max = p.back() > max ? p.back() : max;
      }
      if (seen.empty()) continue;
      for (T& s : p) sum += s = std::exp(s - max);
      for (T& s : p) s /= sum;
      T* out = &r.out[(h * c.Nq + i) * c.Dv];
      for (size_t n = 0; n < seen.size(); ++n) {
        for (int64_t d = 0; d < c.Dv; ++d) out[d] += p[n] * T{c.v[v(seen[n]) + d]};
      }
      r.lse[h * c.Nq + i] = max + std::log(sum);
      if (!backward) continue;
      const float* dout = &c.dout[(h * c.Nq + i) * c.Dv];
      T delta = 0;
      for (int64_t d = 0; d < c.Dv; ++d) delta += T{dout[d]} * stored(out[d]);
      for (size_t n = 0; n < seen.size(); ++n) {
        const int64_t j = seen[n];
        T s = 0, dp = 0;
        for (int64_t d = 0; d < c.D; ++d) s += T{q[d]} * T{c.k[k(j) + d]};
        p[n] = std::exp(s * scale - r.lse[h * c.Nq + i]);
        for (int64_t d = 0; d < c.Dv; ++d) {
          dp += T{dout[d]} * T{c.v[v(j) + d]};
          r.dv[v(j) + d] += p[n] * T{dout[d]};
        }
        const T ds = scale * p[n] * (dp - delta + T{c.dlse[h * c.Nq + i]});
        for (int64_t d = 0; d < c.D; ++d) {
          r.dq[(h * c.Nq + i) * c.D + d] += ds * T{c.k[k(j) + d]};
          r.dk[k(j) + d] += ds * T{q[d]};
          const T size = std::max(std::abs(T{q[d]}), std::abs(T{c.k[k(j) + d]}));
          const T term = scale * p[n] * (std::abs(dp) + std::abs(delta)) * size;
          r.largest_term = std::max(r.largest_term, term);
        }
      }
    }
  }
  return r;
}

}  // namespace attnd
