// Linformer (Wang et al. 2020, eq. 7): the n rows of K and V are projected to k columns, which the
// queries attend to:
//   Kbar_c = sum_j E_jc K_j + e_bias_c,  Vbar_c = sum_j F_jc V_j + f_bias_c
//   s_ic = scale q_i . Kbar_c;  lse_i = log sum_c exp(s_ic)
//   out_i = sum_c exp(s_ic - lse_i) Vbar_c
// over rows j < n = kv_lengths[b]; n = 0: out = 0, lse = -inf. mean_pool, max_pool and conv reduce
// windows of w rows in place of the sums by E and F; columns = ceil(n / w).
// q [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h reads kv head h / (H/Hkv).
#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/core/integer.h"
#include "kernels/method/common_inputs.h"
#include "kernels/method/drawn.h"
#include "kernels/method/method.h"
#include "kernels/method/seq_split.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/lowrank/rows.h"
#include "kernels/ops/ops.h"

namespace attnd {
namespace {

enum class Projection : uint8_t { kLinear, kMeanPool, kMaxPool, kConv };
enum class Sharing : uint8_t { kNone, kHeadwise, kKv, kLayerwise };
const std::vector<std::string>& ProjectionNames() {
  static const auto& names =
      *new std::vector<std::string>{"linear", "mean_pool", "max_pool", "conv"};
  return names;
}

constexpr int64_t kColumns = 256, kMostColumns = 65536;

struct LinformerOptions {
  std::optional<int64_t> k;  // unset: that of e or f, else kColumns
  Projection projection = Projection::kLinear;
  Sharing sharing = Sharing::kHeadwise;
  std::optional<double> scale;  // unset: 1/sqrt(D)
  uint64_t seed = 0;

