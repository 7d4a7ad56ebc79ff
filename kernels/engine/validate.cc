#include "kernels/engine/validate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/method/declared_shape.h"
#include "kernels/method/method.h"

namespace attnd {
namespace {

absl::string_view Name(Layout layout) { return layout == Layout::kBHND ? "BHND" : "BNHD"; }

// A size that does not follow from q, k and v.
constexpr int64_t kFree = -1;

void CheckRange(absl::string_view letters, int64_t size, int64_t min, int64_t max,
                Reasons* reasons) {
  if (size >= min && size <= max) return;
  reasons->Invalid(letters, " must be in ", min, "..", max, ", got ", size);
}

// True for negative dimensions, which other checks report.
bool FitsInMemory(const Shape& shape, DType dtype) {
  int64_t bytes = SizeOf(dtype);
  for (int i = 0; i < shape.rank; ++i) {
    if (shape[i] < 0) return true;
    // A zero elsewhere does not excuse a product that overflows on the way.
    if (shape[i] > 0 && __builtin_mul_overflow(bytes, shape[i], &bytes)) return false;
  }
  return bytes <= kMaxBytes;
}

void CheckBytes(absl::string_view name, const Shape& shape, DType dtype, Reasons* reasons) {
  if (FitsInMemory(shape, dtype)) return;
  reasons->Invalid(name, " size must be at most ", kMaxBytes, " bytes, got ", ToString(shape),
                   " of ", Name(dtype));
}

// Of q, k and v: those that a method requires.
struct Required {
  bool q = false, k = false;
};

Required RequiredOf(const MethodInfo& info) {
  Required required;
  for (const TensorInfo& input : info.inputs) {
    if (input.name == "q") required.q = input.required;
    if (input.name == "k") required.k = input.required;
  }
  return required;
}

// The sizes that q, k and v give; those of a q or a k that a method does without are those of v.
SizesByLetter SizesOf(const ProblemShape& shape, const Required& required) {
  SizesByLetter sizes;
  if (shape.HasSizesOf("q") || (!required.q && shape.HasSizesOf("v"))) {
    sizes = {{"B", shape.B}, {"H", shape.H}, {"Nq", shape.Nq}};
  }
  if (shape.HasSizesOf("q") || (!required.q && shape.HasSizesOf("k"))) sizes["D"] = shape.D;
  if (shape.HasSizesOf("k")) sizes.insert({{"Hkv", shape.Hkv}, {"Nk", shape.Nk}});
  if (shape.HasSizesOf("v")) sizes["Dv"] = shape.Dv;
  if (!required.k && shape.HasSizesOf("v")) sizes.insert({{"Hkv", shape.Hkv}, {"Nk", shape.Nk}});
  return sizes;
}

// Runs the checks of one request.
struct Checker {
  const MethodInfo& info;
  const Call& call;
  const ProblemShape shape;
  Reasons* const reasons;
  const Required required = RequiredOf(info);
  const SizesByLetter sizes = SizesOf(shape, required);
  // The tensor whose dtype and layout the others must have.
  const absl::string_view first = required.q || shape.Find("q") != nullptr ? "q" : "v";

  const View* Rank4(absl::string_view name) const {
    const View* view = shape.Find(name);
    return view != nullptr && view->shape.rank == 4 ? view : nullptr;
  }
  // A size of queries or keys, or kFree where no tensor of rank 4 gives it.
  int64_t OfQ(int64_t size) const { return Rank4(first) != nullptr ? size : kFree; }
  int64_t OfK(int64_t size) const {
    return Rank4(required.k || shape.Find("k") != nullptr ? "k" : "v") != nullptr ? size : kFree;
  }

  // "k shape must be [B,Hkv,Nk,D] with B = 2, got [3,8,16,64]".
  bool FitsShape(absl::string_view name, const View& view, absl::string_view declared) const {
    const std::string rule = BrokenShapeRule(declared, sizes, view.shape);
    if (!rule.empty()) reasons->Invalid(name, " ", rule, ", got ", ToString(view.shape));
    return rule.empty();
  }

