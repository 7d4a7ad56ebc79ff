// Ops::Scan and its gradient rule.
#include <algorithm>

#include "kernels/ops/composed.h"

namespace attnd {
namespace {

constexpr char kScan[] = "scan";

Tensor EmptyLike(Ops& ops, const Tensor& tensor) {
  return ops.Empty(tensor[0].dtype, ShapesOf(tensor), LayoutsOf(tensor));
}

bool Fits(const View& q, const View& k, const View& v, const std::vector<ScanSeq>& seqs) {
  const Shape &qs = q.shape, &ks = k.shape, &vs = v.shape;
  if (qs.rank != 4 || ks.rank != 4 || vs.rank != 4) return false;
  for (const View* view : {&q, &k, &v}) {
    if (!IsFloat(view->dtype) || (view->shape[3] > 1 && view->stride[3] != 1)) return false;
  }
  const bool batch = ks[0] == qs[0] && vs[0] == qs[0];
  const bool heads = ks[1] > 0 && qs[1] % ks[1] == 0 && vs[1] == ks[1];
  const bool lengths = vs[2] == ks[2] && qs[3] == ks[3];
  int64_t count = 0;
  for (const ScanSeq& seq : seqs) count += seq.count;
  if (!batch || !heads || !lengths || count != qs[0]) return false;
  return std::all_of(seqs.begin(), seqs.end(), [&](const ScanSeq& seq) {
    return seq.nq >= 0 && seq.nq <= qs[2] && seq.nk >= 0 && seq.nk <= ks[2];
  });
}

// Shapes of decays, strengths and states over all of B and Hkv.
Shape DecayShape(const View& k, int64_t width) {
  return {k.shape[0], k.shape[1], k.shape[2], width};
}
Shape BetaShape(const View& k) { return {k.shape[0], k.shape[1], k.shape[2]}; }
Shape StateShape(const View& k, const View& v) {
  return {k.shape[0], k.shape[1], k.shape[3], v.shape[3]};
}
Shape NormaliserShape(const View& k) { return {k.shape[0], k.shape[1], k.shape[3]}; }

bool RepeatsTo(const Shape& shape, const Shape& full) {
  if (shape.rank != full.rank) return false;
  for (int i = 0; i < full.rank; ++i) {
    if (shape[i] != full[i] && (i > 1 || shape[i] != 1)) return false;
  }
  return true;
}

// The view over all of B and Hkv; View{} of an empty tensor.
View Spread(const Tensor& x, size_t problem, const Shape& full) {
  View view = ViewOf(x, problem);
  if (!view.given()) return view;
  for (int i = 0; i < 2; ++i) {
    if (view.shape[i] == 1) view.stride[i] = 0;
  }
  view.shape = full;
  return view;
}

int64_t DecayWidth(const Tensor& log_decay, size_t problem) {
  return log_decay.empty() ? 1 : log_decay[problem].shape[3];
}

// Inputs and outputs of a call, as problems of a launch and as lists for the tape.
struct Call {
  ScanParams params;
  ScanSeqs seqs;
  Tensor q, k, v;
  ScanTensors extra;
  ScanOut result;

