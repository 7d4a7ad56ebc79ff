#include "kernels/ops/attend_call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace attnd {
namespace {

// The names a term has in the three structs, and what its tensor must be.
struct Term {
  const char* name;
  Tensor AttendTensors::*tensor;
  View AttendTerms::*view;
  View AttendTermGrads::*grad;   // null: a constant
  int repeats;                   // leading dimensions that may be 1 and repeat
  Tensor AttendCall::*dtype_of;  // null: any float dtype
};
constexpr Term kAttendTerms[] = {
    {"k2", &AttendTensors::k2, &AttendTerms::k2, &AttendTermGrads::k2, 0, &AttendCall::k},
    {"v2", &AttendTensors::v2, &AttendTerms::v2, &AttendTermGrads::v2, 0, &AttendCall::v},
    {"bias", &AttendTensors::bias, &AttendTerms::bias, &AttendTermGrads::bias, 4, nullptr},
    {"alibi_slopes", &AttendTensors::alibi_slopes, &AttendTerms::alibi_slopes,
     &AttendTermGrads::alibi_slopes, 1, nullptr},
    {"sinks", &AttendTensors::sinks, &AttendTerms::sinks, &AttendTermGrads::sinks, 1, nullptr},
    {"table", &AttendTensors::table, &AttendTerms::table, &AttendTermGrads::table, 0, nullptr},
    {"q_rel", &AttendTensors::q_rel, &AttendTerms::q_rel, &AttendTermGrads::q_rel, 0,
     &AttendCall::q},
    {"r", &AttendTensors::r, &AttendTerms::r, &AttendTermGrads::r, 2, nullptr},
    {"row_weight", &AttendTensors::row_weight, &AttendTerms::row_weight, nullptr, 2, nullptr},
};
constexpr size_t kDifferentiable = 3 + std::size(kAttendTerms) - 1;  // with q, k, v

// The shape of a term that repeats nothing. Sizes that only the term has come from `given`.
Shape FullShape(const Term& term, const AttendCall& call, size_t p, const Shape& given) {
  const Shape &q = call.q[p].shape, &k = call.k[p].shape, &v = call.v[p].shape;
  if (term.tensor == &AttendTensors::k2) return {k[0], k[1], given[2], k[3]};
  if (term.tensor == &AttendTensors::v2)
    return {v[0], v[1], ViewOf(call.terms.k2, p).shape[2], v[3]};
  if (term.tensor == &AttendTensors::bias) return {q[0], q[1], q[2], k[2]};
  if (term.tensor == &AttendTensors::table) return {q[0], q[1], q[2], given[3]};
  if (term.tensor == &AttendTensors::q_rel) return q;
  if (term.tensor == &AttendTensors::r) return {q[0], q[1], given[2], q[3]};
  if (term.tensor == &AttendTensors::row_weight) return {q[0], q[1], q[2]};
  return {q[0], q[1]};
}

bool FitsTerm(const Term& term, const AttendCall& call, size_t p, const View& view) {
  const Shape full = FullShape(term, call, p, view.shape);
  if (view.shape.rank != full.rank || !IsFloat(view.dtype)) return false;
  if (term.dtype_of != nullptr && view.dtype != (call.*term.dtype_of)[p].dtype) return false;
  for (int i = 0; i < full.rank; ++i) {
    const bool repeats = i < term.repeats && view.shape[i] == 1;
    if (view.shape[i] != full[i] && !repeats) return false;
  }
  const int last = full.rank - 1;
  return view.shape[last] <= 1 || view.stride[last] == 1 || last < 3;
}

// The shape of a gradient: 1 in each dimension that the tensor repeats by a stride of 0.
bool RepeatsByStride(const View& view) {
  // Without elements, dense strides are 0 as well.
  for (int i = 0; i < view.shape.rank && view.shape.size() > 0; ++i) {
    if (view.shape[i] > 1 && view.stride[i] == 0) return true;
  }
  return false;
}

bool Covers(const Pattern* pattern, const AttendSeq& seq) {
  if (pattern == nullptr) return true;
  if (pattern->is_listed() != seq.is_listed) return false;
  const bool gathers = !pattern->query_rows.empty() || !pattern->key_rows.empty();
  return gathers ? seq.gathers : pattern->Nq >= seq.nq && pattern->Nk >= seq.nk;
}

bool FitsSeqs(const Shape& q, const Shape& k, const std::vector<AttendSeq>& seqs) {
  int64_t count = 0;
  for (const AttendSeq& seq : seqs) count += seq.count;
  if (count != q[0]) return false;
  return std::all_of(seqs.begin(), seqs.end(), [&](const AttendSeq& seq) {
    const bool inside = seq.nq >= 0 && seq.nq <= q[2] && seq.nk >= 0 && seq.nk <= k[2];
    bool covers = Covers(seq.pattern.get(), seq);
    for (const auto& pattern : seq.head_patterns) covers = covers && Covers(pattern.get(), seq);
    const auto heads = static_cast<int64_t>(seq.head_patterns.size());
    const bool alike = seq.is_listed == seqs[0].is_listed;
    return inside && covers && alike && (heads == 0 || heads == q[1]);
  });
}

bool FitsQkv(const View& q, const View& k, const View& v) {
  const Shape &qs = q.shape, &ks = k.shape, &vs = v.shape;
  if (qs.rank != 4 || ks.rank != 4 || vs.rank != 4) return false;
  if (!IsFloat(q.dtype) || !IsFloat(k.dtype) || !IsFloat(v.dtype)) return false;
  const bool batch = ks[0] == qs[0] && vs[0] == qs[0];
  const bool heads = ks[1] > 0 && qs[1] % ks[1] == 0 && vs[1] == ks[1];
  return batch && heads && vs[2] == ks[2] && qs[3] == ks[3];
}

bool TakesLists(const AttendCall& call) {
  const AttendTensors& t = call.terms;
  return call.params.weighting == Weighting::kSoftmax && t.k2.empty() && t.table.empty() &&
         t.r.empty();
}

absl::Status CheckProblem(const AttendCall& call, std::span<const AttendSeqs> parts, size_t p) {
  const View &q = call.q[p], &k = call.k[p], &v = call.v[p];
  const bool uniform = q.dtype == call.q[0].dtype && k.dtype == call.k[0].dtype &&
                       v.dtype == call.v[0].dtype && q.shape[3] == call.q[0].shape[3] &&
                       v.shape[3] == call.v[0].shape[3];
  bool fits = uniform && FitsQkv(q, k, v);
  for (const AttendSeqs& seqs : parts) {
    fits = fits && FitsSeqs(q.shape, k.shape, seqs[p]);
    const bool listed = fits && !seqs[p].empty() && seqs[p][0].is_listed;
    fits = fits && (!listed || TakesLists(call));
  }
  if (!fits) {
    return absl::InternalError(absl::StrCat(
        "attend: problem ", p, " breaks the contract, got q ", ToString(q.shape), " k ",
        ToString(k.shape), " v ", ToString(v.shape), " with ", parts[0][p].size(), " sequences"));
  }
  for (const Term& term : kAttendTerms) {
    const Tensor& tensor = call.terms.*term.tensor;
    if (tensor.empty() || FitsTerm(term, call, p, tensor[p])) continue;
    return absl::InternalError(absl::StrCat(
        "attend: ", term.name, " breaks the contract, got ", ToString(tensor[p].shape), " of ",
        Name(tensor[p].dtype), " with q ", ToString(q.shape), " k ", ToString(k.shape)));
  }
  return absl::OkStatus();
}

// Checks which terms may be given together.
const char* BrokenRule(const AttendCall& call) {
  const AttendTensors& t = call.terms;
  if (t.k2.empty() != t.v2.empty()) return "k2 and v2 go together";
  if (t.q_rel.empty() != t.r.empty()) return "q_rel and r go together";
  const bool softmax = call.params.weighting == Weighting::kSoftmax;
  if (softmax && !t.row_weight.empty()) return "row_weight is of weightings other than softmax";
  if (!softmax && !t.sinks.empty()) return "sinks are of softmax only";
  if (!(call.params.softcap >= 0)) return "softcap must be >= 0";
  return nullptr;
}

absl::Status CheckCall(const AttendCall& call, std::span<const AttendSeqs> parts) {
  const size_t size = call.q.size();
  bool lists = size > 0 && call.k.size() == size && call.v.size() == size && !parts.empty();
  for (const AttendSeqs& seqs : parts) lists = lists && seqs.size() == size;
  for (const Term& term : kAttendTerms) {
    const Tensor& tensor = call.terms.*term.tensor;
    lists = lists && (tensor.empty() || tensor.size() == size);
  }
  if (!lists) {
    return absl::InternalError(absl::StrCat(
        "attend: q, k, v, seqs and terms must be lists of one length, got ", size, ", ",
        call.k.size(), ", ", call.v.size(), ", ", parts.empty() ? 0 : parts[0].size()));
  }
  if (const char* rule = BrokenRule(call)) {
    return absl::InternalError(absl::StrCat("attend: ", rule));
  }
  for (size_t p = 0; p < size; ++p) ATTND_RETURN_IF_ERROR(CheckProblem(call, parts, p));
  return absl::OkStatus();
}

// The same numbers as float32. Not recorded: the gradient rule of attend gives the gradient of the
// original tensor.
Tensor Float32(Ops& ops, const Tensor& x) {
  if (x.empty() || x[0].dtype == DType::kF32) return x;
  const Tensor wide = ops.Empty(DType::kF32, ShapesOf(x));
  if (ops.status().ok()) ops.CopyInto(ViewsOf(x), ViewsOf(wide));
  return wide;
}

View Broadcast(View view, const Shape& full) {
  for (int i = 0; i < full.rank; ++i) {
    if (view.shape[i] != full[i]) view.stride[i] = 0;
  }
  view.shape = full;
  return view;
}

AttendTerms TermsOf(const AttendCall& call, size_t p) {
  AttendTerms views;
  for (const Term& term : kAttendTerms) {
    const Tensor& tensor = call.terms.*term.tensor;
    if (tensor.empty()) continue;
    views.*term.view = Broadcast(tensor[p], FullShape(term, call, p, tensor[p].shape));
  }
  return views;
}

void CountPairs(const AttendProblem& problem, double factor, Work* work) {
  double pairs = 0;
  for (const AttendSeq& seq : problem.seqs) {
    pairs += seq.visible_pairs * static_cast<double>(seq.count * problem.q.shape[1]);
  }
  work->visible_pairs += pairs;
  work->flops += factor * 2 * pairs * static_cast<double>(problem.q.shape[3] + problem.v.shape[3]);
}

AttendProblem ProblemOf(const AttendCall& call, const AttendOut& out, const AttendSeqs& seqs,
                        bool sinks, size_t p) {
  AttendProblem problem{.q = call.q[p],
                        .k = call.k[p],
                        .v = call.v[p],
                        .out = out.out[p],
                        .lse = ViewOf(out.lse, p),
                        .lse_low = ViewOf(out.lse_low, p),
                        .seqs = seqs[p],
                        .terms = TermsOf(call, p)};
  if (!sinks) problem.terms.sinks = {};
  return problem;
}

}  // namespace

