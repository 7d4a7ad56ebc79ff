// Linear attention (Katharopoulos et al. 2020, eq. 4-12), with phi(q) . phi(k) for exp(q . k):
//   num_i = sum_j (phi(q_i) . phi(k_j)) v_j,  d_i = sum_j phi(q_i) . phi(k_j),
//   out_i = num_i / (d_i + eps), or scale num_i if not normalize;  lse_i = log d_i
// over keys j < kv_lengths[b] and, if causal, j <= i + Nk - Nq. Sums over keys are kept as a state
// [F,Dv] per kv head, so the cost is linear in n. feature_map softmax (Shen et al. 2018): phi(q) is
// a softmax over D, the keys of a channel weigh as their softmax over the keys seen.
// q [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h reads kv head h / (H/Hkv).
#include <cmath>
#include <limits>
#include <optional>

#include "kernels/method/common_inputs.h"
#include "kernels/method/method.h"
#include "kernels/methods/linear/maps.h"
#include "kernels/methods/linear/scan_split.h"
#include "kernels/methods/linear/states.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

constexpr int kKeys = 2;  // the axis of keys

enum class CausalNorm : uint8_t { kPrefix, kJoint };

struct LinearOptions {
  LinearMap feature_map = LinearMap::kEluPlusOne;
  bool normalize = true;
  double eps = 1e-6;
  bool feature_sum_norm = false;
  CausalNorm causal_norm = CausalNorm::kPrefix;
  int64_t nu = 2;
  int64_t chunk_size = 64;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  bool causal = false;
  bool return_state = false;
  uint64_t seed = 0;

  StateOptions States(int64_t D) const {
    return {.causal = causal,
            .return_state = return_state,
            .features = feature_map == LinearMap::kDpfp ? 2 * nu * D : D};
  }
};

std::vector<OptionSpec<LinearOptions>> Lines() {
  using O = LinearOptions;
  return {
      EnumOption("feature_map", &O::feature_map, LinearMapNames(), "phi"),
      BoolOption("normalize", &O::normalize, "false: out = scale * sum, no division"),
      ReadIf(
          "normalize is true and feature_map is neither exp nor softmax",
          [](const O& o) {
            return o.normalize && o.feature_map != LinearMap::kExp &&
                   o.feature_map != LinearMap::kSoftmax;
          },
          FloatOption("eps", &O::eps, {.min = 0, .max = 1e30}, "added to the normaliser")),
      BoolOption("feature_sum_norm", &O::feature_sum_norm, "divide each phi by its own sum"),
      ReadIf(
          "causal is true and feature_map is softmax",
          [](const O& o) { return o.causal && o.feature_map == LinearMap::kSoftmax; },
          EnumOption("causal_norm", &O::causal_norm, {"prefix", "joint"},
                     "channels normalised alone, or together")),
      ReadIf(
          "feature_map is dpfp", [](const O& o) { return o.feature_map == LinearMap::kDpfp; },
          IntOption("nu", &O::nu, {.min = 1, .max = kMostNu}, "1..D, F = 2 nu D")),
      IntOption("chunk_size", &O::chunk_size, {.min = 1, .max = 1024},
                "a hint to devices that work in blocks; changes rounding at most"),
      ReadIf(
          "normalize is false", [](const O& o) { return !o.normalize; },
          ScaleOption(&O::scale, "multiplies the output")),
      CausalOption(&O::causal),
      BoolOption("return_state", &O::return_state,
                 "causal: also answer the state after the last key"),
      SeedOption(&O::seed),
  };
}

std::vector<TensorInfo> LinearInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  for (TensorInfo& state : StateInputs()) inputs.push_back(std::move(state));
  return inputs;
}

