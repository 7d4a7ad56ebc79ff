// One work item of scan, how it walks its sequence, and the memory it needs. Plain data, shared by
// all SIMD targets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/simd/targets.h"
#include "kernels/device/device.h"

namespace attnd {

// What an item does for its kv head. A column (of v) and a feature (of k) need no other column or
// feature once the rows are known, so that a long head is cut into slices of either kind; whatever
// the slices, every number is made by the same operations in the same order.
enum class ScanJob : uint8_t {
  kForward,   // columns of out (and lse, the state)
  kBackward,  // all that follows: delta rule one after the other, else what reads the same rows
              // shares a walk
  kRows,      // what turns dout and dlse of a row into gradients of its sums
  kErrors,    // delta rule: what its tokens write, columns
  kDots,      // dout . out of a row, where it is normalised: features
  kColumns,   // dv, dbeta: columns
  kFeatures,  // dq, dk, dlog_decay, ds0, dz0: features
};

// (problem, sequence, kv head); `grad` is null in the forward.
struct ScanItem {
  const ScanParams* params = nullptr;
  const ScanProblem* problem = nullptr;
  const ScanGradProblem* grad = nullptr;
  int64_t b = 0, kv_head = 0;
  ScanJob job = ScanJob::kForward;
  int64_t begin = 0, end = 0;  // its columns or features; begin is a multiple of 16
  float* kept = nullptr;       // ScanKept(item).floats, null in the forward
  double seconds = 0;          // predicted, on one thread
};

// Tokens at a time: their features and values stay in L1 and L2 while all of the state is read. A
// state of the sum rule stays in registers, and is read once for twice as many.
constexpr int64_t kScanBlock = 32, kScanSumBlock = 64;
// Likewise where no query comes before a key: products of that many tokens with the state.
constexpr int64_t kScanFullBlock = 64;

// A run of queries and keys, one of each at a time: key, then query. Either count may be 0, else
// they are equal.
struct ScanBlock {
  int64_t q = 0, queries = 0, k = 0, keys = 0;
  int64_t anchor = -1;  // number of this block's end, if the state there is kept (see ScanGrad)

  int64_t count() const { return std::max(queries, keys); }
};

// How an item walks its sequence: [queries before all keys, keys before all queries, pairs, the
// rest of the queries, the rest of the keys]. Queries that read nothing are left out, and so are
// keys that no query reads.
struct ScanWalk {
  static constexpr int kParts = 5;
  static constexpr int64_t kAnchorKeys = 256;  // a state of 64 x 64 costs 16 floats a key
  ScanBlock parts[kParts];
  int64_t used_keys = 0;
  int64_t first_query = 0, end_query = 0;  // those that read something

  // has_state: queries before all keys read s0, z0. final: the last state is asked for.
  ScanWalk(const ScanParams& params, const ScanSeq& seq, bool has_state, bool final) {
    const ScanReach reach(params.causal, seq, has_state, final);
    const auto [lead, ahead, read] = std::tuple(reach.lead, reach.ahead, reach.read);
    used_keys = reach.used_keys;
    first_query = reach.first_query;
    end_query = reach.end_query;
    if (has_state) parts[0] = {.q = 0, .queries = lead};
    parts[1] = {.k = 0, .keys = ahead};
    parts[2] = {.q = lead, .queries = read, .k = ahead, .keys = read};
    if (has_state || ahead + read > 0) {
      parts[3] = {.q = lead + read, .queries = seq.nq - lead - read};
    }
    if (final) parts[4] = {.k = ahead + read, .keys = seq.nk - ahead - read};
  }

  // Its keys before all queries, or its queries after all keys, alone.
  ScanWalk Keys() const { return Part(1); }
  ScanWalk Queries() const { return Part(3); }
  // Whether a block of keys is the last before all queries.
  bool EndsKeys(const ScanBlock& at) const { return at.k + at.keys == parts[1].keys; }

  // Calls f(block, next) for blocks of at most `most` tokens, in order or in reverse; after the
  // last block comes one of no tokens.
  template <class F>
  void ForEachBlock(int64_t most, bool reverse, const F& f) const {
    ScanBlock block;
    for (int i = 0; i < kParts; ++i) {
      const int p = reverse ? kParts - 1 - i : i;
      const ScanBlock& part = parts[p];
      const int64_t blocks = CeilDiv(part.count(), most);
      for (int64_t n = 0; n < blocks; ++n) {
        if (CheckPoint()) return;
        const ScanBlock next = Cut(part, p, reverse ? blocks - 1 - n : n, most);
        if (block.count() > 0) f(block, next);
        block = next;
      }
    }
    if (block.count() > 0) f(block, ScanBlock());
  }
  // An upper bound of the numbers of anchors.
  static int64_t Anchors(int64_t keys) { return keys / kAnchorKeys + kParts + 2; }

