#include "kernels/methods/memory/relative.h"

#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/core/integer.h"
#include "kernels/method/drawn.h"
#include "kernels/method/tensors.h"
#include "kernels/methods/memory/sinusoids.h"
#include "kernels/pattern/shapes/windows.h"

namespace attnd {
namespace {

using O = MemoryOptions;

// Rows of memory before the segment of a part.
int64_t Before(const SeqSplit::Part& part) { return part.cmem + part.mem; }

// [cmem; mem; segment] of keys ("k") or values ("v").
Tensor AllRowsOf(Ops& ops, const Inputs& in, const SeqSplit& split, const O& o, const char* of) {
  const auto memory = [&](const char* name, int64_t SeqSplit::Part::*rows) {
    const Tensor sent = Sent(in, absl::StrCat(name, of));
    return split.Memory(o.grad_memory || sent.empty() ? sent : ops.Stop(sent), rows);
  };
  std::vector<Tensor> parts;
  for (const Tensor& x :
       {memory("cmem_", &SeqSplit::Part::cmem), memory("mem_", &SeqSplit::Part::mem),
        split.Keys(*of == 'k' ? in.k : in.v)}) {
    if (!x.empty()) parts.push_back(x);
  }
  if (!ops.status().ok()) return {};
  return parts.size() == 1 ? parts[0] : ops.Concat(parts, 2);
}

// [1,H,1,D] of each part: u or v_bias.
Tensor HeadBias(Ops& ops, const Inputs& in, const SeqSplit& split, const O& o, const char* name) {
  std::vector<Shape> shapes, apart;
  for (const ProblemShape& p : in.problems) {
    shapes.push_back({p.H, p.D});
    apart.push_back({p.H, 1, p.D});
  }
  const Tensor bias = SentOrDrawn(ops, in, name, RelativeDraw(o.seed, name), shapes);
  return ops.status().ok() ? split.Shared(ops.Reshape(bias, apart)) : Tensor();
}

// r [H,R,D] of each problem.
Tensor Distances(Ops& ops, const Inputs& in, const O& o) {
  std::vector<int64_t> rows, sizes, half;
  std::vector<Shape> shapes;
  for (const ProblemShape& p : in.problems) {
    rows.push_back(DistancesOf(p, o));
    sizes.push_back(WaveSize(p));
    half.push_back(sizes.back() / 2);
    shapes.push_back({p.H, p.D, sizes.back()});
  }
  if (const Tensor sent = Sent(in, "rel_k"); !sent.empty()) return ops.Slice(sent, 1, {0}, rows);
  const Tensor w = SentOrDrawn(ops, in, "w_r", RelativeDraw(o.seed, "w_r"), shapes);
  const Sinusoids e = SinusoidsOf(ops, rows, sizes);
  if (!ops.status().ok()) return {};
  const Tensor of_sines = ops.Transpose(ops.Slice(w, 2, {0}, half), 1, 2);
  const Tensor of_cosines = ops.Transpose(ops.Slice(w, 2, half, sizes), 1, 2);
  return ops.MatMul(e.cosines, of_cosines, {}, ops.MatMul(e.sines, of_sines));
}

// bias [B|1,H|1,Nq|1,K|1] as each part sees it, not cut.
Tensor PartsOfBias(Ops& ops, const Inputs& in, const SeqSplit& split, const Tensor& bias) {
  std::vector<Shape> without_batch;
  RowCuts cuts;
  bool is_shared = true, is_whole = true;
  for (size_t p = 0; p < bias.size(); ++p) {
    const Shape& s = bias[p].shape;
    is_shared = is_shared && s[0] == 1;
    is_whole = is_whole && s[0] == in.problems[p].B;
    without_batch.push_back({s[1], s[2], s[3]});
    cuts.push_back({0});
    for (const int64_t count : split.counts()[p]) {
      cuts.back().push_back(cuts.back().back() + count);
    }
  }
  if (is_shared) return split.Shared(ops.Reshape(bias, without_batch));
  // Of a list in which some problems have one bias for the batch and others one a sequence.
  return is_whole ? split.Whole(bias) : ops.SplitRows(bias, 0, cuts);
}

// The part of every sequence of bias, with the columns of its own rows.
Tensor Bias(Ops& ops, const Inputs& in, const SeqSplit& split) {
  constexpr int kRows = 2, kColumns = 3;
  const Tensor sent = Sent(in, "bias");
  if (sent.empty()) return sent;
  const Tensor whole = WithRank(ops, sent, 4);
  if (!split.is_split() || !ops.status().ok()) return whole;
  const Tensor parts = PartsOfBias(ops, in, split, whole);
  if (!ops.status().ok()) return {};
  std::vector<int64_t> rows, compressed, compressed_end, begin, end;
  for (size_t i = 0; i < split.parts().size(); ++i) {
    const SeqSplit::Part& part = split.parts()[i];
    const ProblemShape& p = in.problems[part.problem];
    const Shape& s = parts[i].shape;
    const int64_t Nc = MemoryRows(p, "cmem_k"), M = MemoryRows(p, "mem_k");
    rows.push_back(s[kRows] == 1 ? 1 : part.lengths.nq);
    const bool repeats = s[kColumns] == 1;
    compressed.push_back(repeats ? 0 : Nc - part.cmem);
    compressed_end.push_back(repeats ? 0 : Nc);
    begin.push_back(repeats ? 0 : Nc + M - part.mem);
    end.push_back(repeats ? 1 : Nc + M + part.lengths.nk);
  }
  const Tensor own = ops.Slice(parts, kRows, {0}, rows);
  const Tensor latest = ops.Slice(own, kColumns, begin, end);
  if (!in.tensors.contains("cmem_k")) return latest;
  return ops.Concat({ops.Slice(own, kColumns, compressed, compressed_end), latest}, kColumns);
}

// What a part sees. The pattern is that of a whole segment after as many rows of memory.
AttendSeq SeenBy(Ops& ops, const SeqSplit::Part& part, int64_t N, const O& o) {
  const int64_t before = Before(part), keys = before + part.lengths.nk;
  const int64_t first = o.same_length > 0 ? before - o.same_length + 1 : kUnbounded;
  AttendSeq seq = ops.Seq(part.lengths.nq, keys,
                          BandSource(N, before + N, first, before, Lengths{part.lengths.nq, keys}));
  seq.offset = before;
  return seq;
}

// A run needs a pattern for each number of rows of memory, of which a part of a plan may stand for
// many. `charged`: of one pattern a part.
void ChargePatterns(Ops& ops, const Inputs& in, const SeqSplit& split, const HostCost& charged) {
  std::set<int64_t> rows;
  for (const ProblemShape& p : in.problems) {
    for (const SeqGroup& seq : SeqRunsOf(p, /*is_planned=*/false)) rows.insert(seq.mem + seq.cmem);
  }
  const auto parts = static_cast<int64_t>(split.parts().size());
  const int64_t more = static_cast<int64_t>(rows.size()) - parts;
  if (more <= 0) return;
  ops.stream().work().host_bytes += CeilDiv(charged.bytes, parts) * more;
  ops.stream().work().seconds +=
      charged.seconds * static_cast<double>(more) / static_cast<double>(parts);
}

}  // namespace

DrawParams RelativeDraw(uint64_t seed, std::string name) {
  return {.seed = seed, .name = std::move(name), .deviation = 0.02};
}

Outputs OutputsOf(const Inputs& in, const SeqSplit& split, const MemoryAttention& attended,
                  const O& o) {
  Outputs outputs{.out = split.JoinOut(attended.out.out, in.v[0].shape[3]),
                  .lse = split.JoinLse(attended.out.lse),
                  .visible_pairs = attended.visible_pairs};
  if (!o.grad_memory) outputs.constants = {"mem_k", "mem_v", "cmem_k", "cmem_v"};
  return outputs;
}

MemoryAttention AttendMemory(Ops& ops, const Inputs& in, const SeqSplit& split, const O& o) {
  const Tensor q = split.Queries(in.q);
  const Tensor u = HeadBias(ops, in, split, o, "u");
  const Tensor v_bias = HeadBias(ops, in, split, o, "v_bias");
  const Tensor r = Distances(ops, in, o);
  MemoryAttention a;
  a.k = AllRowsOf(ops, in, split, o, "k");
  a.v = AllRowsOf(ops, in, split, o, "v");
  a.terms.bias = Bias(ops, in, split);
  if (!ops.status().ok()) return a;
  a.q = ops.Apply(ElementOp::kAdd, q, u);
  a.terms.q_rel = ops.Apply(ElementOp::kAdd, q, v_bias);
  a.terms.r = split.Shared(r);
  const double D = static_cast<double>(in.problems[0].D);
  a.params = {.scale = o.scale.value_or(1 / std::sqrt(D))};
  a.visible_pairs.resize(in.problems.size());
  HostCost patterns;
  for (const SeqSplit::Part& part : split.parts()) {
    const ProblemShape& problem = in.problems[part.problem];
    const Work before = ops.stream().work();
    AttendSeq seq = SeenBy(ops, part, problem.Nk, o);
    patterns.bytes += ops.stream().work().host_bytes - before.host_bytes;
    patterns.seconds += ops.stream().work().seconds - before.seconds;
    a.visible_pairs[part.problem].known +=
        seq.visible_pairs * static_cast<double>(problem.H * part.count);
    AddSeqs(ops, std::move(seq), part.count, &a.seqs.emplace_back());
  }
  if (ops.stream().is_dry()) ChargePatterns(ops, in, split, patterns);
  if (!ops.status().ok()) return a;
  a.out =
      ops.Attend(a.q, a.k, a.v, a.params, std::vector<AttendSeqs>{a.seqs}, a.terms, in.q[0].dtype);
  return a;
}

}  // namespace attnd