std::vector<TensorInfo> LinearOutputs() {
  std::vector<TensorInfo> outputs = {
      {"out", "[B,H,Nq,Dv]", "float", "sums of values by feature"},
      {"lse", "[B,H,Nq]", "float32",
       "natural log of the normaliser; -inf: no key, NaN: it is not positive; none with "
       "feature_map softmax"}};
  for (TensorInfo& state : StateOutputs()) outputs.push_back(std::move(state));
  return outputs;
}

class LinearAttention : public MethodOf<LinearOptions> {
 public:
  LinearAttention()
      : MethodOf(
            {.id = "linear_attention",
             .summary = "Linear attention with a feature map",
             .reference = "Katharopoulos et al. 2020 (arXiv 2006.16236), eq. 4-12; Shen et al. "
                          "2018 (arXiv 1812.01243)",
             .cost = "about 4 F Dv FLOPs per token and head; memory O(n F)",
             .inputs = LinearInputs(),
             .outputs = LinearOutputs(),
             .support = {.causal = true, .lengths = true, .cross = true, .gqa = true, .lse = true}},
            Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const LinearOptions& o,
                    Reasons* reasons) const override {
    if (o.feature_map == LinearMap::kDpfp) CheckDpfp(o.nu, p.D, reasons);
    const StateOptions states = o.States(p.D);
    CheckReturnState(states, reasons);
    if (o.feature_map == LinearMap::kSoftmax) {
      CheckSoftmax(p, o, reasons);
    } else {
      CheckSentStates(p, states, reasons);
    }
    CheckStateGradients(p, states, reasons);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const LinearOptions& o) const override {
    if (o.feature_map == LinearMap::kSoftmax) {
      return o.causal && o.causal_norm == CausalNorm::kJoint ? Joint(ops, in, o)
                                                             : ByChannel(ops, in, o);
    }
    // exp keeps its sums relative to shifts, which a state from outside does not know.
    const bool has_state = in.tensors.contains("state_s") || in.tensors.contains("state_z");
    const bool is_exp = o.feature_map == LinearMap::kExp;
    const bool composed = o.feature_map == LinearMap::kDpfp || o.feature_sum_norm ||
                          (is_exp && (has_state || o.return_state));
    if (composed) return Composed(ops, in, o);
    const ScanOut scanned =
        ops.Scan(in.q, in.k, in.v, Params(in, o, ElementMapOf(o.feature_map)->scan),
                 WholeScanSeqs(ops, in, o.causal), Returned(StatesOf(in, o.return_state)));
    return {.out = scanned.out, .lse = scanned.lse, .extra = StateResults(scanned, o.return_state)};
  }

 private:
  static void CheckSoftmax(const ProblemShape& p, const LinearOptions& o, Reasons* reasons) {
    if (!o.normalize) {
      reasons->Invalid("normalize must be true with feature_map softmax, got false");
    }
    if (o.feature_sum_norm) {
      reasons->Invalid("feature_sum_norm must be false with feature_map softmax, got true");
    }
    if (o.return_state) {
      reasons->Invalid("return_state must be false with feature_map softmax, got true");
    }
    for (const char* name : {"state_s", "state_z", "grad_lse"}) {
      const View* view = p.Find(name);
      if (view == nullptr) continue;
      reasons->Invalid(name, " must be absent with feature_map softmax, got ",
                       ToString(view->shape));
    }
  }

  static ScanTensors Returned(ScanTensors tensors) {
    tensors.is_returned = true;
    return tensors;
  }

  static ScanParams Params(const Inputs& in, const LinearOptions& o, FeatureMap map) {
    const double D = static_cast<double>(in.problems[0].D);
    return {.map = map,
            .causal = o.causal,
            .den = o.normalize ? ScanDen::kAdd : ScanDen::kOne,
            .eps = o.eps,
            .scale = o.normalize ? 1 : o.scale.value_or(1 / std::sqrt(D)),
            .chunk = o.chunk_size};
  }

