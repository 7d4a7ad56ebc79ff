#include "kernels/methods/memory/options.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/integer.h"
#include "kernels/method/common_inputs.h"
#include "kernels/method/drawn.h"
#include "kernels/method/shape_rules.h"
#include "kernels/methods/memory/relative.h"
#include "kernels/methods/pattern/rules.h"

namespace attnd {
namespace {

using O = MemoryOptions;

// -1 or at least 1. A refused value leaves the default.
OptionSpec<O> ClampOption() {
  OptionSpec<O> line = IntOption("clamp_len", &O::clamp_len, {.min = -1},
                                 "the largest distance with a row of its own; -1: no limit");
  line.info.range = "-1 or >= 1";
  line.set = [](const OptionValue& v, O* o, Reasons* r) {
    int64_t value = -1;
    options_internal::ReadInt("clamp_len", {}, v, &value, r);
    if (value >= 1 || value == -1) {
      o->clamp_len = value;
    } else {
      r->Invalid("clamp_len must be -1 or >= 1, got ", value);
    }
  };
  return line;
}

// `name` [B] of values 0..most, the rows of a memory.
void CheckRows(const ProblemShape& p, const std::string& name, absl::string_view letter,
               int64_t most, Reasons* reasons) {
  const View* view = p.Find(name);
  if (view->dtype != DType::kI32 || view->shape.rank != 1 || view->data == nullptr) return;
  for (int64_t b = 0; b < view->shape[0]; ++b) {
    const int64_t value = IntAt(*view, b);
    if (value >= 0 && value <= most) continue;
    reasons->Invalid(name, "[", b, "] must be in 0..", letter, " = 0..", most, ", got ", value);
    return;
  }
}

void CheckRelative(const ProblemShape& p, const O& o, Reasons* reasons) {
  const View *rel_k = p.Find("rel_k"), *w_r = p.Find("w_r");
  CheckApart(p, "w_r", "rel_k", reasons);
  if (rel_k != nullptr && rel_k->shape.rank == 3 && p.HasSizesOf("k")) {
    const int64_t least = DistancesOf(p, o);
    if (rel_k->shape[1] < least) {
      reasons->Invalid(
          "rel_k shape must have L >= ", o.clamp_len > 0 ? "min(M + N, clamp_len + 1)" : "M + N",
          " = ", least, ", got ", ToString(rel_k->shape));
    }
  }
  if (w_r != nullptr && w_r->shape.rank == 3 && (w_r->shape[2] < 2 || w_r->shape[2] % 2 != 0)) {
    reasons->Invalid("w_r shape must have an even Dp >= 2, got ", ToString(w_r->shape));
  }
  // Other sizes have their reasons.
  constexpr int64_t kMostFeatures = 4096;
  if (p.H < 1 || p.D < 1 || p.D > kMostFeatures) return;
  CheckDrawn(p, "u", RelativeDraw(o.seed, "u"), {p.H, p.D}, reasons);
  CheckDrawn(p, "v_bias", RelativeDraw(o.seed, "v_bias"), {p.H, p.D}, reasons);
  if (rel_k == nullptr) {
    CheckDrawn(p, "w_r", RelativeDraw(o.seed, "w_r"), {p.H, p.D, WaveSize(p)}, reasons);
  }
}

}  // namespace

std::vector<OptionSpec<O>> MemoryLines(const std::function<bool(const O&)>& keeps_nothing) {
  OptionSpec<O> return_memory =
      BoolOption("return_memory", &O::return_memory,
                 "also answer the memory for the next segment, and how long it is");
  return_memory.note = [=](const O& o, const ProblemShape&) -> std::string {
    return keeps_nothing(o) ? "answers a memory that keeps no rows, as mem_len is 0" : "";
  };
  return {
      ClampOption(),
      IntOption("same_length", &O::same_length, {.min = 0},
                "W: a query sees the W latest keys up to its own; 0: all"),
      std::move(return_memory),
      ReadIf(
          "a memory is sent",
          [](const O&, const ProblemShape& p) {
            return p.Find("mem_k") != nullptr || p.Find("cmem_k") != nullptr;
          },
          BoolOption("grad_memory", &O::grad_memory,
                     "a backward answers gradients of the memory; false: it is a constant")),
      ScaleOption(&O::scale, "multiplies both terms of the scores"),
      SeedOption(&O::seed),
  };
}

std::vector<TensorInfo> MemoryInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  for (TensorInfo& input : inputs) {
    if (input.name == "q_lengths") input.help += "; kv_lengths when absent";
  }
  inputs.push_back(
      Differentiable("u", "[H,D]", "added to q for the content term; drawn, N(0, 0.02^2)"));
  inputs.push_back(
      Differentiable("v_bias", "[H,D]", "added to q for the relative term; drawn, N(0, 0.02^2)"));
  inputs.push_back(Differentiable(
      "rel_k", "[H,L,D]", "r by distance, L >= M + N or clamp_len + 1; from w_r when absent"));
  inputs.push_back(Differentiable("w_r", "[H,D,Dp]",
                                  "r of distance d is w_r e(d), of Dp/2 sines and Dp/2 cosines; "
                                  "drawn, N(0, 0.02^2), Dp = H D, rounded up to even"));
  inputs.push_back(Differentiable("bias", "broadcastable to [B,H,Nq,K]",
                                  "added to the scores; K = M + N, memory first"));
  inputs.push_back(Differentiable("mem_k", "[B,Hkv,M,D]", "keys before the segment"));
  inputs.push_back(Differentiable("mem_v", "[B,Hkv,M,Dv]", "their values"));
  inputs.push_back({"mem_lengths", "[B]", "int32", "0..M: the oldest rows beyond do not count"});
  return inputs;
}

