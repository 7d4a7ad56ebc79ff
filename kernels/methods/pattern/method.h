// What the methods of the pattern family share: common options and tensors, rows of patterns, and
// the base class that brings them together. Rules are in pattern_check.h.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/method/method.h"
#include "kernels/methods/pattern/data.h"
#include "kernels/methods/pattern/rules.h"
#include "kernels/pattern/shapes/seq.h"

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
struct Unsupported {
  bool causal = false, alibi = false, sinks = false, lse = false;
  bool cross = false;   // Nq must be Nk; causal_offset is not taken
  bool packed = false;  // cu_seqlens_*
};

// --- rows ----------------------------------------------------------------------------------------
// One batch row of one problem; packed sequences are problems of their own.
struct SeenSeq : PatternSeq {
  const ProblemShape& problem;
  size_t p = 0;  // place of the problem in the list
  int64_t b = 0;
  bool is_planned = false;                // on a dry stream: no index tensor has values
  int64_t most_sources = INT64_MAX;       // of heads; a plan tells of more by their mean, about
  std::span<const int32_t> ids_q, ids_k;  // segment ids, for sources without a spec
};
// Disjoint parts of what each query head sees; one entry: all heads see the same. As many parts for
// each head.
using HeadParts = std::vector<PatternParts>;
using PartsOfSeq = std::function<HeadParts(const SeenSeq& row)>;
// Every head sees the same.
inline HeadParts AllHeads(PatternSource source) { return {{std::move(source)}}; }
// Of a plan: one that stands for those of `heads` heads, each of which has its own when it runs.
inline PatternSource OfHeads(PatternSource source, int64_t heads) {
  source.host.bytes *= heads;
  source.host.seconds *= static_cast<double>(heads);
  return source;
}

// What a method adds to the common core.
struct PatternExtras {
  Weighting weighting = Weighting::kSoftmax;
  Tensor row_weight, table;    // as in AttendTensors
  bool cap_table = true;       // as in AttendParams
  double alibi_unit = 1;       // positions that count as a distance of 1
  bool seqs_differ = false;    // batch rows of equal lengths may see different keys
  std::optional<DType> dtype;  // of out; absent: that of q
};

// Attention over what `parts_of` shows, with every common tensor and option of `in`, which is not
// packed; segment ids hide pairs of it.
Outputs PatternAttend(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const PartsOfSeq& parts_of, const PatternExtras& extras = {});

// Two kinds of rows: a row of one kind sees nothing in the parts of the other. Local rows read q, k
// and v, global ones q_global, k_global and v_global where these were sent.
Outputs AttendLocalAndGlobal(Ops& ops, const Inputs& in, const PatternOptions& options,
                             const PartsOfSeq& local, const PartsOfSeq& global,
                             PatternExtras extras = {});

// Adds the visible pairs of a call of PatternAttend to those of others.
void AddPairs(const Outputs& more, Outputs* sum);

// Runs `formula` on `in`, or on its packed sequences as problems of their own: what `inputs` says
// of a tensor's shape tells which axes are cut. So positions, offsets and draws are local without a
// word about it in any method, and equal lengths share their cached pattern.
using PatternFormula = std::function<Outputs(const Inputs& in)>;
Outputs ForSequences(Ops& ops, const Inputs& in, std::span<const TensorInfo> inputs,
                     const PatternFormula& formula);

// One that was sent, or an empty one.
Tensor Sent(const Inputs& in, const std::string& name);

// q, float32, with zeros in rows that no key may see: beyond q_lengths or of a negative segment.
// They may hold NaN, which a product over rows must not meet.
Tensor ValidQueries(Ops& ops, const Inputs& in);

// What every label adds to the scores of a row, for PatternExtras::table: q E^T + beta,
// [B,H,rows,V] of q [B,H,rows,D], E [V,H,D] and beta [V,H], each 0 where it is empty (Shaw et al.
// 2018, eq. 3-5).
Tensor LabelScores(Ops& ops, const Tensor& q, const Tensor& E, const Tensor& beta, int64_t V);

// Slopes of ALiBi for H heads (Press et al. 2022): with c = 2^floor(log2 H) 2^(-8 (h + 1) / c) for
// h < c, else 2^(-4 (2 (h - c) + 1) / c).
std::vector<float> StandardSlopes(int64_t H);

// The same with leading dimensions of 1 up to `rank`. REQUIRES: no more dimensions than that.
Tensor WithRank(Ops& ops, const Tensor& x, int rank);

// --- methods -------------------------------------------------------------------------------------
// What a method of the family tells of itself; the rest of its MethodInfo follows from
// `unsupported`.
template <class O>
struct PatternInfo {
  std::string id, summary, reference, cost;
  Unsupported unsupported = {};
  // Its own, after the common ones; one of a common name takes its place.
  std::vector<TensorInfo> inputs = {};
  std::vector<OptionSpec<O>> options = {};  // its own, before the common ones
  std::string causal = "";                  // what that option does, if not what it usually does
};

// A float tensor that has a gradient.
TensorInfo Differentiable(std::string name, std::string shape, std::string help);

namespace pattern_internal {
std::vector<TensorInfo> CommonInputs(const Unsupported& unsupported,
                                     const std::vector<TensorInfo>& own);
std::vector<TensorInfo> CommonOutputs(const Unsupported& unsupported);
Support CommonSupport(const Unsupported& unsupported);
std::vector<OptionSpec<PatternOptions>> CommonOptions(const Unsupported& unsupported,
                                                      std::string causal);
}  // namespace pattern_internal

// Base of the family's methods: common tensors, options and rules, packed sequences. O derives from
// PatternOptions.
template <class O>
class PatternMethod : public MethodOf<O> {
 public:
  explicit PatternMethod(const PatternInfo<O>& info)
      : MethodOf<O>({.id = info.id,
                     .summary = info.summary,
                     .reference = info.reference,
                     .cost = info.cost,
                     .inputs = pattern_internal::CommonInputs(info.unsupported, info.inputs),
                     .outputs = pattern_internal::CommonOutputs(info.unsupported),
                     .support = pattern_internal::CommonSupport(info.unsupported)},
                    AllOptions(info)),
        unsupported_(info.unsupported) {}

 protected:
  // The rules that the method adds to those of the common tensors.
  virtual void CheckOwn(const ProblemShape&, const O&, Reasons*) const {}
  // Of problems that are not packed: packed sequences come as problems of their own.
  virtual Outputs Attend(Ops& ops, const Inputs& in, const O& o) const = 0;

 private:
  static std::vector<OptionSpec<O>> AllOptions(const PatternInfo<O>& info) {
    std::vector<OptionSpec<O>> lines = info.options;
    for (auto& line : pattern_internal::CommonOptions(info.unsupported, info.causal)) {
      lines.push_back({line.info, line.set, line.get});
    }
    return lines;
  }

  void CheckProblem(const ProblemShape& problem, const O& o, Reasons* reasons) const final {
    CheckPatternTensors(problem, unsupported_, reasons);
    CheckOwn(problem, o, reasons);
  }
  Outputs Formula(Ops& ops, const Inputs& in, const O& o) const final {
    return ForSequences(ops, in, this->info().inputs,
                        [&](const Inputs& sequences) { return Attend(ops, sequences, o); });
  }

  const Unsupported unsupported_;
};

}  // namespace attnd
