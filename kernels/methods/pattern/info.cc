#include "kernels/methods/pattern/info.h"

#include <algorithm>
#include <cmath>

namespace attnd {

namespace pattern_internal {

std::vector<TensorInfo> AllInputs(const Unsupported& unsupported,
                                  const std::vector<TensorInfo>& own) {
  std::vector<TensorInfo> inputs = CommonInputs();
  if (!unsupported.cross) {
    for (TensorInfo& input : inputs) {
      if (input.name != "kv_lengths") continue;
      input.help +=
          ", yet count in Nk - Nq: for a cache with padding send causal_offset = kv_lengths - Nq";
    }
    inputs.push_back({"causal_offset", "[B]", "int32",
                      "position of query 0; default Nk - Nq, whatever kv_lengths are"});
  }
  inputs.push_back(
      {"segment_ids_q", "[B,Nq]", "int32", "visible only if equal and >= 0; with segment_ids_kv"});
  inputs.push_back(
      {"segment_ids_kv", "[B,Nk]", "int32", "visible only if equal and >= 0; with segment_ids_q"});
  if (!unsupported.packed) {
    inputs.push_back(
        {"cu_seqlens_q", "[S+1]", "int32",
         "S packed sequences, B = 1: from 0 to Nq, non-decreasing; with cu_seqlens_k"});
    inputs.push_back(
        {"cu_seqlens_k", "[S+1]", "int32", "from 0 to Nk, non-decreasing; with cu_seqlens_q"});
  }
  inputs.push_back(Differentiable("bias", "broadcastable to [B,H,Nq,Nk]",
                                  "added to the scores; -inf hides a pair"));
  if (!unsupported.alibi) {
    inputs.push_back(Differentiable("alibi_slopes", "[H] or [B,H]", "adds -slope |p - j|"));
  }
  if (!unsupported.sinks) {
    inputs.push_back(
        Differentiable("sink_logits", "[H]", "one more key of this score and value 0"));
  }
  for (const TensorInfo& info : own) {
    const auto common = std::find_if(inputs.begin(), inputs.end(),
                                     [&](const TensorInfo& i) { return i.name == info.name; });
    if (common == inputs.end()) {
      inputs.push_back(info);
    } else {
      *common = info;
    }
  }
  return inputs;
}

std::vector<TensorInfo> AllOutputs(const Unsupported& unsupported) {
  std::vector<TensorInfo> outputs = {
      {"out", "[B,H,Nq,Dv]", "float", "the weighted mean of the values that a query sees"}};
  if (!unsupported.lse) {
    outputs.push_back({"lse", "[B,H,Nq]", "float32",
                       "natural log of the sum of exp(score), sinks included; -inf: no key"});
  }
  return outputs;
}

Support SupportOf(const Unsupported& unsupported) {
  return {.causal = !unsupported.causal,
          .lengths = true,
          .cross = !unsupported.cross,
          .gqa = true,
          .lse = !unsupported.lse};
}

std::vector<OptionSpec<PatternOptions>> CommonOptions(const Unsupported& unsupported,
                                                      std::string causal, bool lists_keys) {
  using O = PatternOptions;
  if (causal.empty()) {
    causal = "query i sees keys j <= i";
    if (!unsupported.cross) causal = absl::StrCat("query i sees keys j <= p; ", kPositionHelp);
  }
  const auto usual_scale = [](const O&, int64_t D) {
    return 1 / std::sqrt(static_cast<double>(D));
  };
  std::vector<OptionSpec<O>> lines = {FloatOption("scale", &O::scale, {.min = -1e30, .max = 1e30},
                                                  "1/sqrt(D)", "multiplies q k^T", usual_scale)};
  if (!unsupported.causal) lines.push_back(BoolOption("causal", &O::causal, causal));
  lines.push_back(FloatOption("logit_softcap", &O::logit_softcap, {.min = 0, .max = 1e30},
                              "cap * tanh(score / cap), 0 is off"));
  if (!unsupported.alibi) {
    lines.push_back(BoolOption("alibi", &O::alibi,
                               "adds -slope_h |p - j| with the standard slopes; sending "
                               "alibi_slopes does so too"));
  }
  const auto duplicates = EnumOption("duplicates", &O::duplicates, {"set", "multiset"},
                                     "whether a key that is listed twice counts twice");
  const auto is_read = [](const O&) { return false; };
  lines.push_back(lists_keys ? duplicates : ReadIf("keys are listed", is_read, duplicates));
  return lines;
}

}  // namespace pattern_internal
}  // namespace attnd