  std::string ServedTensors() const {
    std::vector<std::string> names;
    for (const TensorInfo& input : info.inputs) {
      if (input.served) names.push_back(input.name);
    }
    return absl::StrJoin(names, ", ");
  }

  void Names() const {
    for (const auto& [name, view] : call.tensors) {
      const auto input = std::find_if(info.inputs.begin(), info.inputs.end(),
                                      [&](const TensorInfo& t) { return t.name == name; });
      if (input != info.inputs.end()) {
        if (!input->served) {
          reasons->Unserved(name, " is not served by this version, got ", ToString(view.shape));
        }
      } else if (absl::string_view(name).substr(0, 5) == "grad_") {
        GradName(name, view);
      } else {
        reasons->Invalid("tensors must be among ", ServedTensors(), ", got \"", name, "\"");
      }
    }
    for (const TensorInfo& input : info.inputs) {
      if (input.required && !call.tensors.contains(input.name)) {
        reasons->Invalid(input.name, " is required, got none");
      }
    }
  }

  void GradName(const std::string& name, const View& view) const {
    const TensorInfo* output = OutputOfGrad(info, name);
    if (output == nullptr) {
      reasons->Invalid(name, " must name one of its outputs, got ", ToString(view.shape));
    } else if (call.direction == Direction::kForward) {
      reasons->Invalid(name, " is taken by a backward only, got ", ToString(view.shape));
    } else if (output->is_constant) {
      reasons->Invalid(name, " must be absent: ", output->name, " is a constant, got ",
                       ToString(view.shape));
    } else if (!output->served) {
      reasons->Unserved(name, " is not served by this version, got ", ToString(view.shape));
    }
  }

  void Qkv() const {
    const ProblemShape& s = shape;
    if (const View* q = s.Find("q")) {
      if (FitsShape("q", *q, "[B,H,Nq,D]")) {
        Batch();
        CheckRange("Nq", s.Nq, 0, kMaxTokens, reasons);
        CheckRange("D", s.D, 1, kMaxHeadDim, reasons);
      }
    } else if (!required.q && Rank4("v") != nullptr) {
      Batch();
      CheckRange("Nk", s.Nk, 0, kMaxTokens, reasons);
    }
    if (const View* k = s.Find("k")) {
      if (FitsShape("k", *k, "[B,Hkv,Nk,D]")) {
        Keys();
        if (!required.q && s.Find("q") == nullptr) CheckRange("D", s.D, 1, kMaxHeadDim, reasons);
      }
    } else if (!required.k && info.support.gqa && Rank4("q") != nullptr && Rank4("v") != nullptr) {
      Keys();
    }
    if (const View* v = s.Find("v")) {
      if (FitsShape("v", *v, "[B,Hkv,Nk,Dv]")) CheckRange("Dv", s.Dv, 1, kMaxHeadDim, reasons);
    }
    for (const absl::string_view name : {"q", "k", "v"}) Float(name);
    const bool known = Rank4(first) != nullptr && Rank4("v") != nullptr;
    if (known) CheckBytes("out", {s.B, s.H, s.Nq, s.Dv}, Rank4(first)->dtype, reasons);
  }

  // Sizes that k has, or v where the method does without k.
  void Keys() const {
    const ProblemShape& s = shape;
    CheckRange("Hkv", s.Hkv, 1, kMaxHeads, reasons);
    CheckRange("Nk", s.Nk, 0, kMaxTokens, reasons);
    if (Rank4("q") != nullptr && s.Hkv > 0 && s.H % s.Hkv != 0) {
      reasons->Invalid("H must be a multiple of Hkv, got H = ", s.H, " and Hkv = ", s.Hkv);
    }
  }

  void Batch() const {
    const ProblemShape& s = shape;
    CheckRange("B", s.B, 1, kMaxHeads, reasons);
    CheckRange("H", s.H, 1, kMaxHeads, reasons);
    // The product only of sizes in range: the others have messages of their own. Hkv divides H.
    if (s.B >= 1 && s.B <= kMaxHeads && s.H >= 1 && s.H <= kMaxHeads) {
      CheckRange("B * H", s.B * s.H, 1, kMaxBatchHeads, reasons);
    }
  }

