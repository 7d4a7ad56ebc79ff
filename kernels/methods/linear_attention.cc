// Linear attention (Katharopoulos et al. 2020, eq. 4-12): exp(q . k) is replaced by phi(q) .
// phi(k),
//   num_i = sum_j (phi(q_i) . phi(k_j)) v_j,  d_i = sum_j phi(q_i) . phi(k_j),
//   out_i = num_i / (d_i + eps), or scale num_i if not normalize;  lse_i = log d_i
// over keys j < kv_lengths[b] and, if causal, j <= i + Nk - Nq. Sums over keys are kept as a state
// [D,Dv] per kv head, so the cost is linear in n.
// q [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h reads kv head h / (H/Hkv).
#include <cmath>
#include <optional>

#include "kernels/method.h"

namespace attnd {
namespace {

// The elementwise maps of scan in its order, then those that are not served.
const std::vector<std::string>& MapNames() {
  static const auto& names = *new std::vector<std::string>{
      "elu_plus_one", "relu",    "relu_squared", "squared", "abs",  "identity",
      "exp",          "sigmoid", "silu",         "gelu",    "dpfp", "softmax"};
  return names;
}
constexpr auto kLastServed = FeatureMap::kGelu;

struct LinearOptions {
  FeatureMap feature_map = FeatureMap::kEluPlusOne;
  bool normalize = true;
  double eps = 1e-6;
  int64_t chunk_size = 64;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  bool causal = false;
};

std::vector<OptionSpec<LinearOptions>> Lines() {
  using O = LinearOptions;
  return {
      EnumOption<O>("feature_map", &O::feature_map, MapNames(), "elu_plus_one",
                    "phi; dpfp and softmax are not served by this version"),
      BoolOption<O>("normalize", &O::normalize, "true", "false: out = scale * sum, no division"),
      FloatOption<O>("eps", &O::eps, {.min = 0}, "1e-6",
                     "added to the normaliser; no effect with feature_map exp"),
      UnservedOption<O>("feature_sum_norm", OptionType::kBool, false,
                        "divide each phi by its own sum"),
      UnservedOption<O>("causal_norm", OptionType::kEnum, std::string("prefix"),
                        "for feature_map softmax only", {"prefix", "joint"}),
      UnservedOption<O>("nu", OptionType::kInt, int64_t{2}, "for feature_map dpfp only"),
      IntOption<O>("chunk_size", &O::chunk_size, {.min = 1, .max = 1024}, "64",
                   "most steps of a causal block (the CPU takes at most 32); changes results "
                   "by rounding only"),
      FloatOption<O>("scale", &O::scale, {.min = 0, .min_open = true}, "1/sqrt(D)",
                     "used only when normalize is false"),
      BoolOption<O>("causal", &O::causal, "false", "query i sees keys j <= i + Nk - Nq"),
      UnservedOption<O>("return_state", OptionType::kBool, false, "also answer the final state"),
      UnservedOption<O>("seed", OptionType::kInt, int64_t{0},
                        "of drawn tensors; this method draws none"),
  };
}

std::vector<TensorInfo> LinearInputs() {
  return {{"q", "[B,H,Nq,D]", "float", "queries", /*required=*/true, /*differentiable=*/true},
          {"k", "[B,Hkv,Nk,D]", "float", "keys; Hkv divides H", /*required=*/true,
           /*differentiable=*/true},
          {"v", "[B,Hkv,Nk,Dv]", "float", "values", /*required=*/true, /*differentiable=*/true},
          {"q_lengths", "[B]", "int32", "0..Nq: rows beyond give out = 0, lse = -inf"},
          {"kv_lengths", "[B]", "int32", "0..Nk: keys beyond are never seen"},
          {.name = "state_s",
           .shape = "[B,Hkv,D,Dv]",
           .dtype = "float",
           .help = "state to start from",
           .differentiable = true,
           .served = false},
          {.name = "state_z",
           .shape = "[B,Hkv,D]",
           .dtype = "float",
           .help = "state to start from",
           .differentiable = true,
           .served = false}};
}

class LinearAttention : public MethodOf<LinearOptions> {
 public:
  LinearAttention()
      : MethodOf(
            {.id = "linear_attention",
             .summary = "Linear attention with an elementwise feature map",
             .reference = "Katharopoulos et al. 2020 (arXiv 2006.16236), eq. 4-12",
             .cost = "about 4 D Dv FLOPs per token and head, causal with C (D + Dv) more for "
                     "blocks of C = min(chunk_size, 32); memory O(n)",
             .inputs = LinearInputs(),
             .outputs = {{"out", "[B,H,Nq,Dv]", "float", "sums of values by feature"},
                         {"lse", "[B,H,Nq]", "float32",
                          "natural log of the normaliser; -inf: no key, NaN: it is not positive"}},
             .support = {.causal = true, .lengths = true, .cross = true, .gqa = true, .lse = true}},
            Lines()) {}

 protected:
  void CheckProblem(const ProblemShape&, const LinearOptions& o, Reasons* reasons) const override {
    if (o.feature_map > kLastServed) {
      reasons->Unserved("feature_map is not served by this version, got ",
                        ToString(MapNames()[static_cast<size_t>(o.feature_map)]));
    }
  }

  Outputs Formula(Ops& ops, const Inputs& in, const LinearOptions& o) const override {
    const double D = static_cast<double>(in.problems[0].D);
    const ScanParams params{.map = o.feature_map,
                            .causal = o.causal,
                            .den = o.normalize ? ScanDen::kAdd : ScanDen::kOne,
                            .eps = o.eps,
                            .scale = o.normalize ? 1 : o.scale.value_or(1 / std::sqrt(D)),
                            .chunk = o.chunk_size};
    constexpr int64_t kUnbounded = PatternBuilder::kUnbounded;
    ScanRows rows;
    for (const ProblemShape& p : in.problems) {
      std::vector<ScanRow>& of_problem = rows.emplace_back();
      for (int64_t b = 0; b < p.B; ++b) {
        const Lengths lengths{p.Int("q_lengths", b, p.Nq), p.Int("kv_lengths", b, p.Nk)};
        const int64_t offset = p.Nk - p.Nq;
        const int64_t last = o.causal ? offset : kUnbounded;
        of_problem.push_back({.nq = lengths.nq,
                              .nk = lengths.nk,
                              .offset = offset,
                              .visible_pairs = BandPairs(lengths, kUnbounded, last)});
      }
    }
    const ScanOut scanned = ops.Scan(in.q, in.k, in.v, params, rows);
    return {.out = scanned.out, .lse = scanned.lse};
  }
};

}  // namespace

ATTND_METHOD(linear_attention, LinearAttention)

}  // namespace attnd
