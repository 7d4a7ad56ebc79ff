#include "kernels/pattern_methods.h"

#include <cmath>
#include <map>

#include "kernels/ops/pattern_predicate.h"

namespace attnd {
namespace {

const Tensor* Find(const Inputs& in, const std::string& name) {
  const auto found = in.tensors.find(name);
  return found == in.tensors.end() ? nullptr : &found->second;
}

// Problems of equally many heads share one array.
Tensor Slopes(Ops& ops, const Inputs& in) {
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> values;
  std::map<int64_t, size_t> place;  // of H
  for (const ProblemShape& problem : in.problems) {
    if (!place.emplace(problem.H, shapes.size()).second) continue;
    shapes.push_back({1, problem.H});
    values.push_back(StandardSlopes(problem.H));
  }
  const Tensor slopes = ops.FromHost(shapes, values);
  std::vector<View> views;
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (size_t p = 0; p < in.problems.size() && ops.status().ok(); ++p) {
    const size_t at = place[in.problems[p].H];
    views.push_back(slopes[at]);
    buffers.push_back(slopes.buffer(at));
  }
  return Tensor(std::move(views), std::move(buffers));
}

AttendTensors TermsOf(Ops& ops, const Inputs& in, const PatternOptions& options) {
  AttendTensors terms;
  if (const Tensor* bias = Find(in, "bias")) terms.bias = WithRank(ops, *bias, 4);
  if (const Tensor* sinks = Find(in, "sink_logits")) terms.sinks = WithRank(ops, *sinks, 2);
  if (const Tensor* slopes = Find(in, "alibi_slopes")) {
    terms.alibi_slopes = WithRank(ops, *slopes, 2);
  } else if (options.alibi) {
    terms.alibi_slopes = Slopes(ops, in);
  }
  return terms;
}

// Segment ids of every problem, [B,N] row by row; empty on a dry stream and where none were sent.
struct SegmentIds {
  bool is_sent = false;
  std::vector<std::vector<int32_t>> q, k;