std::vector<Tensor> AttendCall::Inputs() const {
  std::vector<Tensor> inputs = {q, k, v};
  for (const Term& term : kAttendTerms) {
    if (term.grad != nullptr) inputs.push_back(terms.*term.tensor);
  }
  return inputs;
}

bool Prepare(Ops& ops, std::span<const AttendSeqs> parts, AttendCall* call) {
  if (ops.status().ok()) ops.Fail(CheckCall(*call, parts));
  if (!ops.status().ok()) return false;
  for (const Term& term : kAttendTerms) {
    const Tensor& tensor = call->terms.*term.tensor;
    if (!ops.Records({&tensor}) || term.grad == nullptr) continue;
    for (size_t p = 0; p < tensor.size(); ++p) {
      if (!ops.Require(!RepeatsByStride(tensor[p]), "attend", "terms repeat by dimensions of 1")) {
        return false;
      }
    }
  }
  AttendTensors& t = call->terms;
  for (Tensor* x : {&t.alibi_slopes, &t.sinks, &t.table, &t.r, &t.row_weight}) {
    *x = Float32(ops, *x);
  }
  return ops.status().ok();
}

AttendOut LaunchAttend(Ops& ops, const AttendCall& call, const AttendSeqs& seqs, DType dtype,
                       bool sinks, std::shared_ptr<AttendKept> kept) {
  std::vector<Shape> out_shapes, lse_shapes;
  for (size_t p = 0; p < call.q.size(); ++p) {
    const Shape& s = call.q[p].shape;
    out_shapes.push_back({s[0], s[1], s[2], call.v[p].shape[3]});
    lse_shapes.push_back({s[0], s[1], s[2]});
  }
  AttendOut out{ops.Empty(dtype, out_shapes, LayoutsOf(call.q)), {}};
  if (call.params.weighting == Weighting::kSoftmax) {
    out.lse = ops.Empty(DType::kF32, lse_shapes);
    out.lse_low = ops.Empty(DType::kF32, lse_shapes);
  }
  if (!ops.status().ok()) return {};
  std::vector<AttendProblem> problems;
  problems.reserve(call.q.size());
  for (size_t p = 0; p < call.q.size(); ++p) {
    problems.push_back(ProblemOf(call, out, seqs, sinks, p));
  }
  for (const AttendProblem& problem : problems) CountPairs(problem, 1, &ops.stream().work());
  ops.Run(
      AttendArgs{.params = call.params, .problems = std::move(problems), .kept = std::move(kept)});
  return ops.status().ok() ? out : AttendOut{};
}

