// Compressive Transformer (Rae et al. 2019, algorithms 1 and 2): attention of transformer_xl over
// [cmem; mem; segment], a row of the compressed memory being one step of distance. After a segment
// of N rows the e = c floor(max(0, Nm + N - mem_len) / c) oldest rows of [mem; segment] leave, and
// e/c rows that stand for them join cmem (kernels/methods/memory/compress.h), which keeps the last
// cmem_len rows; an empty segment changes nothing.
//   A(q, X) = softmax(scale q X_K^T) X_V
//   aux = mean over H, N, Dv of (A(q, old) - A(q, compressed))^2
// whose gradient reaches the tensors of the compressor alone; memories are constants.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/method/common_inputs.h"
#include "kernels/methods/lowrank/rows.h"
#include "kernels/methods/memory/compress.h"
#include "kernels/methods/memory/next.h"

namespace attnd {
namespace {

using O = MemoryOptions;

std::vector<OptionSpec<O>> Lines() {
  constexpr int64_t kMostTaps = 65536;
  std::vector<OptionSpec<O>> lines = {
      ReadIf(
          "return_memory or aux_loss is true",
          [](const O& o) { return o.return_memory || o.aux_loss; },
          EnumOption("compression", &O::compression,
                     {"mean", "max", "conv", "dilated_conv", "most_used"},
                     "how rows that leave the memory are compressed")),
      ReadIf(
          "return_memory or aux_loss is true",
          [](const O& o) { return o.return_memory || o.aux_loss; },
          IntOption("rate", &O::rate, {.min = 1, .max = int64_t{1} << 30},
                    "c, rows that one compressed row stands for")),
      ReadIf(
          "return_memory or aux_loss is true",
          [](const O& o) { return o.return_memory || o.aux_loss; },
          IntOption("mem_len", &O::mem_len, {.min = 0}, "N",
                    "rows that the memory keeps; up to rate - 1 more wait until they fill a row")),
      ReadIf(
          "return_memory is true", [](const O& o) { return o.return_memory; },
          IntOption("cmem_len", &O::cmem_len, {.min = 0}, "mem_len / rate",
                    "rows that the compressed memory keeps")),
      ReadIf(
          "compression is dilated_conv",
          [](const O& o) { return o.compression == Compression::kDilatedConv; },
          IntOption("kernel", &O::kernel, {.min = 1, .max = kMostTaps}, "rate",
                    "rows that a row of dilated_conv reads")),
      ReadIf(
          "compression is dilated_conv",
          [](const O& o) { return o.compression == Compression::kDilatedConv; },
          IntOption("dilation", &O::dilation, {.min = 1, .max = kMostTaps},
                    "steps between the rows that dilated_conv reads")),
      BoolOption("aux_loss", &O::aux_loss,
                 "also answer how far attention over compressed rows is from that over the rows")};
  const auto keeps_nothing = [](const O& o) {
    return o.mem_len == 0 && o.cmem_len.value_or(0) == 0;
  };
  for (OptionSpec<O>& line : MemoryLines(keeps_nothing)) lines.push_back(std::move(line));
  return lines;
}

std::vector<TensorInfo> Tensors() {
  std::vector<TensorInfo> inputs = MemoryInputs();
  inputs.push_back(
      Differentiable("cmem_k", "[B,Hkv,Nc,D]", "compressed keys before mem_k; M counts them"));
  inputs.push_back(Differentiable("cmem_v", "[B,Hkv,Nc,Dv]", "their values"));
  inputs.push_back({"cmem_lengths", "[B]", "int32", "0..Nc: the oldest rows beyond do not count"});
  for (TensorInfo& conv : ConvInputs()) inputs.push_back(std::move(conv));
  return inputs;
}

std::vector<TensorInfo> Results() {
  std::vector<TensorInfo> outputs = {
      {"out", "[B,H,Nq,Dv]", "float", "weighted sums of values"},
      {"lse", "[B,H,Nq]", "float32", "natural log of the sum of weights; -inf: nothing is seen"},
      {"aux", "[1]", "float32",
       "with aux_loss: mean square over the queries of sequences that compress rows"}};
  for (const auto& [name, rows] : {std::pair("mem", "M'"), std::pair("cmem", "Nc'")}) {
    for (TensorInfo& memory : MemoryOutputs(name, rows)) outputs.push_back(std::move(memory));
  }
  return outputs;
}

// Rows of [mem; segment] that leave. `all`: N of the whole tensors.
int64_t Evicted(int64_t mem, int64_t n, int64_t all, const O& o) {
  if (n == 0) return 0;
  return std::max<int64_t>(0, mem + n - o.mem_len.value_or(all)) / o.rate * o.rate;
}

// Rows of the next compressed memory.
int64_t NextCompressed(const SeqGroup& seq, int64_t all, const O& o) {
  if (seq.lengths.nk == 0) return seq.cmem;
  const int64_t joined = seq.cmem + Evicted(seq.mem, seq.lengths.nk, all, o) / o.rate;
  return std::min(joined, o.cmem_len.value_or(o.mem_len.value_or(all) / o.rate));
}

SeqGroup GroupOf(const SeqSplit::Part& part) {
  return {.lengths = part.lengths, .count = part.count, .mem = part.mem, .cmem = part.cmem};
}

class Compressive : public MethodOf<O> {
 public:
  Compressive()
      : MethodOf(
            {.id = "compressive",
             .summary = "A segment, a memory of earlier ones and a compressed one; always causal",
             .reference = "Rae et al. 2019 (arXiv 1911.05507), algorithms 1 and 2",
             .cost = "2 (2 D + Dv) FLOPs per visible pair, n (M + n) pairs; conv n (D^2 + Dv^2); "
                     "memory O(M + n)",
             .inputs = Tensors(),
             .outputs = Results(),
             .support = {.causal = true, .lengths = true, .gqa = true, .lse = true}},
            Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const O& o, Reasons* reasons) const override {
    CheckMemory(p, o, info().inputs, reasons);
    CheckMemoryOf(p, "cmem", "Nc", reasons);
    CheckConv(p, o, info().inputs, reasons);
    if (const View* grad = p.Find("grad_aux"); grad != nullptr && !o.aux_loss) {
      reasons->Invalid("grad_aux needs aux_loss, got aux_loss = false");
    }
  }

