// Synthesizer (Tay et al. 2020, section 3): scores that are predicted from each query alone
// (dense), or free parameters (random), whole or factorised, mixed with those of dot products.
//   s_ij = sum_t c_t L_t,ij + bias_ij with c_t = 1 or softmax(mix_logits)_t
//   lse_i = log sum_j exp(s_ij);  out_i = sum_j exp(s_ij - lse_i) v_j
// where L_ij of a component is
//   - dense: relu(q_i) . w_dense_j + b_dense_j
//   - random: r_(i + rho),j
//   - factorized_random: r1_(i + rho) . r2_j
//   - factorized_dense: A_i,(j mod a) C_i,(j div a) with A = q f_a + fa_b, C = q f_b + fb_b
//   - dot: scale q_i . k_j
// over keys j < kv_lengths[b] and, if causal, j <= i + Nk - Nq; rho = row_offset. The scores are
// the bias of attend, which computes softmax and dot products; those of random kinds are the same
// for all sequences and stored once. q [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h
// reads kv head h / (H/Hkv).
#include <algorithm>
#include <cmath>

#include "kernels/method/drawn.h"
#include "kernels/method/method.h"
#include "kernels/method/seq_split.h"
#include "kernels/method/shape_rules.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/synthesizer/tables.h"
#include "kernels/ops/ops.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

using Component = SynthesizerComponent;
using Mix = SynthesizerMix;

// --- the scores of one batch

class Scores {
 public:
  Scores(Ops& ops, const Inputs& in, const SynthesizerOptions& o, const SeqSplit& seqs)
      : ops_(ops), in_(in), o_(o), seqs_(seqs), q_(seqs.Queries(in.q)), v_(seqs.Keys(in.v)) {
    if (o.mix == Mix::kSum) return;
    const int64_t count = static_cast<int64_t>(o.components.size());
    Tensor logits = Sent(in, "mix_logits");
    if (logits.empty()) {
      logits = ops.Constant(0, std::vector<Shape>(in.problems.size(), Shape{count}));
    }
    weights_ = ops.Softmax(seqs.Shared(logits), -1);
  }

  // All but the dot products: [B|1,H|1,Nq|1,Nk] of each part, or empty. What all sequences share
  // comes first, so that it is added once.
  Tensor WithoutDot() {
    if (o_.Has(Component::kRandom)) {
      Add(Weighted(Component::kRandom, Keys(Rows(Shared("r", 3)), 3)));
    }
    if (o_.Has(Component::kFactorizedRandom)) {
      const Tensor r1 = Weighted(Component::kFactorizedRandom, Rows(Shared("r1", 3)));
      AddProduct(r1, ops_.Transpose(Keys(Shared("r2", 3), 2), 2, 3));
    }
    Add(Bias());
    if (o_.Has(Component::kDense)) {
      const Tensor b_dense = Shared("b_dense", 2);
      if (!b_dense.empty()) Add(Weighted(Component::kDense, AsRow(Keys(b_dense, 2))));
      const Tensor hidden = ops_.Apply(ElementOp::kRelu, q_);
      AddProduct(Weighted(Component::kDense, hidden), Keys(Shared("w_dense", 3), 3));
    }
    if (o_.Has(Component::kFactorizedDense)) Add(FactorizedDense());
    return total_;
  }

  // What attend takes. Without dot products q and k are zeros, whose gradients are zero.
  Tensor Queries() {
    return o_.Has(Component::kDot) ? Weighted(Component::kDot, q_)
                                   : Zeros(q_, &ProblemShape::H, &Lengths::nq);
  }
  Tensor DotKeys() {
    const Tensor k = seqs_.Keys(in_.k);
    return o_.Has(Component::kDot) ? k : Zeros(k, &ProblemShape::Hkv, &Lengths::nk);
  }
  const Tensor& Values() const { return v_; }

 private:
  // A table of `rank` dimensions with a leading one for the parts; empty: zeros.
  Tensor Shared(const std::string& name, int rank) {
    Tensor table = Sent(in_, name);
    if (table.empty() && IsDrawn(name)) {
      std::vector<DrawParams> params;
      std::vector<Shape> shapes;
      for (const ProblemShape& p : in_.problems) {
        const DrawnTable drawn = DrawnOf(name, p, o_);
        params.push_back(drawn.params);
        shapes.push_back(drawn.shape);
      }
      table = SentOrDrawn(ops_, in_, name, params, shapes);
    }
    if (table.empty()) return {};
    return seqs_.Shared(WithRank(ops_, table, rank));
  }

