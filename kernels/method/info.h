// What a method says of itself: its options, its tensors, what it supports.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/method/options.h"

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
  bool served = true;        // false: specified, refused by name in this version
  bool is_constant = false;  // an output that no gradient comes in for, such as a memory
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
  // Without a q, the first of these that is sent gives H by its first dimension; none: H = Hkv.
  std::vector<std::string> tensors_with_heads = {};
};

}  // namespace attnd