  // Whether F is E where f is absent.
  bool SharesKv() const { return sharing == Sharing::kKv || sharing == Sharing::kLayerwise; }
};

std::vector<OptionSpec<LinformerOptions>> Lines() {
  using O = LinformerOptions;
  return {
      ReadIf(
          "convolution weights are absent",
          [](const O&, const ProblemShape& p) {
            return p.Find("conv_weight_k") == nullptr && p.Find("conv_weight_v") == nullptr;
          },
          IntOption("k", &O::k, {.min = 1, .max = kMostColumns}, kColumns,
                    "columns; where e or f is sent, theirs")),
      EnumOption("projection", &O::projection, ProjectionNames(), "how n rows become columns"),
      ReadIf(
          "projection is linear and e or f is absent",
          [](const O& o, const ProblemShape& p) {
            return o.projection == Projection::kLinear &&
                   (p.Find("e") == nullptr || p.Find("f") == nullptr);
          },
          EnumOption("sharing", &O::sharing, {"none", "headwise", "kv", "layerwise"},
                     "of what is drawn: e and f per head, of all heads, or one for both")),
      ScaleOption(&O::scale, "multiplies q Kbar^T"),
      SeedOption(&O::seed),
  };
}

constexpr char kTable[] = "[L,k] or [Hkv,L,k]", kBias[] = "[k] or [Hkv,k]";
constexpr char kWeightK[] = "[D,D,w]", kWeightV[] = "[Dv,Dv,w]";
constexpr const char* kOfLinear[] = {"e", "f", "e_bias", "f_bias"};
constexpr const char* kOfConv[] = {"conv_weight_k", "conv_weight_v", "conv_bias_k", "conv_bias_v"};

std::vector<TensorInfo> LinformerInputs() {
  std::vector<TensorInfo> inputs = CommonInputs();
  const auto add = [&](const char* name, const char* shape, const char* help) {
    inputs.push_back(Differentiable(name, shape, help));
  };
  add("e", kTable, "projects k, L >= Nk; drawn when absent, for the padded Nk");
  add("f", kTable, "projects v; absent: e with sharing kv and layerwise, else drawn as e");
  add("e_bias", kBias, "added to the projected k; zeros when absent");
  add("f_bias", kBias, "added to the projected v; zeros when absent");
  add("conv_weight_k", kWeightK, "with projection conv; drawn when absent");
  add("conv_weight_v", kWeightV, "with projection conv; drawn when absent");
  add("conv_bias_k", "[D]", "drawn when absent; zeros where its weight is sent");
  add("conv_bias_v", "[Dv]", "drawn when absent; zeros where its weight is sent");
  return inputs;
}

// The last dimension of a tensor that was sent and has dimensions.
std::optional<int64_t> LastOf(const ProblemShape& p, const char* name) {
  const View* view = p.Find(name);
  if (view == nullptr || view->shape.rank < 1) return std::nullopt;
  return view->shape[view->shape.rank - 1];
}

// The first tensor that decides k, and its k.
std::pair<const char*, int64_t> SentColumns(const ProblemShape& p) {
  for (const char* name : kOfLinear) {
    if (const auto last = LastOf(p, name)) return {name, *last};
  }
  return {nullptr, 0};
}
int64_t ColumnsOf(const ProblemShape& p, const LinformerOptions& o) {
  const auto [name, k] = SentColumns(p);
  return name != nullptr ? k : o.k.value_or(kColumns);
}
// Rows of a window of the convolutions.
int64_t WidthOf(const ProblemShape& p, const LinformerOptions& o) {
  for (const char* name : {"conv_weight_k", "conv_weight_v"}) {
    if (const auto last = LastOf(p, name)) return std::max<int64_t>(*last, 1);
  }
  // A refused k is 0.
  return std::max<int64_t>(p.Nk / std::max<int64_t>(o.k.value_or(kColumns), 1), 1);
}

// Glorot's limit over sqrt(2), as in the authors' code.
DrawParams TableParams(const ProblemShape& p, const LinformerOptions& o, const char* name) {
  const auto fans = static_cast<double>(p.Nk + ColumnsOf(p, o));
  return UniformDraw(o.seed, name, std::sqrt(3 / fans));
}
Shape TableShape(const ProblemShape& p, const LinformerOptions& o) {
  const int64_t k = ColumnsOf(p, o);
  return o.sharing == Sharing::kNone ? Shape{p.Hkv, p.Nk, k} : Shape{p.Nk, k};
}
DrawParams ConvParams(const ProblemShape& p, const LinformerOptions& o, const char* name,
                      int64_t D) {
  return UniformDraw(o.seed, name, 1 / std::sqrt(static_cast<double>(D * WidthOf(p, o))));
}

class Linformer : public MethodOf<LinformerOptions> {
 public:
  Linformer()
      : MethodOf({.id = "linformer",
                  .summary = "Keys and values projected along the sequence to k columns",
                  .reference = "Wang et al. 2020 (arXiv 2006.04768), eq. 7",
                  .cost = "2 (D + Dv) k FLOPs per token and head, and the same per key; memory "
                          "O(n + k), tables 2 n k",
                  .inputs = LinformerInputs(),
                  .outputs = {{"out", "[B,H,Nq,Dv]", "float", "attention over the columns"},
                              {"lse", "[B,H,Nq]", "float32",
                               "natural log, over the columns; -inf: no key"}},
                  .support = {.lengths = true, .cross = true, .gqa = true, .lse = true}},
                 Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const LinformerOptions& o,
                    Reasons* reasons) const override {
    const auto index = static_cast<size_t>(o.projection);
    if (index >= ProjectionNames().size()) return;
    const std::string& projection = ProjectionNames()[index];
    const auto only = [&](absl::string_view name, const char* needed) {
      if (p.Find(name) == nullptr || projection == needed) return;
      reasons->Invalid(name, " needs projection ", needed, ", got ", projection);
    };
    for (const char* name : kOfLinear) only(name, "linear");
    for (const char* name : kOfConv) only(name, "conv");
    if (o.projection == Projection::kLinear) CheckLinear(p, o, reasons);
    if (o.projection == Projection::kConv) CheckConv(p, o, reasons);
  }

