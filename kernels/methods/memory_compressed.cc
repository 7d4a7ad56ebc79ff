// Memory-compressed attention (Liu et al. 2018, section 4.2.4). Layer memory: a convolution of f
// rows makes cells of the keys and values, and the queries attend to these:
//   K'_ce = conv_bk_e + sum_{r < f, d} conv_wk_edr K_(cf - P + r),d,  V' likewise
//   out = softmax([scale q null_k, scale q K'^T + bias]) [null_v, V']
// Rows outside of the n = kv_lengths[b] keys are 0; P = -n mod f with pad left, else 0; with drop
// there are floor(n / f) cells, else ceil(n / f). first_key puts k_0, v_0 in the place of the null
// key. Causal, i sees cell c if its last row (c + 1) f - 1 - P is at (strict: before) i + Nk - Nq
// or earlier. Layer local: i sees j where floor((i + Nk - Nq) / block) = floor(j / block).
// q [B,H,Nq,D], k [B,Hkv,Nk,D], v [B,Hkv,Nk,Dv]; query head h reads kv head h / (H/Hkv).
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/method/drawn.h"
#include "kernels/method/inner_problems.h"
#include "kernels/method/method.h"
#include "kernels/method/seq_split.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/memory_compressed/options.h"
#include "kernels/methods/pattern/seqs.h"
#include "kernels/ops/ops.h"
#include "kernels/pattern/shapes/compressed.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

using O = MemoryCompressedOptions;

class MemoryCompressed : public MethodOf<O> {
 public:
  MemoryCompressed()
      : MethodOf(
            {.id = "memory_compressed",
             .summary = "Keys and values shortened by a strided convolution, or blocks of keys",
             .reference = "Liu et al. 2018 (arXiv 1801.10198), section 4.2.4",
             .cost = "2 (D + Dv) FLOPs per visible pair, n^2 / f or n block pairs, and 2 n (D^2 + "
                     "Dv^2) per kv head; memory O(n)",
             .inputs = MemoryCompressedInputs(),
             .outputs = {{"out", "[B,H,Nq,Dv]", "float", "weighted sums of values"},
                         {"lse", "[B,H,Nq]", "float32",
                          "natural log of the sum of weights; -inf: nothing is seen"}},
             .support = {.causal = true, .lengths = true, .cross = true, .gqa = true, .lse = true}},
            MemoryCompressedLines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const O& o, Reasons* reasons) const override {
    CheckMemoryCompressed(p, o, reasons);
  }

  bool FollowsPositions(const ProblemShape&, const O& o) const override {
    return o.causal || o.IsLocal();
  }

  // One launch of a convolution has one width.
  std::string BranchOf(const ProblemShape& p, const O& o) const override {
    return o.IsLocal() ? "" : absl::StrCat("f=", FactorOf(p, o));
  }

  Outputs Formula(Ops& ops, const Inputs& in, const O& o) const override {
    return o.IsLocal() ? InBlocks(ops, in, o) : OverCells(ops, in, o);
  }