  Outputs Formula(Ops& ops, const Inputs& in, const O& o) const override {
    const SeqSplit split(ops, in, kPlannedProblems, QueryRows::kLikeKeys);
    const MemoryAttention attended = AttendMemory(ops, in, split, o);
    if (!ops.status().ok()) return {};
    Outputs outputs = OutputsOf(in, split, attended, o);
    const bool wants_memory = o.return_memory && !ops.wants_gradients_alone();
    const bool wants_aux = o.aux_loss && (o.convolves() || !ops.wants_gradients_alone());
    if (!wants_memory && !wants_aux) return outputs;
    std::vector<int64_t> rows;
    for (const SeqSplit::Part& part : split.parts()) {
      rows.push_back(Evicted(part.mem, part.lengths.nk, in.problems[part.problem].Nk, o));
    }
    const Compressed compressed = CompressOldest(ops, in, split, attended, rows, o);
    if (wants_aux) outputs.extra["aux"] = Aux(ops, in, split, compressed, rows, attended.params);
    if (wants_memory) AddMemories(ops, in, split, attended, compressed, rows, o, &outputs);
    return outputs;
  }

 private:
  static Tensor Aux(Ops& ops, const Inputs& in, const SeqSplit& split, const Compressed& c,
                    const std::vector<int64_t>& rows, const AttendParams& params) {
    const Tensor q = ops.Stop(split.Queries(in.q));
    std::vector<int64_t> compressed;
    for (size_t i = 0; i < rows.size() && ops.status().ok(); ++i) {
      compressed.push_back(c.k[i].shape[2]);
    }
    // The visible pairs of a request are those of its attention.
    const double pairs = ops.stream().work().visible_pairs;
    const auto attend = [&](const Tensor& k, const Tensor& v, const std::vector<int64_t>& keys) {
      return ops
          .Attend(q, k, v, params, std::vector<AttendSeqs>{AllPairs(ops, q, keys)}, {}, DType::kF32)
          .out;
    };
    const Tensor of_old = attend(c.old_k, c.old_v, rows);
    const Tensor of_new = attend(c.k, c.v, compressed);
    ops.stream().work().visible_pairs = pairs;
    Tensor sum = ops.Apply(ElementOp::kSquare, ops.Apply(ElementOp::kSubtract, of_new, of_old));
    for (const int axis : {3, 2, 1}) sum = ops.Reduce(ReduceOp::kSum, sum, axis);
    std::vector<Shape> batch, one;
    std::vector<std::vector<float>> factors;
    std::vector<int64_t> queries(in.problems.size(), 0);
    for (size_t i = 0; i < rows.size(); ++i) {
      const SeqSplit::Part& part = split.parts()[i];
      if (rows[i] > 0) queries[part.problem] += part.lengths.nq * part.count;
    }
    for (size_t p = 0; p < in.problems.size(); ++p) {
      const ProblemShape& problem = in.problems[p];
      const auto terms = static_cast<double>(queries[p] * problem.H * problem.Dv);
      batch.push_back({problem.B, 1, 1, 1});
      one.push_back({1});
      factors.push_back({terms > 0 ? static_cast<float>(1 / terms) : 0.0f});
    }
    const Tensor sums = ops.Reduce(ReduceOp::kSum, split.Join(sum, batch), 0);
    if (!ops.status().ok()) return {};
    return ops.Apply(ElementOp::kMultiply, ops.Reshape(sums, one),
                     ops.FromHost(one, std::move(factors)));
  }

