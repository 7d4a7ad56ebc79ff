// FNet (Lee-Thorp et al. 2021, eq. 3): the real part of a discrete Fourier transform over positions
// and channels,
//   Y[n,c] = sum_{m < n_b, c'} X[m,c'] cos(2 pi (n m / n_b + c c' / C))
// with X the heads of v side by side (merged) or each head alone (per_head). Its own adjoint.
#include <cmath>

#include "kernels/method/common_inputs.h"
#include "kernels/method/method.h"
#include "kernels/method/seq_split.h"
#include "kernels/methods/mixing/dft.h"
#include "kernels/methods/mixing/rows.h"
#include "kernels/methods/mixing/rules.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

enum class Scope : uint8_t { kMerged, kPerHead };
enum class Norm : uint8_t { kNone, kOrtho };

struct FnetOptions {
  Scope hidden_scope = Scope::kMerged;
  Norm norm = Norm::kNone;
  bool use_fft = true;
};

std::vector<OptionSpec<FnetOptions>> Lines() {
  using O = FnetOptions;
  return {
      EnumOption("hidden_scope", &O::hidden_scope, {"merged", "per_head"},
                 "channels of all heads together, or of each head alone"),
      EnumOption("norm", &O::norm, {"none", "ortho"}, "ortho: divide by sqrt(n C)"),
      ReadIf(
          "lengths are absent", [](const O&, const ProblemShape& p) { return !HasLengths(p); },
          BoolOption(
              "use_fft", &O::use_fft,
              "false: two products with the matrices of the transform, the same result; for Nk "
              "and channels up to 2048")),
  };
}

class Fnet final : public MethodOf<FnetOptions> {
 public:
  Fnet()
      : MethodOf({.id = "fnet",
                  .summary = "Real part of a Fourier transform over positions and channels",
                  .reference = "Lee-Thorp et al. 2021 (arXiv 2105.03824), eq. 3",
                  .cost = "about 5 n C log2(n C) FLOPs with C = H Dv; memory O(n C)",
                  .inputs = ValueInputs(),
                  .outputs = {{"out", "[B,H,Nq,Dv]", "float", "transformed rows"}},
                  .support = {.lengths = true}},
                 Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const FnetOptions& o, Reasons* reasons) const override {
    CheckMixing(p, reasons);
    if (o.use_fft || !p.HasSizesOf("v")) return;
    const int64_t C = o.hidden_scope == Scope::kMerged ? ChannelsOf(p) : p.Dv;
    for (const auto& [name, size] : {std::pair("Nk", p.Nk), std::pair("channels", C)}) {
      if (size <= kMostDft) continue;
      reasons->Invalid("use_fft must be true with more than ", kMostDft, " ", name,
                       ", got false with ", size);
    }
  }

  Outputs Formula(Ops& ops, const Inputs& in, const FnetOptions& o) const override {
    const SeqSplit split(ops, in);
    Tensor x = split.Keys(in.v);  // [b,H,n,Dv] of each length
    if (o.hidden_scope == Scope::kMerged) x = MergeHeads(ops, x);
    // Matrices of many lengths would be more than what is sent.
    const bool has_lengths = in.tensors.contains("kv_lengths") || in.tensors.contains("q_lengths");
    const bool is_ortho = o.norm == Norm::kOrtho;
    Tensor y = o.use_fft || has_lengths ? ops.RealFft2(x, /*is_returned=*/!is_ortho)
                                        : DftByProducts(ops, x);
    if (is_ortho) y = Normalised(ops, y);
    if (o.hidden_scope == Scope::kMerged) y = SplitHeads(ops, y, in.problems[0].Dv);
    const Outputs outputs{.out = split.JoinOut(y, in.problems[0].Dv)};
    CountMixedPairs(ops, in, /*causal=*/false);
    return outputs;
  }

 private:
  // y / sqrt(n C).
  static Tensor Normalised(Ops& ops, const Tensor& y) {
    std::vector<std::vector<float>> factors;
    for (size_t p = 0; p < y.size(); ++p) {
      const double size = static_cast<double>(y[p].shape[2] * y[p].shape[3]);
      factors.emplace_back(1, size > 0 ? static_cast<float>(1 / std::sqrt(size)) : 0.0f);
    }
    const std::vector<Shape> one(y.size(), Shape{1, 1, 1, 1});
    return ops.Apply(ElementOp::kMultiply, y, ops.FromHost(one, std::move(factors)));
  }
};

}  // namespace

ATTND_METHOD(fnet, Fnet)

}  // namespace attnd
