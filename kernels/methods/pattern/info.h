// What the methods of the pattern family declare: common options, tensors and support line, less
// what a method does not support, and its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/method/common_inputs.h"
#include "kernels/method/info.h"
#include "kernels/method/options.h"

namespace attnd {

// Whether a key that is listed twice counts once or twice.
enum class Duplicates : uint8_t { kSet, kMultiset };

// What help says of the position p of query i, around which keys are seen.
constexpr char kPositionHelp[] =
    "p = i + Nk - Nq, or i + causal_offset[b]; cache with padding: causal_offset = kv_lengths - Nq";

struct PatternOptions {
  std::optional<double> scale;  // unset: 1/sqrt(D)
  bool causal = false;
  double logit_softcap = 0;  // 0: off
  bool alibi = false;        // with the standard slopes unless alibi_slopes is sent
  Duplicates duplicates = Duplicates::kSet;
};

// The common options, tensors and outputs that a method does not support.
struct Unsupported {
  bool causal = false, alibi = false, sinks = false, lse = false;
  bool cross = false;   // Nq must be Nk; causal_offset is not taken
  bool packed = false;  // cu_seqlens_*
};

// What a method declares; the rest of its MethodInfo follows from `unsupported`.
template <class O>
struct PatternInfo {
  std::string id, summary, reference, cost;
  Unsupported unsupported = {};
  bool lists_keys = false;  // and may list one twice
  // Whether what a query sees follows from its position also without causal.
  std::function<bool(const O&)> has_windows = [](const O&) { return false; };
  // Its own, after the common ones; one of a common name takes the place of that one.
  std::vector<TensorInfo> inputs = {};
  std::vector<OptionSpec<O>> options = {};  // its own, before the common ones
  std::string causal = "";                  // help of that option where it differs from the usual
};

namespace pattern_internal {
std::vector<TensorInfo> AllInputs(const Unsupported& unsupported,
                                  const std::vector<TensorInfo>& own);
std::vector<TensorInfo> AllOutputs(const Unsupported& unsupported);
Support SupportOf(const Unsupported& unsupported);
std::vector<OptionSpec<PatternOptions>> CommonOptions(const Unsupported& unsupported,
                                                      std::string causal, bool lists_keys);
}  // namespace pattern_internal

}  // namespace attnd
