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
  double logit_softcap = 0;  // 0: off
  bool alibi = false;        // with the standard slopes unless alibi_slopes is sent
  Duplicates duplicates = Duplicates::kSet;
};

// The lines of `O`, which derives from PatternOptions, after those of the method itself.
template <class O>
std::vector<OptionSpec<O>> WithPatternOptions(std::vector<OptionSpec<O>> lines) {
  lines.push_back(FloatOption<O, std::optional<double>>(
      "scale", &O::scale, {.min = -1e30, .max = 1e30}, "1/sqrt(D)", "multiplies q k^T"));
  lines.push_back(BoolOption<O>("causal", &O::causal, "false",
                                "query i sees keys j <= i + Nk - Nq, or i + causal_offset[b]"));
  lines.push_back(FloatOption<O, double>("logit_softcap", &O::logit_softcap,
                                         {.min = 0, .max = 1e30}, "0",
                                         "cap * tanh(score / cap), 0 is off"));
  lines.push_back(BoolOption<O>("alibi", &O::alibi, "false",
                                "adds -slope_h |p - j| with the standard slopes; sending "
                                "alibi_slopes does so too"));
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

// Rules of the common tensors that shapes do not tell: what goes together, values of cu_seqlens.
void CheckPatternTensors(const ProblemShape& problem, Reasons* reasons);

// What batch row b of a problem sees: `offset` is its causal offset, p = i + offset.
using SourceOfRow = std::function<PatternSource(const ProblemShape& problem, int64_t offset,
                                                const Lengths& lengths)>;

// Softmax attention over the rows that `source_of` gives, with every common tensor and option.
// Packed sequences become problems of their own, of which `source_of` is asked one by one; segment
// ids hide pairs of what it gives.
Outputs PatternAttend(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const SourceOfRow& source_of);

// Slopes of ALiBi for H heads (Press et al. 2022): with c = 2^floor(log2 H) 2^(-8 (h + 1) / c) for
// h < c, else 2^(-4 (2 (h - c) + 1) / c).
std::vector<float> StandardSlopes(int64_t H);

// The same with leading dimensions of 1 up to `rank`. REQUIRES: no more dimensions than that.
Tensor WithRank(Ops& ops, const Tensor& x, int rank);

// --- packed sequences: pattern_packed.cc ---------------------------------------------------------
// Inputs whose problems are the packed sequences of `in`, and the way back.
struct Packed {
  Inputs in;
  std::vector<ProblemShape> shapes;  // what in.problems points to
  RowCuts queries;
};
bool IsPacked(const Inputs& in);
Packed Unpack(Ops& ops, const Inputs& in);
// out and lse of all sequences as those of `in`.
AttendOut Repack(Ops& ops, const Packed& packed, const Inputs& in, const AttendOut& out);

}  // namespace attnd