  SegmentIds(Ops& ops, const Inputs& in) {
    const Tensor* ids_q = Find(in, "segment_ids_q");
    const Tensor* ids_k = Find(in, "segment_ids_kv");
    if (ids_q == nullptr || ids_k == nullptr) return;
    is_sent = true;
    q = ops.Read(*ids_q);
    k = ops.Read(*ids_k);
  }
  // Row b of a problem; on a dry stream `source` alone.
  PatternSource Within(const PatternSource& source, size_t p, int64_t b) const {
    const auto row = [&](const std::vector<int32_t>& ids, int64_t n) {
      return std::span(ids).subspan(static_cast<size_t>(b * n), static_cast<size_t>(n));
    };
    if (q[p].empty() && k[p].empty()) return source;
    return Intersect(source, SameSegment(row(q[p], source.Nq), row(k[p], source.Nk)));
  }
};

std::vector<AttendRow> RowsOf(Ops& ops, const ProblemShape& problem, size_t p,
                              const SegmentIds& segments, const SourceOfRow& source_of) {
  std::vector<AttendRow> rows;
  rows.reserve(static_cast<size_t>(problem.B));
  for (int64_t b = 0; b < problem.B; ++b) {
    const Lengths lengths{problem.Int("q_lengths", b, problem.Nq),
                          problem.Int("kv_lengths", b, problem.Nk)};
    const int64_t offset = problem.Int("causal_offset", b, problem.Nk - problem.Nq);
    // Describing a pattern costs much more than copying a row, and most rows are alike.
    if (b > 0 && !segments.is_sent && rows.back().nq == lengths.nq &&
        rows.back().nk == lengths.nk && rows.back().offset == offset) {
      rows.push_back(AttendRow(rows.back()));
      continue;
    }
    PatternSource source = source_of(problem, offset, lengths);
    if (segments.is_sent) source = segments.Within(source, p, b);
    rows.push_back(ops.Row(lengths.nq, lengths.nk, source));
    rows.back().offset = offset;
  }
  return rows;
}

}  // namespace

Tensor WithRank(Ops& ops, const Tensor& x, int rank) {
  std::vector<Shape> shapes;
  for (size_t p = 0; p < x.size(); ++p) {
    Shape shape;
    shape.rank = rank;
    const int missing = rank - x[p].shape.rank;
    for (int i = 0; i < x[p].shape.rank; ++i) shape.dims[missing + i] = x[p].shape[i];
    shapes.push_back(shape);
  }
  return shapes == ShapesOf(x) ? x : ops.Reshape(x, shapes);
}

std::vector<float> StandardSlopes(int64_t H) {
  int64_t c = 1;
  while (2 * c <= H) c *= 2;
  std::vector<float> slopes;
  for (int64_t h = 0; h < H; ++h) {
    const auto steps = static_cast<double>(h < c ? 8 * (h + 1) : 4 * (2 * (h - c) + 1));
    slopes.push_back(static_cast<float>(std::exp2(-steps / static_cast<double>(c))));
  }
  return slopes;
}

std::vector<TensorInfo> PatternInputs() {
  return {
      {"q", "[B,H,Nq,D]", "float", "queries", /*required=*/true, /*differentiable=*/true},
      {"k", "[B,Hkv,Nk,D]", "float", "keys; Hkv divides H", /*required=*/true,
       /*differentiable=*/true},
      {"v", "[B,Hkv,Nk,Dv]", "float", "values", /*required=*/true, /*differentiable=*/true},
      {"q_lengths", "[B]", "int32", "0..Nq: rows beyond give out = 0, lse = -inf"},
      {"kv_lengths", "[B]", "int32", "0..Nk: keys beyond are never seen"},
      {"causal_offset", "[B]", "int32", "position of query 0; default Nk - Nq"},
      {"segment_ids_q", "[B,Nq]", "int32", "visible only if equal and >= 0; with segment_ids_kv"},
      {"segment_ids_kv", "[B,Nk]", "int32", "visible only if equal and >= 0; with segment_ids_q"},
      {"cu_seqlens_q", "[S+1]", "int32",
       "S packed sequences, B = 1: from 0 to Nq, non-decreasing; with cu_seqlens_k"},
      {"cu_seqlens_k", "[S+1]", "int32", "from 0 to Nk, non-decreasing; with cu_seqlens_q"},
      {.name = "bias",
       .shape = "broadcastable to [B,H,Nq,Nk]",
       .dtype = "float",
       .help = "added to the scores; -inf hides a pair",
       .differentiable = true},
      {.name = "alibi_slopes",
       .shape = "[H] or [B,H]",
       .dtype = "float",
       .help = "adds -slope |p - j|",
       .differentiable = true},
      {.name = "sink_logits",
       .shape = "[H]",
       .dtype = "float",
       .help = "one more key of this score and value 0",
       .differentiable = true},
  };
}

std::vector<TensorInfo> PatternOutputs() {
  return {{"out", "[B,H,Nq,Dv]", "float", "the weighted mean of the values that a query sees"},
          {"lse", "[B,H,Nq]", "float32",
           "natural log of the sum of exp(score), sinks included; -inf: no key"}};
}

Support PatternSupport() {
  return {.causal = true, .lengths = true, .cross = true, .gqa = true, .lse = true};
}

Outputs PatternAttend(Ops& ops, const Inputs& in, const PatternOptions& options,
                      const SourceOfRow& source_of) {
  if (IsPacked(in)) {
    const Packed packed = Unpack(ops, in);
    if (!ops.status().ok()) return {};
    const Outputs out = PatternAttend(ops, packed.in, options, source_of);
    AttendOut joined = Repack(ops, packed, in, {out.out, out.lse});
    return {.out = std::move(joined.out), .lse = std::move(joined.lse)};
  }
  // D is the same in all problems of a batch.
  const double D = static_cast<double>(in.problems[0].D);
  const AttendParams params{.scale = options.scale.value_or(1 / std::sqrt(D)),
                            .softcap = options.logit_softcap};
  const SegmentIds segments(ops, in);
  AttendRows rows;
  for (size_t p = 0; p < in.problems.size() && ops.status().ok(); ++p) {
    rows.push_back(RowsOf(ops, in.problems[p], p, segments, source_of));
  }
  const AttendTensors terms = TermsOf(ops, in, options);
  AttendOut attended = ops.Attend(in.q, in.k, in.v, params, rows, terms);
  return {.out = std::move(attended.out), .lse = std::move(attended.lse)};
}

}  // namespace attnd