std::vector<Tensor> LaunchAttendGrad(Ops& ops, const AttendCall& call, const AttendSeqs& seqs,
                                     const AttendFlow& flow, const std::vector<bool>& wanted,
                                     bool sinks, bool wide) {
  const std::vector<Tensor> inputs = call.Inputs();
  std::vector<Tensor> result(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Term* term = i < 3 ? nullptr : &kAttendTerms[i - 3];
    const bool is_sinks = term != nullptr && term->tensor == &AttendTensors::sinks;
    if (!wanted[i] || (is_sinks && !sinks)) continue;
    const bool is_rows = term == nullptr || term->dtype_of != nullptr;
    result[i] = ops.Empty(is_rows && !wide ? inputs[i][0].dtype : DType::kF32, ShapesOf(inputs[i]),
                          is_rows ? LayoutsOf(inputs[i]) : std::vector<Layout>{});
  }
  if (!ops.status().ok()) return result;
  std::vector<AttendGradProblem> problems;
  problems.reserve(call.q.size());
  for (size_t p = 0; p < call.q.size(); ++p) {
    AttendGradProblem& problem = problems.emplace_back();
    problem.forward = ProblemOf(call, flow.forward, seqs, sinks, p);
    problem.dout = ViewOf(flow.dout, p);
    problem.dlse = ViewOf(flow.dlse, p);
    problem.dq = ViewOf(result[0], p);
    problem.dk = ViewOf(result[1], p);
    problem.dv = ViewOf(result[2], p);
    for (size_t i = 3; i < kDifferentiable; ++i) {
      problem.dterms.*kAttendTerms[i - 3].grad = ViewOf(result[i], p);
    }
  }
  for (const AttendGradProblem& problem : problems) {
    CountPairs(problem.forward, kBackwardFlops, &ops.stream().work());
  }
  ops.Run(AttendGradArgs{.params = call.params,
                         .problems = std::move(problems),
                         .is_deterministic = ops.is_deterministic(),
                         .kept = flow.kept});
  return result;
}

}  // namespace attnd
