// What a method is: a formula over Ops, with the table of its options and the list of its tensors.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/core/status.h"
#include "kernels/method/info.h"
#include "kernels/method/options.h"
#include "kernels/method/problem.h"
#include "kernels/ops/attend.h"
#include "kernels/ops/tensor.h"

namespace attnd {

class Ops;  // kernels/ops/ops.h

struct Inputs {
  Tensor q, k, v;
  // Every other tensor that was sent, by name. Those of int32 and uint8 are in host memory:
  // patterns are built from them; Ops::FromHost brings to the device what a primitive needs.
  std::map<std::string, Tensor> tensors;
  std::span<const ProblemShape> problems;
};

struct Outputs {
  Tensor out, lse;  // lse empty: the method has none
  std::map<std::string, Tensor> extra;
  // Of each problem, exact once data are there and the formula has run. Empty: as planned.
  std::vector<PairTotal> visible_pairs;
  // Differentiable inputs that the options make constants: a backward answers no gradient of them.
  std::set<std::string> constants = {};
};

// Stateless and thread safe; one object per method lives in the registry.
class Method {
 public:
  virtual ~Method() = default;
  virtual const MethodInfo& info() const = 0;
  // Defaults plus `sent`; reasons for unknown names, types and ranges.
  virtual OptionsHandle Parse(const OptionMap& sent, Reasons* reasons) const = 0;
  // The options that differ from their defaults, "causal=true,window=16": equal texts of equal D
  // mean equal options, whatever was spelled out.
  virtual std::string Describe(const void* options, int64_t D) const = 0;
  // Rules between options, shapes and tensors that the shared checks do not know. Called also when
  // those found reasons, so that a reply has all of them: sizes may be 0 or disagree.
  virtual void Check(const ProblemShape& problem, const void* options, Reasons* reasons) const = 0;
  // What is legal and seldom meant: "window_right has no effect unless granularity is token".
  virtual std::vector<std::string> Notes(const ProblemShape& problem,
                                         const void* options) const = 0;
  // Whether what a query sees follows from its position: causal, windows, strides, ALiBi.
  virtual bool SeesByPosition(const ProblemShape& problem, const void* options) const = 0;
  // Requests batch only if their branches are equal: what the formula decides by lengths.
  virtual std::string Branch(const ProblemShape& problem, const void* options) const = 0;
  virtual Outputs Run(Ops& ops, const Inputs& in, const void* options) const = 0;
};

// Base of every method: gives the option struct its type.
template <class O>
class MethodOf : public Method {
 public:
  MethodOf(MethodInfo info, std::vector<OptionSpec<O>> options);

  const MethodInfo& info() const final { return info_; }
  OptionsHandle Parse(const OptionMap& sent, Reasons* reasons) const final;
  std::string Describe(const void* options, int64_t D) const final;
  void Check(const ProblemShape& problem, const void* options, Reasons* reasons) const final {
    CheckProblem(problem, *static_cast<const O*>(options), reasons);
  }
  std::vector<std::string> Notes(const ProblemShape& problem, const void* options) const final;
  bool SeesByPosition(const ProblemShape& problem, const void* options) const final {
    return FollowsPositions(problem, *static_cast<const O*>(options));
  }
  std::string Branch(const ProblemShape& problem, const void* options) const final {
    return BranchOf(problem, *static_cast<const O*>(options));
  }
  Outputs Run(Ops& ops, const Inputs& in, const void* options) const final {
    return Formula(ops, in, *static_cast<const O*>(options));
  }

 protected:
  virtual void CheckProblem(const ProblemShape&, const O&, Reasons*) const {}
  virtual std::string BranchOf(const ProblemShape&, const O&) const { return ""; }
  // Of a method whose options are named otherwise, or that has windows: its own answer.
  virtual bool FollowsPositions(const ProblemShape&, const O& o) const {
    if constexpr (requires { o.causal; }) return o.causal;
    return false;
  }
  virtual Outputs Formula(Ops& ops, const Inputs& in, const O& o) const = 0;