 private:
  ScanWalk Part(int part) const {
    ScanWalk walk = *this;
    for (int i = 0; i < kParts; ++i) {
      if (i != part) walk.parts[i] = {};
    }
    return walk;
  }

  static ScanBlock Cut(const ScanBlock& part, int number, int64_t n, int64_t most) {
    const int64_t begin = n * most, count = std::min(most, part.count() - begin);
    ScanBlock block = {.q = part.q + begin, .k = part.k + begin};
    if (part.queries > 0) block.queries = count;
    if (part.keys == 0) return block;
    block.keys = count;
    const int64_t end = block.k + count;
    const bool is_last = begin + count == part.count();
    if (is_last || block.k / kAnchorKeys != end / kAnchorKeys) {
      block.anchor = end / kAnchorKeys + (is_last ? 1 : 0) + number;
    }
    return block;
  }
};

// Rows are as wide as whole vectors of the widest target (16 floats). Row pitches are an odd number
// of cache lines: a pitch that is a power of two would put a column of a matrix into few sets of
// L1.
struct ScanWidth {
  static constexpr int64_t kVector = 16;
  static int64_t Of(int64_t n) { return RoundUp(n, kVector); }
  static int64_t Pitch(int64_t n) { return (Of(n) / kVector | 1) * kVector; }
};

// Hands out parts of one array of floats.
class FloatParts {
 public:
  int64_t floats() const { return floats_; }

 protected:
  int64_t Part(int64_t count) {
    const int64_t at = floats_;
    floats_ += ScanWidth::Of(count);
    return at;
  }

 private:
  int64_t floats_ = 0;
};

// Where things lie in the scratch of an item.
class ScanLayout : public FloatParts {
 public:
  int64_t D, Dv, group;
  int64_t block;             // tokens at a time
  int64_t q_pitch, v_pitch;  // of rows of features; of values and a 1
  int64_t prefix_pitch;
  int64_t q_width, v_width;  // in use
  // [group, block] rows of features or values: q, o, dphi. [block] rows: k, decay, v. The state
  // [D,Dv] (or [Dv + 1,D]): s. A second one, where jobs share a walk: r.
  // [D]: z sum x. What queries of a block read of z, prefix: [D], backward [block] rows.
  // [block]: the rest.
  int64_t q, o, dphi, k, decay, v, s, r, z, sum, prefix, x;
  int64_t q_shift, k_shift, row_shift, row_d, beta, factor, shared_decay;

  explicit ScanLayout(const ScanItem& item) {
    const ScanProblem& problem = *item.problem;
    D = problem.q.shape[3];
    Dv = problem.v.shape[3];
    group = problem.q.shape[1] / problem.k.shape[1];
    q_pitch = ScanWidth::Pitch(D);
    // Query heads share the state, and a block of all of them should stay in L2.
    const bool causal = item.params->causal;
    const int64_t most = item.params->rule == ScanRule::kSum ? kScanSumBlock : kScanBlock;
    block = std::clamp<int64_t>(most / group, 16, most);
    if (!causal) {
      const int64_t fitting = kFullFloats / (group * q_pitch) / 16 * 16;
      block = std::clamp(fitting, block, kScanFullBlock);
    }
    v_pitch = ScanWidth::Pitch(Dv + 1);
    q_width = ScanWidth::Of(D);
    v_width = ScanWidth::Of(Dv);
    const int64_t rows = group * block;
    const bool backward = item.grad != nullptr;
    // The backward of the delta rule has rows of its own for the block's keys.
    const int64_t of_keys = backward && item.params->rule == ScanRule::kDelta ? block : 0;
    q = Part(rows * q_pitch);
    o = Part((rows + of_keys) * v_pitch);
    dphi = Part(backward ? (rows + of_keys) * q_pitch : 0);
    k = Part(block * q_pitch);
    decay = Part(causal ? block * q_pitch : 0);
    v = Part(block * v_pitch);
    s = Part(std::max(q_width * v_pitch, backward ? (Dv + 1) * q_pitch : 0));
    const bool both = backward && item.params->rule == ScanRule::kSum;
    r = Part(both ? std::max(q_width * v_pitch, (Dv + 1) * q_pitch) : 0);
    z = Part(q_width);
    sum = Part(q_width);
    prefix_pitch = backward && causal ? q_pitch : 0;
    prefix = Part(prefix_pitch > 0 ? block * q_pitch : q_width);
    x = Part(std::max(q_width, v_width));
    q_shift = Part(rows);
    k_shift = Part(block);
    row_shift = Part(block + 1);
    row_d = Part(rows);
    beta = Part(block);
    factor = Part(rows);
    shared_decay = Part(block);
  }