  // dtype and memory order of a tensor that must have those of q (of v without a q).
  void Float(absl::string_view name) const {
    const View* view = shape.Find(name);
    if (view == nullptr) return;
    CheckBytes(name, view->shape, view->dtype, reasons);
    const View* q = shape.Find(first);
    if (!IsFloat(view->dtype)) {
      reasons->Invalid(name, " dtype must be float32, float16 or bfloat16, got ",
                       Name(view->dtype));
    } else if (q != nullptr && IsFloat(q->dtype) && view->dtype != q->dtype) {
      reasons->Invalid(name, " dtype must be that of ", first, ", ", Name(q->dtype), ", got ",
                       Name(view->dtype));
    }
    if (view->shape.rank != 4) return;
    if (q != nullptr && view->layout != q->layout) {
      reasons->Invalid(name, " layout must be that of ", first, ", ", Name(q->layout), ", got ",
                       Name(view->layout));
    }
    if (view->stride[3] != 1 && view->shape[3] > 1 && view->shape.size() > 0) {
      reasons->Invalid(name, " must be dense along its last dimension, got stride ",
                       view->stride[3]);
    }
  }

  // An int32 [B] tensor; values in 0..max unless max is kFree.
  void Integers(absl::string_view name, absl::string_view letters, int64_t max) const {
    const View* view = shape.Find(name);
    if (view == nullptr) return;
    if (view->dtype != DType::kI32) {
      reasons->Invalid(name, " dtype must be int32, got ", Name(view->dtype));
      return;
    }
    if (!FitsShape(name, *view, "[B]") || max == kFree) return;
    if (view->data == nullptr) return;  // declared, not sent
    for (int64_t b = 0; b < view->shape[0]; ++b) {
      const int64_t value = IntAt(*view, b);
      if (value >= 0 && value <= max) continue;
      reasons->Invalid(name, "[", b, "] must be in 0..", letters, " = 0..", max, ", got ", value);
      return;
    }
  }

  // All other tensors that the method declares.
  void Parameters() const {
    for (const TensorInfo& input : info.inputs) {
      const View* view = shape.Find(input.name);
      const bool checked = input.name == "q" || input.name == "k" || input.name == "v" ||
                           input.name == "q_lengths" || input.name == "kv_lengths" ||
                           input.name == "causal_offset";
      if (view != nullptr && !checked && input.served) Declared(input.name, input, *view);
    }
  }

  // Shape, dtype and density as declared.
  void Declared(absl::string_view name, const TensorInfo& declared, const View& view) const {
    FitsShape(name, view, declared.shape);
    CheckBytes(name, view.shape, view.dtype, reasons);
    DeclaredType(name, declared, view);
    if (FitsInMemory(view.shape, view.dtype)) Dense(name, view);
  }

  void DeclaredType(absl::string_view name, const TensorInfo& declared, const View& view) const {
    const View* q = shape.Find(first);
    const bool of_q = q != nullptr && IsFloat(q->dtype) && q->dtype != DType::kF32;
    const bool is_float = declared.dtype == "float";
    const bool fits = is_float ? view.dtype == DType::kF32 || (of_q && view.dtype == q->dtype)
                               : Name(view.dtype) == declared.dtype;
    if (fits) return;
    reasons->Invalid(name, " dtype must be ", is_float ? "float32" : declared.dtype,
                     is_float && of_q ? absl::StrCat(" or that of ", first, ", ") : "",
                     is_float && of_q ? Name(q->dtype) : "", ", got ", Name(view.dtype));
  }