  // One launch of a convolution has one width.
  std::string BranchOf(const ProblemShape& p, const LinformerOptions& o) const override {
    return o.projection == Projection::kConv ? absl::StrCat("w=", WidthOf(p, o)) : "";
  }

  Outputs Formula(Ops& ops, const Inputs& in, const LinformerOptions& o) const override {
    const SeqSplit seqs(ops, in);
    const Tensor q = seqs.Queries(in.q);
    const Tensor k = Columns(ops, in, seqs, o, /*of_keys=*/true);
    const Tensor v = Columns(ops, in, seqs, o, /*of_keys=*/false);
    if (!ops.status().ok()) return {};
    std::vector<int64_t> seen;
    for (size_t i = 0; i < k.size(); ++i) {
      seen.push_back(seqs.parts()[i].lengths.nk == 0 ? 0 : k[i].shape[2]);
    }
    const double D = static_cast<double>(in.problems[0].D);
    const AttendOut attended =
        ops.Attend(q, k, v, {.scale = o.scale.value_or(1 / std::sqrt(D))}, AllPairs(ops, q, seen));
    if (!ops.status().ok()) return {};
    return {.out = seqs.JoinOut(attended.out, in.problems[0].Dv),
            .lse = seqs.JoinLse(attended.lse)};
  }

 private:
  static void CheckLinear(const ProblemShape& p, const LinformerOptions& o, Reasons* reasons) {
    const auto [first, k] = SentColumns(p);
    if (first != nullptr && (k < 1 || k > kMostColumns)) {
      reasons->Invalid(first, " shape must have k in 1..", kMostColumns, ", got ",
                       ToString(p.Find(first)->shape));
    } else if (first != nullptr) {
      CheckSameSize("k", o.k, first, k, reasons);
    }
    for (const char* name : kOfLinear) {
      const bool is_table = name[1] == '\0';
      if (first != nullptr) CheckShape(p, name, is_table ? kTable : kBias, {{"k", k}}, reasons);
      const View* view = p.Find(name);
      if (!is_table || view == nullptr || view->shape.rank < 2 || view->shape.rank > 3) continue;
      if (view->shape[view->shape.rank - 2] >= p.Nk) continue;
      reasons->Invalid(name, " shape must have L >= Nk = ", p.Nk, ", got ", ToString(view->shape));
    }
    const Shape table = TableShape(p, o);
    CheckDrawn(p, "e", UniformDraw(o.seed, "e", 1), table, reasons);
    if (!o.SharesKv()) CheckDrawn(p, "f", UniformDraw(o.seed, "f", 1), table, reasons);
  }

  static void CheckConv(const ProblemShape& p, const LinformerOptions& o, Reasons* reasons) {
    for (const char* name : {"conv_weight_k", "conv_weight_v"}) {
      const auto w = LastOf(p, name);
      if (!w.has_value() || *w >= 1) continue;
      reasons->Invalid(name, " shape must have w >= 1, got ", ToString(p.Find(name)->shape));
    }
    const int64_t w = WidthOf(p, o);
    if (p.Find("conv_weight_k") != nullptr) {
      CheckSize(p, "conv_weight_v", kWeightV, {"w", w}, reasons);
    }
    CheckDrawn(p, "conv_weight_k", UniformDraw(o.seed, "", 1), {p.D, p.D, w}, reasons);
    CheckDrawn(p, "conv_weight_v", UniformDraw(o.seed, "", 1), {p.Dv, p.Dv, w}, reasons);
  }

