// Transformer-XL (Dai et al. 2019, sections 3.2-3.3 and appendix B): a segment of N tokens attends
// to a memory of M earlier rows and to itself. With K = [mem_k; k], V = [mem_v; v], distance
// d = i + M - j and d' = min(d, clamp_len):
//   s_ij = scale ((q_i + u) . K_j + (q_i + v_bias) . r(d')) + bias_ij   for 0 <= d (< same_length)
//   out = softmax(s) V;  r(d) = rel_k[d], or w_r e(d) with the sinusoids e
// The next memory is rows [beg, end) of K and V: end = M + max(0, N - ext_len),
// beg = max(0, end - mem_len); an empty segment leaves it as it is. q [B,H,N,D], k [B,Hkv,N,D],
// v [B,Hkv,N,Dv]; query head h reads kv head h / (H/Hkv).
#include <algorithm>

#include "kernels/methods/memory/next.h"
#include "kernels/methods/memory/relative.h"

namespace attnd {
namespace {

using O = MemoryOptions;

std::vector<OptionSpec<O>> Lines() {
  std::vector<OptionSpec<O>> lines = {
      ReadIf(
          "return_memory is true", [](const O& o) { return o.return_memory; },
          IntOption("mem_len", &O::mem_len, {.min = 0}, /*usual=*/0,
                    "rows that the returned memory keeps at most")),
      ReadIf(
          "return_memory is true", [](const O& o) { return o.return_memory; },
          IntOption("ext_len", &O::ext_len, {.min = 0},
                    "the newest rows of the segment, which the returned memory leaves out"))};
  for (OptionSpec<O>& line : MemoryLines([](const O& o) { return o.mem_len.value_or(0) == 0; }))
    lines.push_back(std::move(line));
  return lines;
}

std::vector<TensorInfo> Results() {
  std::vector<TensorInfo> outputs = {
      {"out", "[B,H,Nq,Dv]", "float", "weighted sums of values"},
      {"lse", "[B,H,Nq]", "float32", "natural log of the sum of weights; -inf: nothing is seen"}};
  for (TensorInfo& memory : MemoryOutputs("mem", "M'")) outputs.push_back(std::move(memory));
  return outputs;
}

// The rows of `mem` rows of memory and `n` of the segment that are the next memory.
struct Rows {
  int64_t begin, end;
};
Rows NextRows(int64_t mem, int64_t n, const O& o) {
  if (n == 0) return {0, mem};
  const int64_t end = mem + std::max<int64_t>(0, n - o.ext_len);
  return {std::max<int64_t>(0, end - o.mem_len.value_or(0)), end};
}

class TransformerXl : public MethodOf<O> {
 public:
  TransformerXl()
      : MethodOf({.id = "transformer_xl",
                  .summary = "A segment and a memory of earlier ones, with scores by distance; "
                             "always causal",
                  .reference = "Dai et al. 2019 (arXiv 1901.02860), sections 3.2-3.3",
                  .cost = "2 (2 D + Dv) FLOPs per visible pair, n (M + n) pairs; memory O(M + n)",
                  .inputs = MemoryInputs(),
                  .outputs = Results(),
                  .support = {.causal = true, .lengths = true, .gqa = true, .lse = true}},
                 Lines()) {}

 protected:
  void CheckProblem(const ProblemShape& p, const O& o, Reasons* reasons) const override {
    CheckMemory(p, o, info().inputs, reasons);
  }

  Outputs Formula(Ops& ops, const Inputs& in, const O& o) const override {
    const SeqSplit split(ops, in, kPlannedProblems, QueryRows::kLikeKeys);
    const MemoryAttention attended = AttendMemory(ops, in, split, o);
    if (!ops.status().ok()) return {};
    Outputs outputs = OutputsOf(in, split, attended, o);
    if (!o.return_memory || ops.wants_gradients_alone()) return outputs;
    std::vector<int64_t> begin, end;
    for (const SeqSplit::Part& part : split.parts()) {
      const Rows rows = NextRows(part.mem, part.lengths.nk, o);
      begin.push_back(rows.begin);
      end.push_back(rows.end);
    }
    AddNextMemory(ops, in, split,
                  {.name = "mem",
                   .k = {{attended.k, begin, end}},
                   .v = {{attended.v, begin, end}},
                   .rows =
                       [&](const ProblemShape&, const SeqGroup& seq) {
                         const Rows rows = NextRows(seq.mem, seq.lengths.nk, o);
                         return rows.end - rows.begin;
                       }},
                  &outputs.extra);
    return outputs;
  }
};

}  // namespace

ATTND_METHOD(transformer_xl, TransformerXl)

}  // namespace attnd
