// attend: softmax (or ReLU) attention over a pattern, forward and backward.
//
//   t_ij = scale (q_i . k_j + q_rel_i . r_delta)            delta = clamp(p_i - p_j, 0, L - 1)
//   x_ij = cap tanh(t_ij / cap)                              cap = 0: x = t
//   s_ij = x_ij + bias_ij - slope |p_i - p_j| + constants of the pattern (+ scale table_i,label(ij)
//          inside t, or table_i,label(ij) here, see `table`)
//   softmax: P_ij = exp(s_ij - lse_i), lse_i = log(sum_j exp(s_ij) + exp(sink))   (Vaswani et al.
//            2017, eq. 1; lse as in Dao et al. 2022)
//   else:    P_ij = row_weight_i phi(s_ij)                   (Wortsman et al. 2023, section 3)
//   out_i = sum_j P_ij v_j over visible pairs
//
// Query head h reads kv head h / (H / Hkv). p_i = i + offset is the position of query row i, p_j =
// j that of key row j; row r of k2 counts as key row Nk + r of k.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/core/view.h"
#include "kernels/device/pattern.h"

namespace attnd {

// How a score becomes a weight. All but kSoftmax are phi of ReLU attention.
enum class Weighting : uint8_t {
  kSoftmax,
  kRelu,  // phi'(0) = 0
  kReluSquared,
  kGelu,  // erf form
  kSoftplus,
  kIdentity,
  kRelu6,  // phi' = 0 at 0 and at 6
  kSigmoid,
};

struct AttendParams {
  double scale = 1;
  double softcap = 0;  // >= 0; 0: off
  Weighting weighting = Weighting::kSoftmax;
  bool cap_table = true;  // false: the table enters s, after the cap and unscaled
  bool operator==(const AttendParams&) const = default;
};

// Visible pairs of tiles whose masks are computed (Run::kComputed). ops cannot count them, since
// the masks exist nowhere but on the device: every device must add them, each pair once for each
// query head, in the first launch over the sequence and in no other one.
class PairCount {
 public:
  // Whether a launch is the first one over the sequence, which must Add.
  bool Claim() { return !is_claimed_.exchange(true); }
  void Add(int64_t pairs) { pairs_.fetch_add(pairs, std::memory_order_relaxed); }
  // Complete after Stream::Wait of the first launch's stream.
  int64_t pairs() const { return pairs_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> pairs_ = 0;
  std::atomic<bool> is_claimed_ = false;
};

// What one sequence of a problem sees: queries [0, nq), keys [0, nk) and, of those, what the
// pattern shows (none: everything; on a dry stream always none: only the counts are known). A
// pattern without gather order covers at least nq x nk pairs, often the views' whole Nq x Nk: it is
// clipped to nq, nk. One with a gather order names rows below nq, nk (and rows of k2) only. Rows at
// and beyond nq give out = 0, lse = -inf and no gradient, as do rows that see no key (with a sink:
// lse = sink). Invisible pairs and rows beyond nq, nk contribute nothing, also when the tensors
// hold NaN or Inf there: they are selected away, never multiplied by zero.
struct AttendSeq {
  int64_t nq = 0, nk = 0;
  std::shared_ptr<const Pattern> pattern;                     // of all heads
  std::vector<std::shared_ptr<const Pattern>> head_patterns;  // or H of them, one a query head
  int64_t offset = 0;                                         // position of query row 0
  double visible_pairs = 0;               // of one head (the mean), for accounting and prediction
  std::shared_ptr<PairCount> pair_count;  // what visible_pairs leaves out; null: nothing
  double visible_tiles = 0;               // 64 x 64 tiles visited, of one head
  double mask_seconds = 0;   // of one head on one processor, in every pass: masks that are computed
  bool gathers = false;      // some pattern has query_rows or key_rows; set on a dry stream too
  bool is_counted = true;    // false on a dry stream: visible_tiles is estimated
  bool is_listed = false;    // its patterns are (Pattern::is_listed); set on a dry stream too
  int64_t longest_list = 0;  // then: the most keys that a query lists, or more; for plans
  int64_t term_bytes = 0;  // of an element of a tile of its patterns' terms: labels 2, constants 4
  int64_t count = 1;       // on a dry stream: it stands for this many equal sequences, in any order
  // On a dry stream: of all its heads in all these sequences, patterns that differ, and about the
  // most tiles that these may show together.
  int64_t patterns = 1;
  double pattern_tiles = 0;
  int64_t pattern_bytes = 0;  // likewise: at most what they take on the host, or a copy elsewhere