 private:
  static constexpr int64_t kFullFloats = 36 << 10;  // 64 rows of 512 features
};

// Whether any gradient but dq, dv and dbeta is asked for.
inline bool WantsKeys(const ScanGradProblem& p) {
  return p.dk.given() || p.dlog_decay.given() || p.ds0.given() || p.dz0.given();
}

// What the jobs of a backward leave for those that follow, O(N) floats.
class ScanKept : public FloatParts {
 public:
  // [group, queries]: to_num to_d slope lift. [keys]: shift. [keys, Dv]: error, dwrite (gradient of
  // what a token writes). [keys, D]: stored (delta: what the gradient of a key loses to what is
  // stored). [queries, D], or [queries] where features share a decay: flow (the sum of phi_q
  // dphi_q). [anchors, (Dv + 1), D]: states.
  // [group, queries, D / 16], of heads in slices: dots, a part of dout . out for each 16 features.
  int64_t to_num, to_d, slope, lift, shift, error, dwrite, stored, flow, states, dots;
  int64_t queries, q_pitch, v_pitch, dots_pitch, state_floats;

  explicit ScanKept(const ScanItem& item) {
    const ScanLayout layout(item);
    const ScanProblem& problem = *item.problem;
    const int64_t keys = problem.k.shape[2];
    queries = problem.q.shape[2];
    q_pitch = layout.q_width;
    v_pitch = layout.v_width;
    state_floats = (layout.Dv + 1) * q_pitch;
    const bool delta = item.params->rule == ScanRule::kDelta;
    const bool decays = item.grad->dlog_decay.given();
    to_num = Part(layout.group * queries);
    to_d = Part(layout.group * queries);
    slope = Part(HasDots(item) ? layout.group * queries : 0);
    lift = Part(Lifts(*item.params) ? layout.group * queries : 0);
    shift = Part(item.params->map == FeatureMap::kExp ? keys : 0);
    error = Part(delta ? keys * v_pitch : 0);
    dwrite = Part(delta ? keys * v_pitch : 0);
    stored = Part(delta ? keys * q_pitch : 0);
    flow = Part(!decays ? 0 : item.grad->dlog_decay.shape[3] == 1 ? queries : queries * q_pitch);
    states = Part(decays ? ScanWalk::Anchors(keys) * state_floats : 0);
    dots_pitch = HasDots(item) && item.job != ScanJob::kBackward ? q_pitch / ScanWidth::kVector : 0;
    dots = Part(layout.group * queries * dots_pitch);
  }

  // Whether gradients that are asked for depend, through those of normalisers, on dout . out.
  static bool HasDots(const ScanItem& item) {
    const ScanGradProblem& grad = *item.grad;
    const bool reads = grad.dq.given() || grad.dbeta.given() || WantsKeys(grad);
    return item.params->den != ScanDen::kOne && grad.dout.given() && reads;
  }

  // Whether gradients may need a factor beyond float32 (see ScanGrad).
  static bool Lifts(const ScanParams& params) {
    return params.map == FeatureMap::kExp && params.den == ScanDen::kOne;
  }
};

inline bool WantsFinal(const ScanItem& item) {
  return item.grad == nullptr ? WantsFinal(*item.problem) : WantsFinal(*item.grad);
}
// Whether a job of a backward has anything to do.
inline bool IsNeeded(const ScanItem& item) {
  const bool delta = item.params->rule == ScanRule::kDelta;
  if (item.job == ScanJob::kErrors) return delta;
  if (item.job == ScanJob::kDots) return ScanKept::HasDots(item);
  if (item.job == ScanJob::kFeatures) return item.grad->dq.given() || WantsKeys(*item.grad);
  if (item.job != ScanJob::kColumns) return true;
  return item.grad->dv.given() || item.grad->dbeta.given() || (delta && WantsKeys(*item.grad));
}
inline ScanWalk WalkOf(const ScanItem& item) {
  return ScanWalk(*item.params, item.problem->seqs[item.b], HasState(*item.problem),
                  WantsFinal(item));
}

// Runs an item. `scratch`: ScanLayout(item).floats() floats, aligned to 64 bytes, of any content.
// Together, the items of a problem write every element of its outputs.
using ScanKernel = void(const ScanItem& item, float* scratch);
ScanKernel* ScanForwardOf(Isa isa);
ScanKernel* ScanBackwardOf(Isa isa);

}  // namespace attnd