  static void AddMemories(Ops& ops, const Inputs& in, const SeqSplit& split,
                          const MemoryAttention& attended, const Compressed& c,
                          const std::vector<int64_t>& rows, const O& o, Outputs* outputs) {
    std::vector<int64_t> zero(rows.size(), 0), begin, end, old_begin, old_end, new_begin, new_end;
    for (size_t i = 0; i < rows.size(); ++i) {
      const SeqSplit::Part& part = split.parts()[i];
      begin.push_back(part.cmem + rows[i]);
      end.push_back(part.cmem + part.mem + part.lengths.nk);
      new_end.push_back(rows[i] / o.rate);
      const int64_t kept = NextCompressed(GroupOf(part), in.problems[part.problem].Nk, o);
      new_begin.push_back(std::max<int64_t>(0, new_end.back() - kept));
      old_end.push_back(part.cmem);
      old_begin.push_back(part.cmem - (kept - (new_end.back() - new_begin.back())));
    }
    AddNextMemory(ops, in, split,
                  {.name = "mem",
                   .k = {{attended.k, begin, end}},
                   .v = {{attended.v, begin, end}},
                   .rows =
                       [&](const ProblemShape& p, const SeqGroup& seq) {
                         const int64_t n = seq.lengths.nk;
                         return seq.mem + n - Evicted(seq.mem, n, p.Nk, o);
                       }},
                  &outputs->extra);
    AddNextMemory(ops, in, split,
                  {.name = "cmem",
                   .k = {{attended.k, old_begin, old_end}, {c.k, new_begin, new_end}},
                   .v = {{attended.v, old_begin, old_end}, {c.v, new_begin, new_end}},
                   .rows = [&](const ProblemShape& p,
                               const SeqGroup& seq) { return NextCompressed(seq, p.Nk, o); }},
                  &outputs->extra);
  }
};

}  // namespace

ATTND_METHOD(compressive, Compressive)

}  // namespace attnd
