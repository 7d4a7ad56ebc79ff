// scan: attention through a state.
//
// phi_q = map(q) + offset, phi_k = map(k) + offset. A state S [F,Dv], z [F] per kv head starts from
// s0, z0 (zero where not given) and takes the keys in order, with a_t = exp(log_decay_t), b_t =
// beta_t (1 where absent):
//   sum:   S_t = a_t S_(t-1) + b_t phi_k,t (x) v_t       z_t = a_t z_(t-1) + b_t phi_k,t
//   delta: S' = a_t S_(t-1);  S_t = S' + b_t phi_k,t (x) (v_t - S'^T phi_k,t)
//          z as in sum (Schlag et al. 2021, section 4.2; Yang et al. 2024). While b_t |phi_k,t|^2
//          <= 2 the state cannot explode.
// Causal, query i reads the state after key i + offset, else after the last key:
//   num_i = S^T phi_q,i,  d_i = z . phi_q,i,  out_i = scale num_i / den(d_i),  lse_i = log d_i
// (Katharopoulos et al. 2020, eq. 4-12). Query head h reads kv head h / (H / Hkv).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/core/view.h"

namespace attnd {

enum class FeatureMap : uint8_t {
  kEluPlusOne,  // x + 1 for x > 0, else e^x
  kRelu,        // max(x, 0); derivative 0 at 0
  kReluSquared,
  kSquared,
  kAbs,  // derivative 0 at 0
  kIdentity,
  kExp,  // evaluated with shifts so that it cannot overflow; den = d. No decay, beta, state, delta
  kSigmoid,
  kSilu,
  kGelu,  // erf form
};

enum class ScanRule : uint8_t { kSum, kDelta };

// den(d), with eps. A den of exactly 0 gives out = 0.
enum class ScanDen : uint8_t {
  kOne,       // 1: no normalisation
  kAdd,       // d + eps
  kJax,       // d + 2 eps where |d| <= eps, else d; gradient as kAdd
  kClamp,     // max(d, eps); no gradient of d where d <= eps
  kAbsClamp,  // max(|d|, eps); gradient sign(d), none where |d| <= eps
};

// One sequence of a batch: queries [0, nq), keys [0, nk). causal: query i sees keys j <= i +
// offset. A query that sees no key gives out = 0 and lse = -inf, unless a state was given: then it
// reads that.
struct ScanSeq {
  int64_t nq = 0, nk = 0;
  int64_t offset = 0;
  double visible_pairs = 0;
  int64_t count = 1;  // on a dry stream: it stands for this many equal sequences, in any order
};

struct ScanProblem {
  View q, k, v;  // [B,H,Nq,D] [B,Hkv,Nk,D] [B,Hkv,Nk,Dv]; float dtypes, last stride 1; F = D
  View out;      // [B,H,Nq,Dv]
  // [B,H,Nq] float32; not given(): not wanted. -inf in rows that see no key; else NaN where d <= 0,
  // but -inf where d = 0 with kExp, whose d can only underflow. A gradient of lse where d <= 0 is
  // ignored.
  View lse;
  std::vector<ScanSeq> seqs;
  // Optional, float32, strides may be 0 where they repeat. log_decay <= 0: [B,Hkv,Nk,1], one a key,
  // or [B,Hkv,Nk,D], one a feature. beta [B,Hkv,Nk]. Both need causal.
  View log_decay, beta;
  View s0, z0;        // [B,Hkv,D,Dv] [B,Hkv,D] float32
  View s_out, z_out;  // the state after key nk - 1; causal only
};

// Which keys and queries of a sequence have any effect. In the order of positions: first `lead`
// queries or `ahead` keys, then `read` queries and keys in turn.
struct ScanReach {
  int64_t lead = 0, ahead = 0, read = 0;
  int64_t used_keys = 0;                   // that some query, or the final state, depends on
  int64_t first_query = 0, end_query = 0;  // that read something

  // has_state: queries before all keys read s0, z0. wants_final: the last state is an output.
  ScanReach(bool causal, const ScanSeq& seq, bool has_state, bool wants_final) {
    const int64_t offset = causal ? seq.offset : seq.nk;
    lead = std::clamp<int64_t>(-offset, 0, seq.nq);
    ahead = std::clamp<int64_t>(offset, 0, seq.nk);
    if (lead == seq.nq && !wants_final) ahead = 0;
    read = lead == seq.nq ? 0 : std::min(seq.nq - lead, seq.nk - ahead);
    used_keys = ahead + read;
    const bool reads_rest = has_state || used_keys > 0;
    first_query = has_state ? 0 : lead;
    end_query = reads_rest ? seq.nq : lead + read;
    if (wants_final) used_keys = seq.nk;
    if (first_query >= end_query) first_query = end_query = 0;
  }
};

struct ScanParams {
  FeatureMap map = FeatureMap::kEluPlusOne;
  double offset = 0;               // 0 unless the map is kIdentity
  ScanRule rule = ScanRule::kSum;  // kDelta: causal, den kOne
  bool causal = false;
  ScanDen den = ScanDen::kAdd;
  double eps = 1e-6;
  double scale = 1;    // finite
  int64_t chunk = 64;  // 1..1024: a hint to devices that work in blocks; changes rounding at most
  bool operator==(const ScanParams&) const = default;
};

struct ScanArgs {
  ScanParams params;
  std::vector<ScanProblem> problems;
};

struct ScanGradProblem {
  ScanProblem forward;     // its outputs are not read
  View dout, dlse;         // not given(): zero
  View ds_out, dz_out;     // not given(): zero
  View dq, dk, dv;         // as q, k, v; not given(): not wanted
  View dlog_decay, dbeta;  // dense [B,Hkv,Nk,1|D], [B,Hkv,Nk]; not given(): not wanted
  View ds0, dz0;           // likewise
};

struct ScanGradArgs {
  ScanParams params;
  std::vector<ScanGradProblem> problems;
};

// Whether a state comes in, and whether the last state is an output or has a gradient.
inline bool HasState(const ScanProblem& p) { return p.s0.given() || p.z0.given(); }
inline bool WantsFinal(const ScanProblem& p) { return p.s_out.given() || p.z_out.given(); }
inline bool WantsFinal(const ScanGradProblem& p) { return p.ds_out.given() || p.dz_out.given(); }
// Whether a problem has any element to write; a launch skips one that has none.
inline bool Writes(const ScanProblem& p) { return p.q.shape[2] > 0 || WantsFinal(p); }
inline bool Writes(const ScanGradProblem& p) {
  const bool of_keys = p.dk.given() || p.dv.given() || p.dlog_decay.given() || p.dbeta.given();
  return (p.forward.q.shape[2] > 0 && p.dq.given()) || p.ds0.given() || p.dz0.given() ||
         (p.forward.k.shape[2] > 0 && of_keys);
}

// For ForEachView of launch.h.
template <class F>
void ForEachView(const ScanProblem& p, const F& f) {
  for (const View* view : {&p.q, &p.k, &p.v, &p.out, &p.lse, &p.log_decay, &p.beta, &p.s0, &p.z0,
                           &p.s_out, &p.z_out}) {
    f(*view);
  }
}
template <class F>
void ForEachView(const ScanGradProblem& p, const F& f) {
  ForEachView(p.forward, f);
  for (const View* view : {&p.dout, &p.dlse, &p.ds_out, &p.dz_out, &p.dq, &p.dk, &p.dv,
                           &p.dlog_decay, &p.dbeta, &p.ds0, &p.dz0}) {
    f(*view);
  }
}

}  // namespace attnd