  // The largest of every row of q, finite where all are -inf. A constant: it cancels.
  static Tensor LargestFeature(Ops& ops, const Tensor& q) {
    const Tensor most = ops.Reduce(ReduceOp::kMax, q, -1);
    if (!ops.status().ok()) return {};
    constexpr float kLeast = std::numeric_limits<float>::lowest();
    return ops.Stop(ops.Apply(ElementOp::kMaximum, most, NumberLike(ops, kLeast, most)));
  }
  // log d + shift; -inf where d = 0 by underflow, which out = 0 shows.
  static Tensor ShiftedLse(Ops& ops, const ScanOut& scanned, const Tensor& shift) {
    if (!ops.status().ok()) return {};
    const std::vector<Shape> shapes = ShapesOf(scanned.lse);
    const Tensor least = NumberLike(ops, -std::numeric_limits<float>::infinity(), scanned.lse);
    const Tensor first = ops.Reshape(ops.Slice(scanned.out, -1, {0}, {1}), shapes);
    const Tensor is_zero = ops.Apply(ElementOp::kEqual, first, NumberLike(ops, 0, scanned.lse));
    const Tensor whole = ops.Apply(ElementOp::kAdd, scanned.lse, ops.Reshape(shift, shapes));
    return ops.Select(ops.Apply(ElementOp::kGreater, scanned.lse, least), whole,
                      ops.Select(is_zero, least, scanned.lse));
  }

  static Outputs Composed(Ops& ops, const Inputs& in, const LinearOptions& o) {
    const ScanSplit split(ops, in, o.causal);
    ScanParams params = Params(in, o, FeatureMap::kIdentity);
    if (o.feature_map == LinearMap::kExp) params.eps = 0;
    Tensor q = split.Queries(in.q);
    // The normaliser divides what a query's e^q has in common out again, so that only the state may
    // leave the range of float32.
    const bool is_shifted = o.feature_map == LinearMap::kExp && o.normalize && !o.feature_sum_norm;
    const Tensor shift = is_shifted ? LargestFeature(ops, q) : Tensor();
    if (is_shifted) q = ops.Apply(ElementOp::kSubtract, q, shift);
    const LinearPhi phi{o.feature_map, o.nu, o.feature_sum_norm ? RowNorm::kSum : RowNorm::kNone};
    const Tensor phi_q = PhiOf(ops, q, phi), phi_k = PhiOf(ops, split.Keys(in.k), phi);
    ScanTensors states = StatesOf(in, o.return_state, split);
    states.is_returned = !is_shifted;
    ScanOut scanned = ops.Scan(phi_q, phi_k, split.Keys(in.v), params, split.seqs(), states);
    if (is_shifted) scanned.lse = ShiftedLse(ops, scanned, shift);
    scanned.s_out = split.JoinState(scanned.s_out);
    scanned.z_out = split.JoinState(scanned.z_out);
    return {.out = split.JoinOut(scanned.out, in.v[0].shape[3]),
            .lse = split.JoinLse(scanned.lse),
            .extra = StateResults(scanned, o.return_state)};
  }

  // --- feature_map softmax

  // sum_c phi_q,c sum_j e^(k_jc) v_j over the same with 1: the sum of phi_q cancels, and with it
  // the softmax of q.
  static Outputs Joint(Ops& ops, const Inputs& in, const LinearOptions& o) {
    const ScanParams params = Params(in, o, FeatureMap::kExp);
    const ScanSeqs seqs = WholeScanSeqs(ops, in, o.causal);
    return {.out = ops.Scan(in.q, in.k, in.v, params, seqs, {.is_returned = true}).out};
  }