  // Floats along their last dimension, integers all through; what repeats has a dimension of 1.
  void Dense(absl::string_view name, const View& view) const {
    if (view.shape.size() == 0 || view.shape.rank == 0) return;
    const View dense = DenseView(nullptr, view.dtype, view.shape);
    const int last = view.shape.rank - 1;
    for (int i = 0; i < last; ++i) {
      if (view.shape[i] <= 1 || view.stride[i] != 0) continue;
      return reasons->Invalid(name, " must repeat by dimensions of 1, got stride 0 over ",
                              view.shape[i]);
    }
    const bool is_index = !IsFloat(view.dtype);
    for (int i = is_index ? 0 : last; i <= last; ++i) {
      if (view.shape[i] <= 1 || view.stride[i] == dense.stride[i]) continue;
      reasons->Invalid(name, " must be dense along its ",
                       i == last ? "last dimension" : "dimensions", ", got stride ",
                       view.stride[i]);
      return;
    }
  }

  void Grads() const {
    if (call.direction != Direction::kBackward) return;
    bool any = false;
    for (const auto& [name, view] : call.tensors) {
      const TensorInfo* output = OutputOfGrad(info, name);
      if (output == nullptr) continue;
      any = true;
      if (output->name == "lse") {
        FitsShape(name, view, output->shape);
        CheckBytes(name, view.shape, view.dtype, reasons);
        if (view.dtype != DType::kF32) {
          reasons->Invalid(name, " dtype must be float32, got ", Name(view.dtype));
        }
      } else if (output->name == "out") {
        FitsShape(name, view, output->shape);
        Float(name);
      } else if (output->served && !output->is_constant) {
        Declared(name, *output, view);
      }
    }
    if (any) return;
    std::vector<std::string> names;
    for (const TensorInfo& output : info.outputs) {
      if (output.served && !output.is_constant) names.push_back("grad_" + output.name);
    }
    reasons->Invalid(absl::StrJoin(names, " or "), " is required, got none");
  }
};

}  // namespace

ProblemShape ShapeOf(const MethodInfo& info, const std::map<std::string, View>& tensors) {
  ProblemShape s{.tensors = &tensors};
  const auto rank4 = [&](absl::string_view name) -> const Shape* {
    const View* view = s.Find(name);
    return view != nullptr && view->shape.rank == 4 ? &view->shape : nullptr;
  };
  const Shape *q = rank4("q"), *k = rank4("k"), *v = rank4("v");
  if (v != nullptr) {  // of methods that read no q
    s.B = (*v)[0];
    s.H = s.Hkv = (*v)[1];
    s.Nq = s.Nk = (*v)[2];
    s.D = s.Dv = (*v)[3];
  }
  if (q != nullptr) {
    s.B = (*q)[0];
    s.H = (*q)[1];
    s.Nq = (*q)[2];
    s.D = (*q)[3];
    if (v == nullptr) s.Hkv = s.H, s.Nk = s.Nq, s.Dv = s.D;
  } else {
    const auto sent = std::find_if(info.tensors_with_heads.begin(), info.tensors_with_heads.end(),
                                   [&](const std::string& name) { return tensors.contains(name); });
    if (sent != info.tensors_with_heads.end()) s.H = tensors.at(*sent).shape[0];
  }
  if (k != nullptr) {
    s.Hkv = (*k)[1];
    s.Nk = (*k)[2];
    if (q == nullptr) s.D = (*k)[3];
  }
  return s;
}

void CheckTensors(const Method& method, const Call& call, Reasons* reasons) {
  const Checker checker{method.info(), call, ShapeOf(method.info(), call.tensors), reasons};
  checker.Names();
  checker.Qkv();
  // Lengths that do not follow from the tensors sent are not compared.
  const ProblemShape& s = checker.shape;
  checker.Integers("q_lengths", "Nq", checker.OfQ(s.Nq));
  checker.Integers("kv_lengths", "Nk", checker.OfK(s.Nk));
  checker.Integers("causal_offset", "any", kFree);
  checker.Parameters();
  checker.Grads();
}

const TensorInfo* OutputOfGrad(const MethodInfo& info, absl::string_view grad_name) {
  constexpr absl::string_view kPrefix = "grad_";
  if (grad_name.substr(0, kPrefix.size()) != kPrefix) return nullptr;
  for (const TensorInfo& output : info.outputs) {
    if (output.name == grad_name.substr(kPrefix.size())) return &output;
  }
  return nullptr;
}

}  // namespace attnd