  // c_t x.
  Tensor Weighted(Component component, const Tensor& x) {
    if (weights_.empty() || !ops_.status().ok()) return x;
    const int64_t t = *o_.IndexOf(component);
    return ops_.Apply(ElementOp::kMultiply, x,
                      WithRank(ops_, ops_.Slice(weights_, -1, {t}, {t + 1}), 4));
  }

  // The first nk of an axis of keys.
  Tensor Keys(const Tensor& table, int axis) {
    std::vector<int64_t> end;
    for (const SeqSplit::Part& part : seqs_.parts()) end.push_back(part.lengths.nk);
    return ops_.Slice(table, axis, {0}, end);
  }
  // The table rows of the queries, on axis 2; zeros for queries before row 0, which see no key.
  Tensor Rows(const Tensor& table) {
    if (!ops_.status().ok()) return {};
    std::vector<int64_t> begin, end;
    std::vector<Shape> before;
    bool has_before = false;
    for (const SeqSplit::Part& part : seqs_.parts()) {
      const ProblemShape& p = in_.problems[part.problem];
      const int64_t offset = o_.RowOffset(p.Nq, p.Nk);
      const int64_t missing = std::clamp<int64_t>(-offset, 0, part.lengths.nq);
      const Shape& shape = table[before.size()].shape;
      before.push_back({shape[0], shape[1], missing, shape[3]});
      begin.push_back(std::max<int64_t>(offset, 0));
      end.push_back(begin.back() + part.lengths.nq - missing);
      has_before = has_before || missing > 0;
    }
    const Tensor rows = ops_.Slice(table, 2, begin, end);
    return has_before ? ops_.Concat({ops_.Constant(0, before), rows}, 2) : rows;
  }
  // [1,H|1,n] -> [1,H|1,1,n].
  Tensor AsRow(const Tensor& x) {
    std::vector<Shape> shapes;
    for (size_t p = 0; p < x.size(); ++p) {
      shapes.push_back({x[p].shape[0], x[p].shape[1], 1, x[p].shape[2]});
    }
    return ops_.Reshape(x, shapes);
  }

  void Add(const Tensor& scores) {
    if (total_.empty() || scores.empty()) {
      total_ = total_.empty() ? scores : total_;
    } else {
      total_ = ops_.Apply(ElementOp::kAdd, total_, scores);
    }
  }
  void AddProduct(const Tensor& a, const Tensor& b) { total_ = ops_.MatMul(a, b, {}, total_); }

  // q f + its bias, [B,H,Nq,a].
  Tensor Factor(const std::string& weights, const std::string& bias) {
    const Tensor row = Shared(bias, 2);
    return ops_.MatMul(q_, Shared(weights, 3), {}, row.empty() ? row : AsRow(row));
  }
  // The products of both factors, [B,H,Nq,b,a], with (j div a, j mod a) as one axis.
  Tensor FactorizedDense() {
    const Tensor A = Weighted(Component::kFactorizedDense, Factor("f_a", "fa_b"));
    const Tensor C = Factor("f_b", "fb_b");
    if (!ops_.status().ok()) return {};
    std::vector<Shape> rows, columns, products;
    for (size_t p = 0; p < A.size(); ++p) {
      const Shape& n = A[p].shape;
      const int64_t a = n[3], b = C[p].shape[3];
      rows.push_back({n[0], n[1], n[2], 1, a});
      columns.push_back({n[0], n[1], n[2], b, 1});
      products.push_back({n[0], n[1], n[2], b * a});
    }
    const Tensor all =
        ops_.Apply(ElementOp::kMultiply, ops_.Reshape(A, rows), ops_.Reshape(C, columns));
    return Keys(ops_.Reshape(all, products), 3);
  }

  // The tensor `bias`, cut to the lengths. The branch of a batch decides whether sequences share
  // it.
  Tensor Bias() {
    Tensor bias = Sent(in_, "bias");
    if (bias.empty() || !ops_.status().ok()) return {};
    bias = WithRank(ops_, bias, 4);
    if (bias[0].shape[0] > 1) {
      bias = seqs_.Whole(bias);
    } else {
      std::vector<Shape> shapes;
      for (const Shape& s : ShapesOf(bias)) shapes.push_back({s[1], s[2], s[3]});
      bias = seqs_.Shared(ops_.Reshape(bias, shapes));
    }
    if (!ops_.status().ok()) return {};
    std::vector<int64_t> rows, columns;
    for (size_t i = 0; i < bias.size(); ++i) {
      const Lengths& lengths = seqs_.parts()[i].lengths;
      rows.push_back(bias[i].shape[2] == 1 ? 1 : lengths.nq);
      columns.push_back(bias[i].shape[3] == 1 ? 1 : lengths.nk);
    }
    return ops_.Slice(ops_.Slice(bias, 2, {0}, rows), 3, {0}, columns);
  }

