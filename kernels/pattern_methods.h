// What the methods of the pattern family share: common options, common tensors, rows of patterns.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/method.h"
#include "kernels/ops/pattern_parts.h"
#include "kernels/pattern_data.h"

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

// What a method leaves out of what is common, in options, tensors and support line.
struct Lacks {
  bool causal = false, alibi = false, sinks = false, lse = false;
  bool cross = false;   // Nq must be Nk; causal_offset is not taken
  bool packed = false;  // cu_seqlens_*
};

// The lines of `O`, which derives from PatternOptions, after those of the method itself. `causal`:
// what that option does, if not what it usually does.
template <class O>
std::vector<OptionSpec<O>> WithPatternOptions(std::vector<OptionSpec<O>> lines, Lacks lacks = {},
                                              std::string causal = "") {
  if (causal.empty()) {
    causal = lacks.cross ? "query i sees keys j <= i"
                         : "query i sees keys j <= i + Nk - Nq, or i + causal_offset[b]";
  }
  lines.push_back(FloatOption<O, std::optional<double>>(
      "scale", &O::scale, {.min = -1e30, .max = 1e30}, "1/sqrt(D)", "multiplies q k^T"));
  if (!lacks.causal) {
    lines.push_back(BoolOption<O>("causal", &O::causal, "false", causal));
  }
  lines.push_back(FloatOption<O, double>("logit_softcap", &O::logit_softcap,
                                         {.min = 0, .max = 1e30}, "0",
                                         "cap * tanh(score / cap), 0 is off"));
  if (!lacks.alibi) {
    lines.push_back(BoolOption<O>("alibi", &O::alibi, "false",
                                  "adds -slope_h |p - j| with the standard slopes; sending "
                                  "alibi_slopes does so too"));
  }
  lines.push_back(EnumOption<O, Duplicates>("duplicates", &O::duplicates, {"set", "multiset"},
                                            "set",
                                            "whether a key that is listed twice counts twice; no "
                                            "effect where nothing is listed"));
  return lines;
}

// q, k, v and the common tensors of the family, then the method's `own`; out and lse.
std::vector<TensorInfo> PatternInputs(Lacks lacks = {}, std::vector<TensorInfo> own = {});
std::vector<TensorInfo> PatternOutputs(Lacks lacks = {});
// causal, lengths, Nq != Nk, GQA, lse, backward.
Support PatternSupport(Lacks lacks = {});

// --- rules ---------------------------------------------------------------------------------------
// Those of the common tensors that shapes do not tell: what goes together, values of cu_seqlens.
void CheckPatternTensors(const ProblemShape& problem, Lacks lacks, Reasons* reasons);
inline void CheckPatternTensors(const ProblemShape& problem, Reasons* reasons) {
  CheckPatternTensors(problem, {}, reasons);
}
// Size `axis` (negative: from the end) of a tensor, if it is there and has this axis: "rel_emb_long
// shape must be [V,H,D] with V = relative_vocab_size = 32, got [8,4,3]". False: it was told.
struct SizeRule {
  absl::string_view shape;  // "[V,H,D]"
  int axis = 0;
  absl::string_view letter;  // "V = relative_vocab_size"
  int64_t size = 0;
};
bool CheckSize(const ProblemShape& problem, absl::string_view name, const SizeRule& rule,
               Reasons* reasons);
constexpr size_t kMostExtents = 8;  // of a grid
// A row-major grid whose cells are the tokens: "grid must multiply to N = 6, got [2,4]".
void CheckGrid(const ProblemShape& problem, const std::vector<int64_t>& grid, Reasons* reasons);
// Both or none.
void CheckPair(const ProblemShape& problem, absl::string_view a, absl::string_view b,
               Reasons* reasons);

// --- rows ----------------------------------------------------------------------------------------
// One batch row of one problem; packed sequences are problems of their own.
struct SeenRow : PatternRow {
  const ProblemShape& problem;
  size_t p = 0;  // place of the problem in the list
  int64_t b = 0;
  bool is_planned = false;                // on a dry stream: no index tensor has values
  std::span<const int32_t> ids_q, ids_k;  // segment ids, for sources that have no plan
};
// Disjoint parts of what each query head sees; one entry: all heads see the same. As many parts for
// each head.
using HeadParts = std::vector<PatternParts>;
using PartsOfRow = std::function<HeadParts(const SeenRow& row)>;
// Every head sees the same.
inline HeadParts AllHeads(PatternSource source) { return {{std::move(source)}}; }

// What a method adds to the common core.
struct PatternExtras {
  Weighting weighting = Weighting::kSoftmax;
  Tensor row_weight, table;    // as in AttendTensors
  bool cap_table = true;       // as in AttendParams
  double alibi_unit = 1;       // positions that count as a distance of 1
  bool rows_differ = false;    // batch rows of equal lengths may see different keys
  std::optional<DType> dtype;  // of out; absent: that of q
};

// Attention over what `parts_of` shows, with every common tensor and option of `in`, which is not
// packed; segment ids hide pairs of it.
Outputs PatternAttend(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const PartsOfRow& parts_of, const PatternExtras& extras = {});

// Merges results whose query rows are disjoint: a row of one sees nothing in the other. Sinks
// belong to one of them.
Outputs MergeRows(Ops& ops, const Outputs& a, const Outputs& b, DType dtype);

// Runs `formula` on `in`, or on its packed sequences as problems of their own: what `inputs` says
// of a tensor's shape tells which axes are cut. So positions, offsets and draws are local without a
// word about it in any method, and equal lengths share their cached pattern.
using PatternFormula = std::function<Outputs(const Inputs& in)>;
Outputs ForSequences(Ops& ops, const Inputs& in, std::span<const TensorInfo> inputs,
                     const PatternFormula& formula);

// q, float32, with zeros in rows that no key may see: beyond q_lengths or of a negative segment.
// They may hold NaN, which a product over rows must not meet.
Tensor ValidQueries(Ops& ops, const Inputs& in);

// Slopes of ALiBi for H heads (Press et al. 2022): with c = 2^floor(log2 H) 2^(-8 (h + 1) / c) for
// h < c, else 2^(-4 (2 (h - c) + 1) / c).
std::vector<float> StandardSlopes(int64_t H);

// The same with leading dimensions of 1 up to `rank`. REQUIRES: no more dimensions than that.
Tensor WithRank(Ops& ops, const Tensor& x, int rank);

}  // namespace attnd