  // Every channel's keys weigh by their softmax, over all keys or, causal, over those so far.
  static Outputs ByChannel(Ops& ops, const Inputs& in, const LinearOptions& o) {
    const ScanSplit split(ops, in, o.causal);
    const Tensor k = split.Keys(in.k), v = split.Keys(in.v);
    Tensor phi_q = ops.Softmax(split.Queries(in.q), -1), phi_k;
    const ScanParams params = {.map = FeatureMap::kIdentity,
                               .causal = o.causal,
                               .den = ScanDen::kOne,
                               .chunk = o.chunk_size};
    ScanTensors extra = {.is_returned = true};
    if (o.causal) {
      const Rising rising = RelativeToLargest(ops, k);
      phi_k = rising.phi;
      extra.log_decay = rising.log_decay;
      phi_q = OverSums(ops, phi_q, rising, params, split);
    } else {
      phi_k = ops.Softmax(k, kKeys);
    }
    const ScanOut scanned = ops.Scan(phi_q, phi_k, v, params, split.seqs(), extra);
    return {.out = split.JoinOut(scanned.out, in.v[0].shape[3])};
  }

  // e^(k_t - m_t) with m_t the largest of a channel up to key t, a constant, and the log of what
  // earlier keys lose as it rises: differences, which are exact however large k is.
  struct Rising {
    Tensor phi, log_decay;
  };
  static Rising RelativeToLargest(Ops& ops, const Tensor& k) {
    constexpr float kLeast = -std::numeric_limits<float>::infinity();
    const Tensor keys = ops.Stop(k);
    const Tensor most = ops.Cumulative(CumulativeOp::kMax, keys, kKeys);
    const Tensor before = ops.Cumulative(CumulativeOp::kMax, keys, kKeys, /*exclusive=*/true);
    if (!ops.status().ok()) return {};
    const auto minus = [&](const Tensor& x, const Tensor& is_empty, float of_empty) {
      return ops.Select(is_empty, NumberLike(ops, of_empty, most),
                        ops.Apply(ElementOp::kSubtract, x, most));
    };
    // A channel whose keys so far are all -inf: nothing decays, nothing comes in.
    const auto is_least = [&](const Tensor& x) {
      return ops.Apply(ElementOp::kEqual, x, NumberLike(ops, kLeast, x));
    };
    return {.phi = ops.Apply(ElementOp::kExp, minus(k, is_least(most), kLeast)),
            .log_decay = minus(before, is_least(before), 0)};
  }

  // phi_q over the sums of the keys that each query sees, channel by channel: each is a scan of one
  // feature over values of 1. 0 where they see none.
  static Tensor OverSums(Ops& ops, const Tensor& phi_q, const Rising& rising,
                         const ScanParams& params, const ScanSplit& split) {
    if (!ops.status().ok()) return {};
    std::vector<Shape> queries, keys, sums, grouped;
    ScanSeqs seqs = split.seqs();
    for (size_t p = 0; p < phi_q.size(); ++p) {
      const Shape &q = phi_q[p].shape, &k = rising.phi[p].shape;
      queries.push_back({k[0], k[1] * k[3], q[2], 1});
      keys.push_back({k[0], k[1] * k[3], k[2], 1});
      sums.push_back({k[0], k[1], 1, k[3], q[2]});
      grouped.push_back({q[0], k[1], q[1] / k[1], q[2], q[3]});
      for (ScanSeq& seq : seqs[p]) seq.visible_pairs = 0;
    }
    const auto channels = [&](const Tensor& x) {
      return ops.Reshape(ops.Transpose(x, kKeys, 3), keys);
    };
    const ScanOut scanned =
        ops.Scan(ops.Constant(1, queries), channels(rising.phi), ops.Constant(1, keys), params,
                 seqs, {.log_decay = channels(rising.log_decay), .wants_lse = false});
    const Tensor z = ops.Transpose(ops.Reshape(scanned.out, sums), 3, 4);
    const Tensor over = ops.Apply(ElementOp::kSafeDivide, ops.Reshape(phi_q, grouped), z);
    return ops.Reshape(over, ShapesOf(phi_q));
  }
};

}  // namespace

ATTND_METHOD(linear_attention, LinearAttention)

}  // namespace attnd