  // [B,heads,rows,1] of zeros; if x was sent, a gradient of zeros flows to it.
  Tensor Zeros(const Tensor& x, int64_t ProblemShape::*heads, int64_t Lengths::*rows) {
    if (!ops_.status().ok()) return {};
    if (!x.empty()) {
      const Tensor zero = NumberLike(ops_, 0, x);
      return ops_.Select(zero, ops_.Slice(x, -1, {0}, {1}), zero);
    }
    std::vector<Shape> shapes;
    for (size_t i = 0; i < v_.size(); ++i) {
      const SeqSplit::Part& part = seqs_.parts()[i];
      const ProblemShape& p = in_.problems[part.problem];
      shapes.push_back({v_[i].shape[0], p.*heads, part.lengths.*rows, 1});
    }
    return ops_.Copy(ops_.Constant(0, shapes));
  }

  Ops& ops_;
  const Inputs& in_;
  const SynthesizerOptions& o_;
  const SeqSplit& seqs_;
  const Tensor q_, v_;
  Tensor weights_;  // [1,C] of each part; empty: ones
  Tensor total_;
};

class Synthesizer : public MethodOf<SynthesizerOptions> {
 public:
  Synthesizer()
      : MethodOf(
            {.id = "synthesizer",
             .summary = "Scores predicted from each query, or learned, in place of dot products",
             .reference = "Tay et al. 2020 (arXiv 2005.00743), section 3",
             .cost = "2 Dv FLOPs per visible pair, and 2 D or 2 rank for its score, n^2 pairs; "
                     "memory O(n^2)",
             .inputs = SynthesizerInputs(),
             .outputs = {{"out", "[B,H,Nq,Dv]", "float", "weighted sums of values"},
                         {"lse", "[B,H,Nq]", "float32",
                          "natural log of the sum of exp(s); -inf: no key"}},
             .support = {.causal = true, .lengths = true, .cross = true, .gqa = true, .lse = true},
             .tensors_with_heads = {"r", "r1"}},
            SynthesizerLines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const SynthesizerOptions& o,
                    Reasons* reasons) const override {
    if (o.components.empty()) return;  // refused
    const SynthesizerSizes sizes(p, o);
    CheckPresence(p, o, reasons);
    CheckSizes(p, o, sizes, reasons);
    if (o.Has(Component::kRandom)) CheckLength(p, "r", sizes, reasons);
    if (o.Has(Component::kFactorizedRandom)) CheckLength(p, "r1", sizes, reasons);
    for (const auto& [name, from_end] : {std::pair("r2", 2), {"w_dense", 1}, {"b_dense", 1}}) {
      const View* view = p.Find(name);
      if (view == nullptr || view->shape.rank < from_end) continue;
      if (view->shape[view->shape.rank - from_end] >= p.Nk) continue;
      reasons->Invalid(name, " shape must have L >= Nk = ", p.Nk, ", got ", ToString(view->shape));
    }
    for (const SynthesizerTable& table : SynthesizerTables()) {
      if (!o.Has(table.of) || !IsDrawn(table.name)) continue;
      const DrawnTable drawn = DrawnOf(table.name, p, o);
      CheckDrawn(p, table.name, drawn.params, drawn.shape, reasons);
    }
  }

  // Sequences that share a bias are computed as one problem where lengths allow it. Where a query
  // lies before the first row of a table, rows are copied.
  std::string BranchOf(const ProblemShape& p, const SynthesizerOptions& o) const override {
    const View* bias = p.Find("bias");
    const bool is_apart = bias != nullptr && bias->shape.rank == 4 && bias->shape[0] > 1;
    const bool has_rows = o.Has(Component::kRandom) || o.Has(Component::kFactorizedRandom);
    const bool is_before = has_rows && o.RowOffset(p.Nq, p.Nk) < 0;
    return absl::StrCat(is_apart ? "bias of B" : "", is_before ? "+before" : "");
  }

  Outputs Formula(Ops& ops, const Inputs& in, const SynthesizerOptions& o) const override {
    const SeqSplit split(ops, in);
    Scores scores(ops, in, o, split);
    AttendTensors terms;
    terms.bias = scores.WithoutDot();
    const Tensor q = scores.Queries(), k = scores.DotKeys();
    if (!ops.status().ok()) return {};
    const double D = static_cast<double>(in.problems[0].D);
    const double scale = o.Has(Component::kDot) ? o.scale.value_or(1 / std::sqrt(D)) : 1;
    const AttendOut attended = ops.Attend(q, k, scores.Values(), {.scale = scale},
                                          {Seqs(ops, in, o, split)}, terms, in.v[0].dtype);
    const int64_t Dv = in.problems[0].Dv;
    return {.out = split.JoinOut(attended.out, Dv), .lse = split.JoinLse(attended.lse)};
  }