  const Pattern* Of(int64_t h) const {
    return head_patterns.empty() ? pattern.get() : head_patterns[h].get();
  }
};

// Tensors that enter the scores. All optional; strides may be 0 in dimensions that repeat; those of
// rank 4 have a last stride of 1 otherwise. float32 unless a dtype is given.
struct AttendTerms {
  View k2, v2;  // [B,Hkv,Nk2,D] [B,Hkv,Nk2,Dv], any float dtype, last stride 1: rows from Nk on
                // of the pattern's gather order, with positions from Nk on
  View bias;    // [B,H,Nq,Nk], a float dtype; natural units; read at visible pairs of k only;
              // -inf makes a pair invisible, and nothing else does: where finite numbers add up to
              // more than float32 holds, the score is its largest number of that sign
  View alibi_slopes;  // [B,H]
  View sinks;         // [B,H]: one more key with this score and value 0 in every row of q below nq;
                      // -inf: none
  View table;         // [B,H,Nq,V], V <= 65535: t_ij += scale table[i, label(i,j)], without
                      // AttendParams::cap_table s_ij += table[i, label(i,j)]; a pair without a
                      // label adds nothing
  View q_rel, r;    // [B,H,Nq,D] (dtype of q) [B,H,L,D], last stride 1: the relative term; L >= 1.
                    // Pairs with p_j > p_i read r_0
  View row_weight;  // [B,H,Nq], >= 0: factor of row i where weighting is not softmax; absent: 1
};

// The sequences of a problem are all listed or none. Listed ones use softmax and take neither k2,
// v2 nor table, q_rel, r.
struct AttendProblem {
  View q, k, v;  // [B,H,Nq,D] [B,Hkv,Nk,D] [B,Hkv,Nk,Dv], float dtypes, last stride 1
  View out;      // [B,H,Nq,Dv], a float dtype
  View lse;      // [B,H,Nq] float32, natural log; not written where weighting is not softmax
  // Like lse: what its rounding left out, lse_i = fl(lse_i + lse_low_i), so that P_ij = exp((s_ij -
  // lse_i) - lse_low_i) sums to 1 at any size of the scores; 0 where lse is not finite. Not
  // given(): not wanted; of a gradient: 0.
  View lse_low;
  std::vector<AttendSeq> seqs;  // their counts sum to B
  AttendTerms terms;
};

// What a device keeps of a forward for the gradient of the same sequences. The launches of both, of
// one stream or dry ones, have it in their args, one after the other; it ends with its last owner.
struct AttendKept {
  std::shared_ptr<void> of_device;  // null: nothing
};

struct AttendArgs {
  AttendParams params;
  // D, Dv and each tensor's dtype equal in all of them; a term is given in all or in none.
  std::vector<AttendProblem> problems;
  std::shared_ptr<AttendKept> kept = nullptr;  // null: no gradient follows
};

// Gradients given dout and dlse (gradient of lse; ignored where lse = -inf): with delta_i = dout_i
// . out_i
//   softmax: dS = P (dout v^T - delta + dlse), else dS = row_weight phi'(s) dout v^T
//   dT = dS (1 - (x / cap)^2); dq = scale dT k; dk = scale dT^T q; dv = P^T dout
//   dbias = dS, summed over what bias repeats; dslope = -sum dS |p_i - p_j|
//   dsink = sum_i exp(sink - lse_i) (dlse_i - delta_i)
//   dtable[i, l] = scale sum of dT_ij (without cap_table: sum of dS_ij) with label l; dq_rel =
//   scale sum_j dT_ij r_delta; dr_delta = scale sum dT_ij q_rel_i
// P is recomputed from lse and lse_low, which may count keys that other calls attended to (parts of
// a pattern): out, lse, lse_low, dout, dlse are then those of the whole. A weight of the gradient
// is that of the forward only if both find the same bits for s_ij: at a score of 1e6 one unit in
// the last place is 6 % of the weight. A term's gradient is dense, with 1 in every dimension that
// the term repeats (stride 0): summed over it. Any float dtype (bias of sequences that gather:
// float32). Fully overwritten; not given: not wanted.
struct AttendTermGrads {
  View k2, v2, bias, alibi_slopes, sinks, table, q_rel, r;
};

struct AttendGradProblem {
  AttendProblem forward;  // with the out, lse and lse_low that the forward wrote
  View dout;              // as out, any float dtype; not given(): zero
  View dlse;              // as lse; not given(): zero
  // Shapes of q, k, v, any float dtype; fully overwritten. not given(): not wanted.
  View dq, dk, dv;
  AttendTermGrads dterms;
};

struct AttendGradArgs {
  AttendParams params;
  std::vector<AttendGradProblem> problems;
  // False: sums may be in any order, another one at each call, and of numbers rounded to 16 bits
  // where the operands have as many. A device that gains nothing by it takes no notice.
  bool is_deterministic = true;
  std::shared_ptr<AttendKept> kept = nullptr;  // of the forward; null: it kept nothing
};

// For ForEachView of launch.h.
template <class F>
void ForEachView(const AttendTerms& t, const F& f) {
  for (const View* view : {&t.k2, &t.v2, &t.bias, &t.alibi_slopes, &t.sinks, &t.table, &t.q_rel,
                           &t.r, &t.row_weight}) {
    f(*view);
  }
}
template <class F>
void ForEachView(const AttendProblem& p, const F& f) {
  for (const View* view : {&p.q, &p.k, &p.v, &p.out, &p.lse, &p.lse_low}) f(*view);
  ForEachView(p.terms, f);
}
template <class F>
void ForEachView(const AttendGradProblem& p, const F& f) {
  ForEachView(p.forward, f);
  const AttendTermGrads& t = p.dterms;
  for (const View* view : {&p.dout, &p.dlse, &p.dq, &p.dk, &p.dv, &t.k2, &t.v2, &t.bias,
                           &t.alibi_slopes, &t.sinks, &t.table, &t.q_rel, &t.r}) {
    f(*view);
  }
}

}  // namespace attnd
