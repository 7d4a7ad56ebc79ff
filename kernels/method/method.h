// What a method is: a formula over Ops, with the table of its options and the list of its tensors.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/core/status.h"
#include "kernels/method/options.h"
#include "kernels/ops/ops.h"

namespace attnd {

enum class Direction : uint8_t { kForward, kBackward };

// "forward", "backward": the metric label.
absl::string_view Name(Direction direction);

// A tensor that a method takes or gives, for people and for the checks that all methods share.
struct TensorInfo {
  std::string name;   // spec name: "q", "kv_lengths", "bias"
  std::string shape;  // "[B,H,Nq,D]": declared_shape.h
  std::string dtype;  // "float" (that of q; but for q, k, v also float32), "int32", "float32"
  std::string help;
  bool required = false;
  bool differentiable = false;
  bool served = true;  // false: specified, refused by name in this version
};

// Columns of the table in kernels/README.md and of `attn methods`.
struct Support {
  bool causal = false, lengths = false, cross = false /* Nq != Nk */, gqa = false, lse = false;
  bool backward = true;
};

struct MethodInfo {
  std::string id, summary, reference;  // reference: paper and equation
  std::string cost;                    // formula, e.g. "2 (D + Dv) FLOPs per visible pair"
  std::vector<OptionInfo> options;
  std::vector<TensorInfo> inputs, outputs;
  Support support;
};

// Element i of an int32 tensor of rank 1 with data.
int64_t IntAt(const View& view, int64_t i);

// The problem of one request as a method's Check sees it. Views of integer tensors of rank 1
// (lengths, offsets, cu_seqlens) have data; all others may have none (a plan reads shapes only).
struct ProblemShape {
  int64_t B = 0, H = 0, Hkv = 0, Nq = 0, Nk = 0, D = 0, Dv = 0;
  const std::map<std::string, View>* tensors = nullptr;

  const View* Find(absl::string_view name) const;
  // Whether q, k or v tells its sizes: sent, with four dimensions.
  bool Knows(absl::string_view name) const;
  // Element b of an int32 [B] tensor, or `absent`.
  int64_t Int(absl::string_view name, int64_t b, int64_t absent) const;
};

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
};

// Parsed options of one request; what they are only the method knows.
using OptionsHandle = std::shared_ptr<const void>;

// Stateless and thread safe; one object per method lives in the registry.
class Method {
 public:
  virtual ~Method() = default;
  virtual const MethodInfo& info() const = 0;
  // Defaults plus `sent`; reasons for unknown names, types and ranges.
  virtual OptionsHandle Parse(const OptionMap& sent, Reasons* reasons) const = 0;
  // The options that differ from their defaults, "causal=true,window=16": equal texts mean equal
  // options, whatever was spelled out.
  virtual std::string Describe(const void* options) const = 0;
  // Rules between options, shapes and tensors that the shared checks do not know. Called also when
  // those found reasons, so that all are told at once: sizes may be 0 or disagree.
  virtual void Check(const ProblemShape& problem, const void* options, Reasons* reasons) const = 0;
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
  std::string Describe(const void* options) const final;
  void Check(const ProblemShape& problem, const void* options, Reasons* reasons) const final {
    CheckProblem(problem, *static_cast<const O*>(options), reasons);
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
  virtual Outputs Formula(Ops& ops, const Inputs& in, const O& o) const = 0;

 private:
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
std::string MethodOf<O>::Describe(const void* options) const {
  std::string text;
  for (size_t i = 0; i < options_.size(); ++i) {
    const std::optional<OptionValue> value = options_[i].get(*static_cast<const O*>(options));
    if (!value.has_value() || value == defaults_[i]) continue;
    absl::StrAppend(&text, text.empty() ? "" : ",", options_[i].info.name, "=", BucketText(*value));
  }
  return text;
}

// Every file kernels/methods/<id>.cc ends with ATTND_METHOD(<id>, Class): the generated registry
// calls New_<id>().
#define ATTND_METHOD(id, Class) \
  std::unique_ptr<Method> New_##id() { return std::make_unique<Class>(); }

}  // namespace attnd