 private:
  static void CheckPresence(const ProblemShape& p, const SynthesizerOptions& o, Reasons* reasons) {
    if (p.Find("q") == nullptr && o.ReadsQ()) {
      reasons->Invalid(
          "q is required with the components dense, factorized_dense and dot, got none");
    }
    if (p.Find("k") == nullptr && o.Has(Component::kDot)) {
      reasons->Invalid("k is required with the component dot, got none");
    }
    for (const SynthesizerTable& table : SynthesizerTables()) {
      const View* view = p.Find(table.name);
      if (view == nullptr || o.Has(table.of)) continue;
      reasons->Invalid(table.name, " needs the component ",
                       ComponentNames()[static_cast<size_t>(table.of)], ", got ",
                       ToString(view->shape));
    }
    if (const View* view = p.Find("mix_logits"); view != nullptr && o.mix == Mix::kSum) {
      reasons->Invalid("mix_logits needs mix = softmax, got ", ToString(view->shape));
    }
    if (p.Find("q") == nullptr && p.Hkv > 0 && p.H % p.Hkv != 0) {
      reasons->Invalid("H must be a multiple of Hkv, got H = ", p.H, " and Hkv = ", p.Hkv);
    }
  }

  static void CheckSizes(const ProblemShape& p, const SynthesizerOptions& o,
                         const SynthesizerSizes& sizes, Reasons* reasons) {
    CheckShapes(p, SynthesizerInputs(),
                {{"R", sizes.rank, "rank"},
                 {"a", sizes.a},
                 {"b", sizes.b},
                 {"C", static_cast<int64_t>(o.components.size()), "number of components"}},
                reasons);
    CheckSameSize("rank", o.rank, "r1 and r2", sizes.rank, reasons);
    if (const View* r = p.Find("r");
        r != nullptr && r->shape.rank == 3 && r->shape[1] != r->shape[2]) {
      reasons->Invalid("r shape must be [H,L,L], got ", ToString(r->shape));
    }
    if (!o.Has(Component::kFactorizedDense)) return;
    if (p.Find("f_a") != nullptr) {
      CheckSameSize("a", o.a, "f_a", sizes.a, reasons);
    } else if (o.a.has_value() && *o.a > std::max<int64_t>(p.Nk, 1)) {
      reasons->Invalid("a must be in 1..Nk = 1..", p.Nk, ", got ", *o.a);
    }
    if (o.a == 0) return;  // refused
    const int64_t least = sizes.a < 1 ? 1 : p.Nk / sizes.a + (p.Nk % sizes.a > 0);
    if (sizes.a < 1 || sizes.b < least) {
      reasons->Invalid("a * b must be >= Nk = ", p.Nk, ", got ", sizes.a, " * ", sizes.b);
    }
  }

  // Of a table with rows of queries.
  static void CheckLength(const ProblemShape& p, absl::string_view name,
                          const SynthesizerSizes& sizes, Reasons* reasons) {
    const int64_t least = std::max(p.Nk, sizes.rows);
    if (const View* view = p.Find(name)) {
      if (view->shape.rank != 3 || view->shape[1] >= least) return;
      reasons->Invalid(name, " shape must have L >= max(Nk, Nq + row_offset) = ", least, ", got ",
                       ToString(view->shape));
    } else if (sizes.rows > p.Nk) {
      reasons->Invalid(name, " must be sent where Nq + row_offset > Nk = ", p.Nk, ", got ",
                       sizes.rows);
    }
  }

  static AttendSeqs Seqs(Ops& ops, const Inputs& in, const SynthesizerOptions& o,
                         const SeqSplit& split) {
    AttendSeqs seqs;
    for (const SeqSplit::Part& part : split.parts()) {
      const ProblemShape& p = in.problems[part.problem];
      const Lengths& n = part.lengths;
      AttendSeq seq = ops.Seq(
          n.nq, n.nk,
          AllKeys(
              {.Nq = n.nq, .Nk = n.nk, .lengths = n, .offset = p.Nk - p.Nq, .causal = o.causal}));
      seq.offset = p.Nk - p.Nq;
      AddSeqs(ops, seq, part.count, &seqs.emplace_back());
    }
    return seqs;
  }
};

}  // namespace

ATTND_METHOD(synthesizer, Synthesizer)

}  // namespace attnd
