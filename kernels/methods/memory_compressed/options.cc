#include "kernels/methods/memory_compressed/options.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/integer.h"
#include "kernels/method/common_inputs.h"
#include "kernels/method/drawn.h"
#include "kernels/method/shape_rules.h"

namespace attnd {
namespace {

constexpr int64_t kFactor = 3, kMostFactor = int64_t{1} << 30;
constexpr char kBiasShape[] = "broadcastable to [B,H,Nq,C]";

// The first weight that was sent, and its f.
std::pair<const char*, int64_t> SentFactor(const ProblemShape& p) {
  for (const char* name : {kConvOfKeys.weight, kConvOfValues.weight}) {
    const View* view = p.Find(name);
    if (view != nullptr && view->shape.rank == 4) return {name, view->shape[3]};
  }
  return {nullptr, 0};
}

void CheckUnread(const ProblemShape& p, const MemoryCompressedOptions& o, Reasons* reasons) {
  const auto only = [&](const char* name, bool holds, const char* rule, const std::string& got) {
    if (p.Find(name) != nullptr && !holds) reasons->Invalid(name, " needs ", rule, ", got ", got);
  };
  for (const ConvNames& of : {kConvOfKeys, kConvOfValues}) {
    for (const char* name : {of.weight, of.bias, of.null}) {
      only(name, !o.IsLocal(), "layer memory", "local");
    }
    const bool is_first = o.first_key;
    only(of.null, o.IsLocal() || o.HasNull(), "null without first_key",
         absl::StrCat("null = ", o.null ? "true" : "false",
                      ", first_key = ", is_first ? "true" : "false"));
  }
  for (const char* name : {kConvOfValues.weight, kConvOfValues.bias}) {
    only(name, o.IsLocal() || !o.share_conv, "share_conv = false", "true");
  }
}

void CheckConvolution(const ProblemShape& p, const MemoryCompressedOptions& o, int64_t f,
                      Reasons* reasons) {
  const auto [first, sent] = SentFactor(p);
  if (first != nullptr && (sent < 1 || sent > kMostFactor)) {
    reasons->Invalid(first, " shape must have f in 1..", kMostFactor, ", got ",
                     ToString(p.Find(first)->shape));
  } else if (first != nullptr) {
    CheckSameSize("factor", o.factor, first, f, reasons);
    CheckShape(p, kConvOfValues.weight, kConvOfValues.weight_shape, {{"f", f}}, reasons);
  }
  CheckDrawn(p, kConvOfKeys.weight, UniformDraw(0, "", 1), {p.Hkv, p.D, p.D, f}, reasons);
  CheckDrawn(p, kConvOfKeys.bias, UniformDraw(0, "", 1), {p.Hkv, p.D}, reasons);
  const bool is_known = p.HasSizesOf("k") && p.HasSizesOf("v");
  if (!o.share_conv) {
    CheckDrawn(p, kConvOfValues.weight, UniformDraw(0, "", 1), {p.Hkv, p.Dv, p.Dv, f}, reasons);
    CheckDrawn(p, kConvOfValues.bias, UniformDraw(0, "", 1), {p.Hkv, p.Dv}, reasons);
  } else if (is_known && p.D != p.Dv) {
    reasons->Invalid("Dv must be D = ", p.D, " with share_conv, got ", p.Dv);
  }
}

}  // namespace

std::vector<OptionSpec<MemoryCompressedOptions>> MemoryCompressedLines() {
  using O = MemoryCompressedOptions;
  return {
      EnumOption("layer", &O::layer, {"memory", "local"},
                 "attention to cells, or to the keys of the same block"),
      ReadIf(
          "layer is memory", [](const O& o) { return !o.IsLocal(); },
          IntOption("factor", &O::factor, {.min = 1, .max = kMostFactor}, kFactor,
                    "f, rows of a cell; where conv_wk or conv_wv is sent, theirs")),
      ReadIf(
          "layer is local", [](const O& o) { return o.IsLocal(); },
          IntOption("block", &O::block, {.min = 1}, "keys of a block")),
      ReadIf(
          "layer is memory", [](const O& o) { return !o.IsLocal(); },
          EnumOption(
              "pad", &O::pad, {"left", "right", "drop"},
              "zero rows before or after the keys up to a multiple of f, or the rest left out")),
      ReadIf(
          "layer is memory and causal is true", [](const O& o) { return !o.IsLocal() && o.causal; },
          EnumOption("rule", &O::rule, {"inclusive", "strict"},
                     "a cell is seen from its last row on, or from the row after it")),
      ReadIf(
          "layer is memory and first_key is false",
          [](const O& o) { return !o.IsLocal() && !o.first_key; },
          BoolOption("null", &O::null, "a key that every query sees comes first")),
      ReadIf(
          "layer is memory", [](const O& o) { return !o.IsLocal(); },
          BoolOption("first_key", &O::first_key, "row 0 of the keys in the place of the null key")),
      ReadIf(
          "layer is memory", [](const O& o) { return !o.IsLocal(); },
          BoolOption("share_conv", &O::share_conv, "conv_wk and conv_bk of v, too; needs Dv = D")),
      ScaleOption(&O::scale, "multiplies q k^T"),
      BoolOption(
          "causal", &O::causal,
          "query i sees what ends at or before i + Nk - Nq, also where kv_lengths end before Nk"),
      SeedOption(&O::seed),
  };
}

std::vector<TensorInfo> MemoryCompressedInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  for (const ConvNames& of : {kConvOfKeys, kConvOfValues}) {
    inputs.push_back(Differentiable(of.weight, of.weight_shape, "of the convolution; drawn"));
    inputs.push_back(Differentiable(of.bias, of.bias_shape, "of the convolution; drawn"));
  }
  for (const ConvNames& of : {kConvOfKeys, kConvOfValues}) {
    inputs.push_back(Differentiable(of.null, of.null_shape, "zeros when absent"));
  }
  inputs.push_back(Differentiable("bias", kBiasShape,
                                  "added to the scores of cells; C: cells of Nk keys, layer local "
                                  "Nk"));
  return inputs;
}

int64_t FactorOf(const ProblemShape& p, const MemoryCompressedOptions& o) {
  const auto [name, f] = SentFactor(p);
  return std::max<int64_t>(name != nullptr ? f : o.factor.value_or(kFactor), 1);
}

CellRows CellsOf(int64_t n, int64_t f, CellPad pad) {
  if (pad == CellPad::kDrop) return {n / f};
  const int64_t cells = CeilDiv(n, f);
  return {cells, pad == CellPad::kLeft ? cells * f - n : 0};
}

void CheckMemoryCompressed(const ProblemShape& p, const MemoryCompressedOptions& o,
                           Reasons* reasons) {
  if (o.layer > CompressedLayer::kLocal || o.pad > CellPad::kDrop) return;  // refused
  const int64_t f = FactorOf(p, o);
  CheckUnread(p, o, reasons);
  if (!o.IsLocal()) CheckConvolution(p, o, f, reasons);
  const char* meaning = o.IsLocal()               ? "Nk"
                        : o.pad == CellPad::kDrop ? "floor(Nk / f)"
                                                  : "ceil(Nk / f)";
  const int64_t columns = o.IsLocal() ? p.Nk : CellsOf(p.Nk, f, o.pad).cells;
  CheckShape(p, "bias", kBiasShape, {{"C", columns, meaning}}, reasons);
}

}  // namespace attnd