 private:
  static AttendParams ParamsOf(const Inputs& in, const O& o) {
    return {.scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(in.problems[0].D)))};
  }
  static AttendTensors Terms(Ops& ops, const Inputs& in) {
    const Tensor bias = Sent(in, "bias");
    return {.bias = bias.empty() ? bias : WithRank(ops, bias, 4)};
  }

  static Outputs InBlocks(Ops& ops, const Inputs& in, const O& o) {
    const PatternSeqs seqs = SeqsOf(ops, in, o.causal, {}, [&](const SeenSeq& seq) {
      const BlockBand band{.block = o.block, .offset = seq.offset, .causal = seq.causal};
      return AllHeads(BlockBandSource(seq.Nq, seq.Nk, band, seq.lengths));
    });
    const AttendTensors terms = Terms(ops, in);
    if (!ops.status().ok()) return {};
    const AttendOut made = ops.Attend(in.q, in.k, in.v, ParamsOf(in, o), seqs.parts[0], terms);
    return {.out = made.out, .lse = made.lse};
  }

  static Outputs OverCells(Ops& ops, const Inputs& in, const O& o) {
    const Tensor k = Cells(ops, in, o, kConvOfKeys);
    const Tensor v = Cells(ops, in, o, kConvOfValues);
    AttendTensors terms = Terms(ops, in);
    const AttendSeqs seqs = CellSeqs(ops, in, o);
    if (!ops.status().ok()) return {};
    const bool has_null = o.HasNull() && !(Sent(in, kConvOfKeys.null).empty() &&
                                           Sent(in, kConvOfValues.null).empty());
    if (o.HasNull() && !has_null) {
      // A null key and value of zeros: a score of 0 and nothing to add.
      std::vector<Shape> shapes;
      for (const ProblemShape& p : in.problems) shapes.push_back({1, p.H});
      terms.sinks = ops.Constant(0, shapes);
    }
    const bool has_first = has_null || o.first_key;
    const DType dtype = has_first ? DType::kF32 : in.q[0].dtype;
    AttendOut made = ops.Attend(in.q, k, v, ParamsOf(in, o), {seqs}, terms, dtype);
    if (has_first) made = ops.Merge({made, FirstKey(ops, in, o)}, in.q[0].dtype);
    return {.out = made.out, .lse = made.lse};
  }

  // What each sequence sees of its cells.
  static AttendSeqs CellSeqs(Ops& ops, const Inputs& in, const O& o) {
    PatternSeqs seqs = SeqsOf(ops, in, o.causal, {}, [&](const SeenSeq& seq) {
      const int64_t f = FactorOf(seq.problem, o);
      const CellRows rows = CellsOf(seq.lengths.nk, f, o.pad);
      PatternSeq cells = seq;
      cells.Nk = CellsOf(seq.Nk, f, o.pad).cells * f;
      cells.lengths.nk = rows.cells * f;
      cells.offset += rows.front;
      return AllHeads(
          CompressedSource(cells, {.length = f, .completed = o.rule == CellRule::kInclusive}));
    });
    if (!ops.status().ok()) return {};
    for (size_t p = 0; p < in.problems.size(); ++p) {
      const int64_t f = FactorOf(in.problems[p], o);
      for (AttendSeq& seq : seqs.parts[0][p]) seq.nk = CellsOf(seq.nk, f, o.pad).cells;
    }
    return seqs.parts[0];
  }

  // Attention to the null key or to row 0 alone.
  static AttendOut FirstKey(Ops& ops, const Inputs& in, const O& o) {
    InnerProblems problems(in);
    if (!o.first_key) problems.DropLengths("kv_lengths");
    for (size_t p = 0; p < in.problems.size(); ++p) {
      problems[p].Nk = o.first_key ? std::min<int64_t>(in.problems[p].Nk, 1) : 1;
    }
    problems.SetLengths("kv_lengths", [&](size_t p, int64_t b) {
      return std::min<int64_t>(in.problems[p].Int("kv_lengths", b, 1), 1);
    });
    ops.stream().work().host_bytes += problems.host_bytes();
    const PatternSeqs seqs = SeqsOf(ops, problems.inputs(), /*causal=*/false, {},
                                    [](const SeenSeq& seq) { return AllHeads(AllKeys(seq)); });
    const Tensor k = FirstRow(ops, in, o, kConvOfKeys), v = FirstRow(ops, in, o, kConvOfValues);
    if (!ops.status().ok()) return {};
    return ops.Attend(in.q, k, v, ParamsOf(in, o), seqs.parts, {}, DType::kF32);
  }

  // [B,Hkv,1,D] of row 0 or [B,H,1,D] of the null key.
  static Tensor FirstRow(Ops& ops, const Inputs& in, const O& o, const ConvNames& of) {
    const Tensor& x = of.is_of_keys ? in.k : in.v;
    std::vector<int64_t> first;
    std::vector<Shape> apart, whole;
    for (const ProblemShape& p : in.problems) {
      const int64_t size = of.is_of_keys ? p.D : p.Dv;
      first.push_back(std::min<int64_t>(p.Nk, 1));
      apart.push_back({1, p.H, 1, size});
      whole.push_back({p.B, p.H, 1, size});
    }
    if (o.first_key) return ops.Slice(x, 2, {0}, first);
    const Tensor sent = Sent(in, of.null);
    if (!sent.empty()) return ops.Expand(ops.Reshape(sent, apart), whole);
    return ops.Copy(ops.Constant(0, whole));
  }

  // [B,Hkv,cells,D] of the keys or of the values, float32. All sequences are one product, since
  // they share the weights: cells beyond those of a sequence are not seen.
  static Tensor Cells(Ops& ops, const Inputs& in, const O& o, const ConvNames& of) {
    const ConvNames& conv = o.share_conv ? kConvOfKeys : of;
    std::vector<DrawParams> weight_draws, bias_draws;
    std::vector<Shape> weights, biases;
    std::vector<int64_t> columns;
    const int64_t f = FactorOf(in.problems[0], o);
    for (const ProblemShape& p : in.problems) {
      const int64_t size = of.is_of_keys ? p.D : p.Dv;
      const double limit = 1 / std::sqrt(static_cast<double>(size * f));
      weight_draws.push_back(UniformDraw(o.seed, conv.weight, limit));
      bias_draws.push_back(UniformDraw(o.seed, conv.bias, limit));
      weights.push_back({p.Hkv, size, size, f});
      biases.push_back({p.Hkv, size});
      columns.push_back(CellsOf(p.Nk, f, o.pad).cells);
    }
    const Tensor x = Aligned(ops, in, o, of.is_of_keys ? in.k : in.v);
    const Tensor weight = SentOrDrawn(ops, in, conv.weight, weight_draws, weights);
    const Tensor bias = SentOrDrawn(ops, in, conv.bias, bias_draws, biases);
    if (!ops.status().ok()) return {};
    return ops.Conv1d(x, WithRank(ops, weight, 5), WithRank(ops, bias, 3),
                      {.stride = f, .columns = columns});
  }

  // x with the rows of each sequence where its cells read them, and zeros around.
  static Tensor Aligned(Ops& ops, const Inputs& in, const O& o, const Tensor& x) {
    const int64_t f = FactorOf(in.problems[0], o);
    InnerProblems problems(in);
    problems.DropLengths("q_lengths");
    const Inputs keys = problems.inputs();
    const SeqSplit seqs(ops, keys);
    Tensor rows = seqs.Keys(x);
    if (!ops.status().ok()) return {};
    if (o.pad == CellPad::kLeft) {
      std::vector<Shape> fronts;
      for (size_t i = 0; i < rows.size(); ++i) {
        fronts.push_back(rows[i].shape);
        fronts.back().dims[2] = CellsOf(seqs.parts()[i].lengths.nk, f, o.pad).front;
      }
      rows = ops.Concat({ops.Constant(0, fronts), rows}, 2);
    }
    std::vector<Shape> whole = ShapesOf(x);
    for (Shape& shape : whole) {
      const CellRows all = CellsOf(shape[2], f, o.pad);
      shape.dims[2] = o.pad == CellPad::kDrop ? shape[2] : all.cells * f;
    }
    return seqs.Join(rows, whole);
  }
};

}  // namespace

ATTND_METHOD(memory_compressed, MemoryCompressed)

}  // namespace attnd