  std::vector<Tensor> Inputs() const {
    return {q, k, v, extra.log_decay, extra.beta, extra.s0, extra.z0};
  }
  std::vector<Tensor> Outputs() const {
    std::vector<Tensor> outputs = {result.out};
    if (extra.wants_lse) outputs.push_back(result.lse);
    if (extra.final_state) outputs.insert(outputs.end(), {result.s_out, result.z_out});
    return outputs;
  }
  ScanProblem Problem(size_t p) const {
    return {
        .q = q[p],
        .k = k[p],
        .v = v[p],
        .out = result.out[p],
        .lse = ViewOf(result.lse, p),
        .seqs = seqs[p],
        .log_decay = Spread(extra.log_decay, p, DecayShape(k[p], DecayWidth(extra.log_decay, p))),
        .beta = Spread(extra.beta, p, BetaShape(k[p])),
        .s0 = Spread(extra.s0, p, StateShape(k[p], v[p])),
        .z0 = Spread(extra.z0, p, NormaliserShape(k[p])),
        .s_out = ViewOf(result.s_out, p),
        .z_out = ViewOf(result.z_out, p)};
  }
};

bool CheckInputs(Ops& ops, const Call& call) {
  const Tensor &q = call.q, &k = call.k, &v = call.v;
  const size_t n = q.size();
  const bool lists = !q.empty() && k.size() == n && v.size() == n && call.seqs.size() == n;
  if (!ops.Require(lists, kScan, "q, k, v and seqs must be lists of one length")) return false;
  for (size_t p = 0; p < n; ++p) {
    const bool uniform = q[p].dtype == q[0].dtype && k[p].dtype == k[0].dtype &&
                         v[p].dtype == v[0].dtype && q[p].shape[3] == q[0].shape[3] &&
                         v[p].shape[3] == v[0].shape[3];
    const bool fits = uniform && Fits(q[p], k[p], v[p], call.seqs[p]);
    if (!ops.Require(fits, kScan, "q, k, v and seqs must fit each other")) return false;
  }
  return true;
}

bool CheckExtra(Ops& ops, const Call& call) {
  const ScanTensors& e = call.extra;
  for (size_t p = 0; p < call.q.size(); ++p) {
    const View &k = call.k[p], &v = call.v[p];
    const auto fits = [&](const Tensor& x, const Shape& full) {
      return x.empty() ||
             (x.size() == call.q.size() && IsFloat(x[p].dtype) && RepeatsTo(x[p].shape, full));
    };
    const int64_t width = DecayWidth(e.log_decay, p);
    const bool shapes = (width == 1 || width == k.shape[3]) &&
                        fits(e.log_decay, DecayShape(k, width)) && fits(e.beta, BetaShape(k)) &&
                        fits(e.s0, StateShape(k, v)) && fits(e.z0, NormaliserShape(k));
    if (!ops.Require(shapes, kScan, "log_decay, beta and states must fit k and v")) return false;
  }
  const ScanParams& o = call.params;
  const bool in_order = !e.log_decay.empty() || !e.beta.empty() || e.final_state;
  const bool delta = o.rule == ScanRule::kDelta;
  const bool plain_exp =
      o.map != FeatureMap::kExp || (!delta && !in_order && e.s0.empty() && e.z0.empty());
  return ops.Require(o.causal || !in_order, kScan,
                     "log_decay, beta and a final state need causal") &&
         ops.Require(!delta || (o.causal && o.den == ScanDen::kOne), kScan,
                     "the delta rule needs causal and den kOne") &&
         ops.Require(o.offset == 0 || o.map == FeatureMap::kIdentity, kScan,
                     "an offset needs kIdentity") &&
         ops.Require(plain_exp, kScan, "kExp takes no decay, beta, state or delta rule") &&
         ops.Require(o.chunk >= 1 && o.chunk <= 1024, kScan, "chunk must be in 1..1024");
}

// A key is added to the state and a query reads it with 2 D Dv FLOPs each; the delta rule reads it
// with the key first.
template <class Problem>
void CountWork(const ScanParams& params, const ScanProblem& forward, const Problem& problem,
               double factor, Work* work) {
  if (!Writes(problem)) return;
  const Shape &q = forward.q.shape, &k = forward.k.shape, &v = forward.v.shape;
  const auto group = static_cast<double>(q[1] / k[1]);
  const double keys = params.rule == ScanRule::kDelta ? 2 : 1;
  for (const ScanSeq& seq : forward.seqs) {
    const ScanReach reach(params.causal, seq, HasState(forward), WantsFinal(problem));
    const double steps = keys * static_cast<double>(reach.used_keys) +
                         group * static_cast<double>(reach.end_query - reach.first_query);
    work->visible_pairs += static_cast<double>(q[1] * seq.count) * seq.visible_pairs;
    work->flops += factor * static_cast<double>(v[1] * seq.count) * 2 *
                   static_cast<double>(q[3] * v[3]) * steps;
  }
}

// Gradients of the call's inputs, where wanted. grads: of out, lse, and what states come out.
std::vector<Tensor> Gradients(Ops& ops, const Call& call, std::span<const Tensor> grads,
                              const std::vector<bool>& wanted) {
  const std::vector<Tensor> inputs = call.Inputs();
  std::vector<std::vector<Shape>> full(inputs.size());  // over all of B and Hkv
  for (size_t p = 0; p < call.q.size(); ++p) {
    const View &k = call.k[p], &v = call.v[p];
    full[3].push_back(DecayShape(k, DecayWidth(call.extra.log_decay, p)));
    full[4].push_back(BetaShape(k));
    full[5].push_back(StateShape(k, v));
    full[6].push_back(NormaliserShape(k));
  }
  std::vector<Tensor> result(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!wanted[i]) continue;
    result[i] = i < 3 ? EmptyLike(ops, inputs[i]) : ops.Empty(DType::kF32, full[i]);
  }
  if (!ops.status().ok()) return result;
  const Tensor dout = WithContiguousRows(ops, grads[0]);
  if (!ops.status().ok()) return result;
  std::vector<ScanGradProblem> backward;
  for (size_t p = 0; p < call.q.size(); ++p) {
    const auto incoming = [&](size_t o) { return o < grads.size() ? ViewOf(grads[o], p) : View(); };
    backward.push_back({.forward = call.Problem(p),
                        .dout = ViewOf(dout, p),
                        .dlse = incoming(1),
                        .ds_out = incoming(2),
                        .dz_out = incoming(3),
                        .dq = ViewOf(result[0], p),
                        .dk = ViewOf(result[1], p),
                        .dv = ViewOf(result[2], p),
                        .dlog_decay = ViewOf(result[3], p),
                        .dbeta = ViewOf(result[4], p),
                        .ds0 = ViewOf(result[5], p),
                        .dz0 = ViewOf(result[6], p)});
  }
  for (const ScanGradProblem& problem : backward) {
    CountWork(call.params, problem.forward, problem, kBackwardFlops, &ops.stream().work());
  }
  if (!ops.TryRun(ScanGradArgs{.params = call.params, .problems = std::move(backward)})) {
    return ComposeScanGrad(ops, {call.q, call.k, call.v, call.params, call.seqs, call.extra}, grads,
                           wanted);
  }
  for (size_t i = 3; i < inputs.size(); ++i) {
    if (wanted[i] && ShapesOf(inputs[i]) != full[i]) {
      result[i] = ops.SumTo(result[i], ShapesOf(inputs[i]));
    }
  }
  return result;
}

}  // namespace