std::vector<TensorInfo> MemoryOutputs(absl::string_view prefix, absl::string_view rows) {
  const auto constant = [&](absl::string_view part, std::string shape, const char* dtype,
                            const char* help) {
    return TensorInfo{.name = absl::StrCat(prefix, part),
                      .shape = std::move(shape),
                      .dtype = dtype,
                      .help = help,
                      .is_constant = true};
  };
  return {constant("_k", absl::StrCat("[B,Hkv,", rows, ",D]"), "float",
                   "with return_memory: ends at the last row"),
          constant("_v", absl::StrCat("[B,Hkv,", rows, ",Dv]"), "float", "with return_memory"),
          constant("_lengths", "[B]", "int32", "with return_memory: the last rows that count")};
}

int64_t AllRows(const ProblemShape& problem) {
  return MemoryRows(problem, "cmem_k") + MemoryRows(problem, "mem_k") + problem.Nk;
}

int64_t DistancesOf(const ProblemShape& problem, const O& o) {
  const int64_t rows = std::max<int64_t>(AllRows(problem), 1);
  return o.clamp_len > 0 ? std::min(o.clamp_len, rows - 1) + 1 : rows;
}

int64_t WaveSize(const ProblemShape& problem) {
  const View* w_r = problem.Find("w_r");
  return w_r != nullptr && w_r->shape.rank == 3 ? w_r->shape[2] : RoundUp(problem.H * problem.D, 2);
}

void CheckMemoryOf(const ProblemShape& p, absl::string_view name, absl::string_view letter,
                   Reasons* reasons) {
  const std::string k = absl::StrCat(name, "_k"), v = absl::StrCat(name, "_v"),
                    lengths = absl::StrCat(name, "_lengths");
  CheckPair(p, k, v, reasons);
  if (p.Find(k) != nullptr) {
    CheckSize(p, v, absl::StrCat("[B,Hkv,", letter, ",Dv]"), {letter, MemoryRows(p, k)}, reasons);
  }
  if (p.Find(lengths) == nullptr) return;
  if (p.Find(k) == nullptr) {
    reasons->Invalid(lengths, " needs ", k, ", got none");
  } else {
    CheckRows(p, lengths, letter, MemoryRows(p, k), reasons);
  }
}

void CheckMemory(const ProblemShape& p, const O& o, const std::vector<TensorInfo>& inputs,
                 Reasons* reasons) {
  if (p.HasSizesOf("q") && p.HasSizesOf("k") && p.Nq != p.Nk) {
    reasons->Invalid("Nk must be Nq = ", p.Nq, ", got ", p.Nk);
  }
  CheckMemoryOf(p, "mem", "M", reasons);
  if (p.HasSizesOf("k")) CheckShapes(p, inputs, {{"K", AllRows(p), "M + N"}}, reasons);
  CheckRelative(p, o, reasons);
}

}  // namespace attnd