 private:
  // The options but for the i-th, which is unset.
  O Without(size_t i, const O& options) const;
  // Whether the i-th option stands for `value` where it is unset.
  bool IsUsual(size_t i, const OptionValue& value, const O& options, int64_t D) const;
  bool IsAcceptedWithout(size_t i, const ProblemShape& problem, const O& options) const;

  MethodInfo info_;
  std::vector<OptionSpec<O>> options_;
  std::vector<std::optional<OptionValue>> defaults_;  // of each option
};

template <class O>
MethodOf<O>::MethodOf(MethodInfo info, std::vector<OptionSpec<O>> options)
    : info_(std::move(info)), options_(std::move(options)) {
  for (const OptionSpec<O>& spec : options_) {
    info_.options.push_back(spec.info);
    defaults_.push_back(spec.get(O{}));
  }
}

template <class O>
OptionsHandle MethodOf<O>::Parse(const OptionMap& sent, Reasons* reasons) const {
  auto parsed = std::make_shared<O>();
  for (const auto& [name, value] : sent) {
    const OptionSpec<O>* found = nullptr;
    for (const OptionSpec<O>& spec : options_) {
      if (spec.info.name == name) found = &spec;
    }
    if (found == nullptr) {
      reasons->Invalid(name, " is not an option of this method, got ", Shown(value));
    } else {
      found->set(value, parsed.get(), reasons);
    }
  }
  return parsed;
}

template <class O>
O MethodOf<O>::Without(size_t i, const O& options) const {
  O without;
  Reasons reasons(info_.id);  // none: each value was taken before
  for (size_t other = 0; other < options_.size(); ++other) {
    const std::optional<OptionValue> value = options_[other].get(options);
    if (other == i || value == defaults_[other]) continue;
    options_[other].set(value.value(), &without, &reasons);
  }
  return without;
}

template <class O>
bool MethodOf<O>::IsUsual(size_t i, const OptionValue& value, const O& options, int64_t D) const {
  return options_[i].derived && value == options_[i].derived(Without(i, options), D);
}

template <class O>
std::string MethodOf<O>::Describe(const void* options, int64_t D) const {
  const O& parsed = *static_cast<const O*>(options);
  std::string text;
  for (size_t i = 0; i < options_.size(); ++i) {
    const std::optional<OptionValue> value = options_[i].get(parsed);
    if (!value.has_value() || value == defaults_[i]) continue;
    if (IsUsual(i, *value, parsed, D)) continue;
    absl::StrAppend(&text, text.empty() ? "" : ",", options_[i].info.name, "=", BucketText(*value));
  }
  return text;
}

template <class O>
std::vector<std::string> MethodOf<O>::Notes(const ProblemShape& problem,
                                            const void* options) const {
  const O& parsed = *static_cast<const O*>(options);
  std::vector<std::string> notes;
  for (size_t i = 0; i < options_.size(); ++i) {
    const OptionSpec<O>& option = options_[i];
    const std::optional<OptionValue> value = option.get(parsed);
    if (option.note == nullptr || !value.has_value() || value == defaults_[i]) continue;
    if (IsUsual(i, *value, parsed, problem.D)) continue;
    const std::string note = option.note(parsed, problem);
    // A value that another rule asks for is meant, although results do not depend on it.
    if (note.empty() || !IsAcceptedWithout(i, problem, parsed)) continue;
    notes.push_back(absl::StrCat(option.info.name, " ", note));
  }
  return notes;
}

template <class O>
bool MethodOf<O>::IsAcceptedWithout(size_t i, const ProblemShape& problem, const O& options) const {
  Reasons reasons(info_.id);
  CheckProblem(problem, Without(i, options), &reasons);
  return reasons.empty();
}

// Every file kernels/methods/<id>.cc ends with ATTND_METHOD(<id>, Class): the generated registry
// calls New_<id>().
#define ATTND_METHOD(id, Class) \
  std::unique_ptr<Method> New_##id() { return std::make_unique<Class>(); }

}  // namespace attnd
