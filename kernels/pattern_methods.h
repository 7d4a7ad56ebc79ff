// What the methods of the pattern family share: common options, common tensors, rows of patterns.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/method.h"

namespace attnd {

// A key that is listed twice counts once, or twice.
enum class Duplicates : uint8_t { kSet, kMultiset };

struct PatternOptions {
  std::optional<double> scale;  // unset: 1/sqrt(D)
  bool causal = false;
  Duplicates duplicates = Duplicates::kSet;
};

// The lines of `O`, which derives from PatternOptions, after those of the method itself.
template <class O>
std::vector<OptionSpec<O>> WithPatternOptions(std::vector<OptionSpec<O>> lines) {
  lines.push_back(FloatOption<O, std::optional<double>>("scale", &O::scale, {}, "1/sqrt(D)",
                                                        "multiplies q k^T"));
  lines.push_back(BoolOption<O>("causal", &O::causal, "false",
                                "query i sees keys j <= i + Nk - Nq, or i + causal_offset[b]"));
  lines.push_back(UnservedOption<O>("logit_softcap", OptionType::kFloat, 0.0,
                                    "cap * tanh(score / cap), 0 is off"));
  lines.push_back(UnservedOption<O>("alibi", OptionType::kBool, false, "adds -slope_h |p - j|"));
  lines.push_back(EnumOption<O, Duplicates>("duplicates", &O::duplicates, {"set", "multiset"},
                                            "set",
                                            "whether a key that is listed twice counts twice; no "
                                            "effect where nothing is listed"));
  return lines;
}

// q, k, v and the common tensors of the family; out and lse.
std::vector<TensorInfo> PatternInputs();
std::vector<TensorInfo> PatternOutputs();
// causal, lengths, Nq != Nk, GQA, lse, backward.
Support PatternSupport();

// What batch row b of a problem sees: `offset` is its causal offset, p = i + offset.
using SourceOf = std::function<PatternSource(const ProblemShape& problem, int64_t offset,
                                             const Lengths& lengths)>;

// softmax attention over the rows that `source_of` gives.
Outputs PatternAttend(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const SourceOf& source_of);

}  // namespace attnd
