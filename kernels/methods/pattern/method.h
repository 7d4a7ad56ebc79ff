// Base of the methods of the pattern family: attention over the keys that a pattern shows.
#pragma once

#include <vector>

#include "kernels/method/method.h"
#include "kernels/methods/pattern/attend.h"
#include "kernels/methods/pattern/data.h"
#include "kernels/methods/pattern/heads.h"
#include "kernels/methods/pattern/info.h"
#include "kernels/methods/pattern/packed.h"
#include "kernels/methods/pattern/rules.h"

namespace attnd {

// A method says what one sequence sees (Sees). The base adds common tensors, options and rules,
// packed sequences, batching and dry runs. O derives from PatternOptions.
template <class O>
class PatternMethod : public MethodOf<O> {
 public:
  explicit PatternMethod(const PatternInfo<O>& info)
      : MethodOf<O>({.id = info.id,
                     .summary = info.summary,
                     .reference = info.reference,
                     .cost = info.cost,
                     .inputs = pattern_internal::AllInputs(info.unsupported, info.inputs),
                     .outputs = pattern_internal::AllOutputs(info.unsupported),
                     .support = pattern_internal::SupportOf(info.unsupported)},
                    AllOptions(info)),
        unsupported_(info.unsupported),
        own_inputs_(info.inputs),
        has_windows_(info.has_windows) {}

 protected:
  // What one sequence sees: by options, by sizes and by `ints`, the index tensors and masks that
  // the method declares. In the constant time of a plan, whose index tensors have no values.
  virtual HeadParts Sees(const SeenSeq& seq, const O& o, const Integers& ints) const = 0;

  // --- optional

  // The rules that the method adds to those of the common tensors.
  virtual void CheckOwn(const ProblemShape&, const O&, Reasons*) const {}
  // Fails `ops` where values of `ints` break a rule. Sees is not called then.
  virtual void CheckIntegers(Ops&, const Inputs&, const O&, const Integers&) const {}
  // Weighting, tables and the like. `seqs_differ` follows from the integers.
  virtual PatternExtras Extras(Ops&, const Inputs&, const O&) const { return {}; }
  // For a method that combines several calls of attend. `in` is not packed.
  virtual Outputs Attend(Ops& ops, const Inputs& in, const O& o, const Integers& ints,
                         const PatternExtras& extras) const {
    return PatternAttend(
        ops, in, o, [&](const SeenSeq& seq) { return Sees(seq, o, ints); }, extras);
  }

 private:
  static std::vector<OptionSpec<O>> AllOptions(const PatternInfo<O>& info) {
    std::vector<OptionSpec<O>> lines = info.options;
    for (auto& line :
         pattern_internal::CommonOptions(info.unsupported, info.causal, info.lists_keys)) {
      lines.push_back({line.info, line.set, line.get, line.derived, line.note});
    }
    return lines;
  }

  void CheckProblem(const ProblemShape& problem, const O& o, Reasons* reasons) const final {
    CheckPatternTensors(problem, unsupported_, reasons);
    CheckOwn(problem, o, reasons);
  }
  bool FollowsPositions(const ProblemShape& problem, const O& o) const final {
    // A single query sees every valid key at the offset of the padded cache, too.
    const bool hides = o.causal && problem.Nq > 1;
    return hides || o.alibi || problem.Find("alibi_slopes") != nullptr || has_windows_(o);
  }
  Outputs Formula(Ops& ops, const Inputs& in, const O& o) const final {
    return ForSequences(ops, in, this->info().inputs, [&](const Inputs& sequences) {
      const Integers ints(ops, sequences, own_inputs_);
      CheckIntegers(ops, sequences, o, ints);
      PatternExtras extras = Extras(ops, sequences, o);
      for (size_t p = 0; p < sequences.problems.size(); ++p) {
        extras.seqs_differ.push_back(ints.differ(p));
      }
      return Attend(ops, sequences, o, ints, extras);
    });
  }

  const Unsupported unsupported_;
  const std::vector<TensorInfo> own_inputs_;
  const std::function<bool(const O&)> has_windows_;
};

}  // namespace attnd
