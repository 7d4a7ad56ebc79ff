// Exact softmax attention (Vaswani et al. 2017, section 3.2.1), the baseline of all others:
//   s_ij = cap tanh(scale q_i . k_j / cap) + bias_ij - slope_h |p_i - j|
//   lse_i = log (sum_j exp(s_ij) + exp(sink_h)),  out_i = sum_j exp(s_ij - lse_i) v_j
// over keys j < kv_lengths[b] of the same segment and, if causal, j <= p_i = i + off; off = Nk - Nq
// or causal_offset[b]. Packed sequences are problems of their own.
// q [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h reads kv head h / (H/Hkv).
#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

class Softmax : public PatternMethod<PatternOptions> {
 public:
  Softmax()
      : PatternMethod({.id = "softmax",
                       .summary = "Exact softmax attention",
                       .reference = "Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.1",
                       .cost = "2 (D + Dv) FLOPs per visible pair, n^2 pairs; memory O(n)"}) {}

 protected:
  HeadParts Sees(const SeenSeq& seq, const PatternOptions&, const Integers&) const override {
    return AllHeads(AllKeys(seq));
  }
};

}  // namespace

ATTND_METHOD(softmax, Softmax)

}  // namespace attnd
