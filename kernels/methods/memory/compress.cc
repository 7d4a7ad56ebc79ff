#include "kernels/methods/memory/compress.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/method/common_inputs.h"
#include "kernels/method/drawn.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/lowrank/rows.h"

namespace attnd {
namespace {

using O = MemoryOptions;
constexpr int kRows = 2;

// Rows that a dilated convolution reads past its first one; more are zeros, which take memory.
constexpr int64_t kMostReach = 65536;

DrawParams ConvDraw(const O& o, const std::string& name, int64_t features) {
  const auto inputs = static_cast<double>(features) * static_cast<double>(o.taps());
  return UniformDraw(o.seed, name, 1 / std::sqrt(inputs));
}

// of: "k" or "v".
Tensor Convolved(Ops& ops, const Inputs& in, const SeqSplit& split, const Tensor& old,
                 const std::vector<int64_t>& rows, const O& o, const char* of) {
  const std::string weight_name = absl::StrCat("conv_w", of),
                    bias_name = absl::StrCat("conv_b", of);
  const bool is_k = *of == 'k';
  const int64_t features = is_k ? in.problems[0].D : in.problems[0].Dv;
  std::vector<Shape> weights, biases;
  for (const ProblemShape& p : in.problems) {
    weights.push_back({p.Hkv, features, features, o.taps()});
    biases.push_back({p.Hkv, features});
  }
  const Tensor weight =
      SentOrDrawn(ops, in, weight_name, ConvDraw(o, weight_name, features), weights);
  const Tensor bias = SentOrDrawn(ops, in, bias_name, ConvDraw(o, bias_name, features), biases);
  if (!ops.status().ok()) return {};
  // With taps before inputs in memory no part has to copy the matrix of the convolution.
  const Tensor by_taps = ops.Transpose(ops.Copy(ops.Transpose(weight, 2, 3)), 2, 3);
  std::vector<int64_t> columns;
  for (const int64_t n : rows) columns.push_back(n / o.rate);
  const bool is_dilated = o.compression == Compression::kDilatedConv;
  return ops.Conv1d(
      ops.Copy(old), split.Shared(by_taps), split.Shared(bias),
      {.stride = o.rate, .dilation = is_dilated ? o.dilation : 1, .columns = columns});
}

// The rows that an attention used most, in their order: int32 [B,1,n].
Tensor MostUsed(Ops& ops, const SeqSplit& split, const MemoryAttention& attended,
                const std::vector<int64_t>& rows, const O& o) {
  const Tensor mass = ops.ColumnMass(attended.q, attended.k, attended.params, attended.seqs,
                                     attended.out, attended.terms);
  const Tensor usage = ops.Reduce(ReduceOp::kSum, mass, 1);  // [B,1,rows]
  if (!ops.status().ok()) return {};
  std::vector<int64_t> begin, end, kept;
  for (size_t i = 0; i < rows.size(); ++i) {
    begin.push_back(split.parts()[i].cmem);
    end.push_back(begin.back() + rows[i]);
    kept.push_back(rows[i] / o.rate);
  }
  return ops.TopK(ops.Slice(usage, 2, begin, end), kept, /*by_index=*/true);
}

}  // namespace

std::vector<TensorInfo> ConvInputs() {
  return {Differentiable("conv_wk", "[Hkv,D,D,c]",
                         "W of keys, outputs before inputs; c = rate, dilated_conv: kernel; "
                         "gradients come from aux alone"),
          Differentiable("conv_bk", "[Hkv,D]", "b of keys"),
          Differentiable("conv_wv", "[Hkv,Dv,Dv,c]", "W of values"),
          Differentiable("conv_bv", "[Hkv,Dv]", "b of values; all drawn, U(+-1/sqrt(F c))")};
}

void CheckConv(const ProblemShape& p, const O& o, const std::vector<TensorInfo>& inputs,
               Reasons* reasons) {
  if (!o.convolves()) {
    for (const TensorInfo& conv : ConvInputs()) {
      const View* view = p.Find(conv.name);
      if (view == nullptr) continue;
      reasons->Invalid(conv.name, " needs compression conv or dilated_conv, got ",
                       ToString(view->shape));
    }
    return;
  }
  const bool is_dilated = o.compression == Compression::kDilatedConv;
  const int64_t reach = (o.taps() - 1) * o.dilation;
  if (is_dilated && reach > kMostReach) {
    reasons->Invalid("(kernel - 1) dilation must be <= ", kMostReach, ", got ", reach);
  }
  // The size that a refused option leaves has its reason already.
  if (o.taps() < 1) return;
  CheckShapes(p, inputs, {{"c", o.taps(), is_dilated ? "kernel" : "rate"}}, reasons);
  if (!o.return_memory && !o.aux_loss) return;
  for (const auto& [of, features] : {std::pair("k", p.D), std::pair("v", p.Dv)}) {
    if (features < 1 || p.Hkv < 1) continue;
    const std::string weight = absl::StrCat("conv_w", of), bias = absl::StrCat("conv_b", of);
    CheckDrawn(p, weight, ConvDraw(o, weight, features), {p.Hkv, features, features, o.taps()},
               reasons);
    CheckDrawn(p, bias, ConvDraw(o, bias, features), {p.Hkv, features}, reasons);
  }
}

Compressed CompressOldest(Ops& ops, const Inputs& in, const SeqSplit& split,
                          const MemoryAttention& attended, const std::vector<int64_t>& rows,
                          const O& o) {
  std::vector<int64_t> begin, end;
  std::vector<RowSegments> windows;
  for (size_t i = 0; i < rows.size(); ++i) {
    begin.push_back(split.parts()[i].cmem);
    end.push_back(begin.back() + rows[i]);
    windows.push_back({.count = rows[i] / o.rate, .width = o.rate});
  }
  Compressed c;
  c.old_k = ops.Slice(ops.Stop(attended.k), kRows, begin, end);
  c.old_v = ops.Slice(ops.Stop(attended.v), kRows, begin, end);
  if (o.convolves()) {
    c.k = Convolved(ops, in, split, c.old_k, rows, o, "k");
    c.v = Convolved(ops, in, split, c.old_v, rows, o, "v");
  } else if (o.compression == Compression::kMostUsed) {
    const Tensor index = MostUsed(ops, split, attended, rows, o);
    if (!ops.status().ok()) return c;
    c.k = ops.Gather(c.old_k, index);
    c.v = ops.Gather(c.old_v, index);
  } else {
    const ReduceOp op = o.compression == Compression::kMean ? ReduceOp::kMean : ReduceOp::kMax;
    c.k = ReduceRows(ops, op, c.old_k, windows);
    c.v = ReduceRows(ops, op, c.old_v, windows);
  }
  return c;
}

}  // namespace attnd