  // [B,Hkv,columns,D] of the keys or of the values, float32.
  static Tensor Columns(Ops& ops, const Inputs& in, const SeqSplit& seqs, const LinformerOptions& o,
                        bool of_keys) {
    const Tensor x = seqs.Keys(of_keys ? in.k : in.v);
    if (!ops.status().ok()) return {};
    if (o.projection == Projection::kLinear) return Projected(ops, in, seqs, o, x, of_keys);
    if (o.projection == Projection::kConv) return Convolved(ops, in, seqs, o, x, of_keys);
    std::vector<RowSegments> windows;
    for (const SeqSplit::Part& part : seqs.parts()) {
      const int64_t k = o.k.value_or(kColumns), n = part.lengths.nk;
      windows.push_back(WindowsOf(n, std::max<int64_t>(CeilDiv(n, k), 1)));
    }
    const bool is_mean = o.projection == Projection::kMeanPool;
    return ReduceRows(ops, is_mean ? ReduceOp::kMean : ReduceOp::kMax, x, windows);
  }

  // E^T x + bias, by the first n rows of E.
  static Tensor Projected(Ops& ops, const Inputs& in, const SeqSplit& seqs,
                          const LinformerOptions& o, const Tensor& x, bool of_keys) {
    const bool is_e = of_keys || (o.SharesKv() && Sent(in, "f").empty());
    const char* const name = is_e ? "e" : "f";
    std::vector<DrawParams> params;
    std::vector<Shape> shapes, biases;
    for (const ProblemShape& p : in.problems) {
      params.push_back(TableParams(p, o, name));
      shapes.push_back(TableShape(p, o));
    }
    std::vector<int64_t> rows;
    for (const SeqSplit::Part& part : seqs.parts()) rows.push_back(part.lengths.nk);
    const Tensor table = seqs.Shared(WithRank(ops, SentOrDrawn(ops, in, name, params, shapes), 3));
    if (!ops.status().ok()) return {};
    Tensor bias = Sent(in, of_keys ? "e_bias" : "f_bias");
    for (size_t p = 0; p < bias.size(); ++p) {
      const Shape& s = bias[p].shape;
      biases.push_back({s.rank == 2 ? s[0] : 1, s[s.rank - 1], 1});
    }
    if (!bias.empty()) bias = seqs.Shared(ops.Reshape(bias, biases));
    return ops.MatMul(ops.Transpose(ops.Slice(table, 2, {0}, rows), 2, 3), x, {}, bias);
  }

  // Windows of w rows side by side, those beyond the sequence 0.
  static Tensor Convolved(Ops& ops, const Inputs& in, const SeqSplit& seqs,
                          const LinformerOptions& o, const Tensor& x, bool of_keys) {
    const char* const name = of_keys ? "conv_weight_k" : "conv_weight_v";
    const char* const bias_name = of_keys ? "conv_bias_k" : "conv_bias_v";
    std::vector<DrawParams> params, bias_params;
    std::vector<Shape> shapes, biases;
    const int64_t w = WidthOf(in.problems[0], o);
    for (const ProblemShape& p : in.problems) {
      const int64_t size = of_keys ? p.D : p.Dv;
      params.push_back(ConvParams(p, o, name, size));
      bias_params.push_back(ConvParams(p, o, bias_name, size));
      shapes.push_back({size, size, w});
      biases.push_back({size});
    }
    std::vector<int64_t> columns;
    for (const SeqSplit::Part& part : seqs.parts()) {
      columns.push_back(CeilDiv(part.lengths.nk, w));
    }
    const Tensor weight = SentOrDrawn(ops, in, name, params, shapes);
    const bool has_bias = Sent(in, name).empty() || !Sent(in, bias_name).empty();
    Tensor bias;
    if (has_bias) bias = WithRank(ops, SentOrDrawn(ops, in, bias_name, bias_params, biases), 2);
    if (!ops.status().ok()) return {};
    return ops.Conv1d(x, seqs.Shared(WithRank(ops, weight, 4)), seqs.Shared(bias),
                      {.stride = w, .columns = columns});
  }
};

}  // namespace

ATTND_METHOD(linformer, Linformer)

}  // namespace attnd