ScanOut Ops::Scan(const Tensor& q, const Tensor& k, const Tensor& v, const ScanParams& params,
                  const ScanSeqs& seqs, const ScanTensors& tensors) {
  if (!status_.ok()) return {};
  Call call = {.params = params, .seqs = seqs, .q = q, .k = k, .v = v, .extra = tensors};
  if (!CheckInputs(*this, call) || !CheckExtra(*this, call)) return {};
  ScanTensors& extra = call.extra;
  for (Tensor* x : {&extra.log_decay, &extra.beta, &extra.s0, &extra.z0}) {
    if (!x->empty() && (*x)[0].dtype != DType::kF32) *x = Copy(*x);
  }
  std::vector<Shape> out, lse, state, normaliser;
  for (size_t p = 0; p < q.size(); ++p) {
    const Shape& s = q[p].shape;
    out.push_back({s[0], s[1], s[2], v[p].shape[3]});
    lse.push_back({s[0], s[1], s[2]});
    state.push_back(StateShape(k[p], v[p]));
    normaliser.push_back(NormaliserShape(k[p]));
  }
  call.result.out = Empty(q[0].dtype, out, LayoutsOf(q));
  if (extra.wants_lse) call.result.lse = Empty(DType::kF32, lse);
  if (extra.final_state) {
    call.result.s_out = Empty(DType::kF32, state);
    call.result.z_out = Empty(DType::kF32, normaliser);
  }
  if (!status_.ok()) return {};
  std::vector<ScanProblem> problems;
  for (size_t p = 0; p < q.size(); ++p) problems.push_back(call.Problem(p));
  for (const ScanProblem& problem : problems) {
    CountWork(params, problem, problem, 1, &stream_.work());
  }
  const bool is_unread = extra.is_returned && !extra.final_state && wants_gradients_alone();
  if (!is_unread && !TryRun(ScanArgs{.params = params, .problems = std::move(problems)})) {
    ComposeScan(*this, {q, k, v, params, seqs, extra}, call.result);
  }
  if (!status_.ok()) return {};
  const ScanOut result = call.result;
  if (Records({&q, &k, &v, &extra.log_decay, &extra.beta, &extra.s0, &extra.z0})) {
    tape_->Record(call.Inputs(), call.Outputs(),
                  [call](Ops& ops, std::span<const Tensor> grads, const std::vector<bool>& wanted) {
                    std::vector<Tensor> of_all(grads.begin(), grads.end());
                    if (!call.extra.wants_lse) of_all.insert(of_all.begin() + 1, Tensor());
                    return Gradients(ops, call, of_all, wanted);
                  });
  }
  return result;
}

}  // namespace attnd
