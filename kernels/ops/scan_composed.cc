// Compositions of scan and its gradient: features and normalisers of whole tensors
// around the recurrence of scan_core.h. The normaliser is one more column of the values.
#include <algorithm>
#include <limits>

#include "kernels/ops/composed.h"
#include "kernels/ops/scan_core.h"

namespace attnd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// A problem for each sequence of a call, or for sequences that are alike.
class Formula {
 public:
  Formula(Ops& ops, const ScanCall& call) : ops_(ops), call_(call), o_(call.params) {
    for (const std::vector<ScanSeq>& seqs : call.seqs) {
      nq_.emplace_back(), nk_.emplace_back(), counts_.emplace_back();
      for (const ScanSeq& seq : seqs) {
        nq_.back().push_back(seq.nq);
        nk_.back().push_back(seq.nk);
        counts_.back().push_back(seq.count);
        core_.offsets.push_back(o_.causal ? seq.offset : seq.nk);
      }
    }
    core_.is_delta = o_.rule == ScanRule::kDelta;
  }

  ScanOut Run() {
    SplitInputs();
    if (!ops_.status().ok()) return {};
    o_.map == FeatureMap::kExp ? SplitExp() : SplitFeatures();
    const ScanCore::Result result = core_.Run(ops_, {q_, key_, value_, decay_, beta_, state_});
    if (!ops_.status().ok()) return {};
    return Joined(result);
  }

 private:
  Tensor Times(const Tensor& a, const Tensor& b) { return ops_.Apply(ElementOp::kMultiply, a, b); }
  Tensor Minus(const Tensor& a, const Tensor& b) { return ops_.Apply(ElementOp::kSubtract, a, b); }
  Tensor Number(float value, const Tensor& like) { return NumberLike(ops_, value, like); }
  // f(q, k, v) of every problem of the call, or of the split ones.
  template <class F>
  std::vector<Shape> Shapes(const Tensor& q, const Tensor& k, const Tensor& v, const F& f) const {
    std::vector<Shape> shapes;
    for (size_t p = 0; p < q.size(); ++p) shapes.push_back(f(q[p].shape, k[p].shape, v[p].shape));
    return shapes;
  }
  template <class F>
  std::vector<Shape> OfCall(const F& f) const {
    return Shapes(call_.q, call_.k, call_.v, f);
  }
  // Along the keys, over all of B and Hkv.
  Tensor SplitKeys(const Tensor& x, bool is_vector) {
    if (x.empty()) return x;
    std::vector<Shape> shapes = ShapesOf(x), columns;
    for (size_t p = 0; p < x.size(); ++p) {
      for (int i = 0; i < 2; ++i) shapes[p].dims[i] = call_.k[p].shape[i];
      columns.push_back({shapes[p][0], shapes[p][1], shapes[p][2], is_vector ? 1 : shapes[p][3]});
    }
    const Tensor all = ops_.Expand(x, shapes);
    if (!ops_.status().ok()) return {};
    return ops_.SplitBatch(is_vector ? ops_.Reshape(all, columns) : all, nk_, counts_);
  }
  // [B,Hkv,D,E]; an empty tensor: zeros.
  Tensor SplitState(const Tensor& x, const std::vector<Shape>& shapes) {
    if (!ops_.status().ok()) return {};
    std::vector<std::vector<int64_t>> all;
    for (size_t p = 0; p < shapes.size(); ++p) all.emplace_back(nq_[p].size(), shapes[p][2]);
    const Tensor given = x.empty() ? ops_.Constant(0, shapes) : ops_.Expand(x, shapes);
    return ops_.SplitBatch(given, all, counts_);
  }
  // 0 for -inf.
  Tensor Finite(const Tensor& x) {
    return ops_.Select(ops_.Apply(ElementOp::kEqual, x, Number(-kInf, x)), Number(0, x), x);
  }
  void SplitInputs();
  void SplitExp();
  void SplitFeatures();
  // 1 for a key that something depends on, [1,1,Nk,1]: others may hold NaN, whose product with a
  // gradient of 0 is NaN.
  Tensor UsedKeys();
  // 1 where a query reads something, [1,1,1,Nq,1].
  Tensor Readers();
  Tensor Feature(const Tensor& x);
  Tensor Den(const Tensor& d);
  Tensor LastKeys();
  Tensor SeenBy(const Tensor& last_keys, const Tensor& of_keys);
  void JoinExp(const Tensor& num, const Tensor& d, Tensor* out, Tensor* lse);
  ScanOut Joined(const ScanCore::Result& result);

  Ops& ops_;
  const ScanCall& call_;
  const ScanParams& o_;
  std::vector<std::vector<int64_t>> nq_, nk_;
  SeqCounts counts_;
  ScanCore core_;
  Tensor q_, key_, value_, decay_, beta_, state_;
  Tensor readers_;
  Tensor most_;  // of kExp, [c,Hkv,G,Nq,1]: what the exponents of a query are relative to
};

void Formula::SplitInputs() {
  const Tensor q = ops_.SplitBatch(call_.q, nq_, counts_);
  const Tensor v = ops_.SplitBatch(call_.v, nk_, counts_);
  key_ = ops_.SplitBatch(call_.k, nk_, counts_);
  decay_ = SplitKeys(call_.tensors.log_decay, false);
  beta_ = SplitKeys(call_.tensors.beta, true);
  const auto s0 = OfCall([](auto&, auto& k, auto& v) { return Shape{k[0], k[1], k[3], v[3]}; });
  const auto z0 = OfCall([](auto&, auto& k, auto&) { return Shape{k[0], k[1], k[3], 1}; });
  Tensor z = call_.tensors.z0;
  if (!z.empty()) {
    std::vector<Shape> column;
    for (size_t p = 0; p < z.size(); ++p) {
      column.push_back({z[p].shape[0], z[p].shape[1], z[p].shape[2], 1});
    }
    z = ops_.Reshape(z, column);
  }
  state_ = ops_.Concat({SplitState(call_.tensors.s0, s0), SplitState(z, z0)}, 3);
  if (!ops_.status().ok()) return;
  std::vector<Shape> ones = ShapesOf(v), grouped;
  for (size_t p = 0; p < v.size(); ++p) {
    ones[p].dims[3] = 1;
    const Shape &s = q[p].shape, &k = key_[p].shape;
    grouped.push_back({s[0], k[1], s[1] / k[1], s[2], s[3]});
  }
  const Tensor used = UsedKeys();
  if (!ops_.status().ok()) return;
  key_ = ops_.Select(used, key_, Number(0, key_));
  for (Tensor* x : {&decay_, &beta_}) {
    if (!x->empty()) *x = ops_.Select(used, *x, Number(0, *x));
  }
  value_ = ops_.Concat({ops_.Select(used, v, Number(0, v)), ops_.Constant(1, ones)}, 3);
  q_ = ops_.Reshape(q, grouped);
  readers_ = Readers();
  if (ops_.status().ok()) q_ = ops_.Select(readers_, q_, Number(0, q_));
}

Tensor Formula::UsedKeys() {
  if (!ops_.status().ok()) return {};
  const bool has_state = !call_.tensors.s0.empty() || !call_.tensors.z0.empty();
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> lists;
  for (const std::vector<ScanSeq>& seqs : call_.seqs) {
    for (const ScanSeq& seq : seqs) {
      shapes.push_back({1, 1, seq.nk, 1});
      std::vector<float>& list = lists.emplace_back();
      if (ops_.stream().is_dry()) continue;
      const ScanReach reach(o_.causal, seq, has_state, call_.tensors.final_state);
      list.resize(static_cast<size_t>(seq.nk));
      std::fill_n(list.begin(), reach.used_keys, 1.0f);
    }
  }
  return ops_.FromHost(shapes, std::move(lists));
}

Tensor Formula::Readers() {
  if (!ops_.status().ok()) return {};
  const bool has_state = !call_.tensors.s0.empty() || !call_.tensors.z0.empty();
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> lists;
  for (size_t p = 0; p < q_.size(); ++p) {
    const int64_t nq = q_[p].shape[3], nk = key_[p].shape[2];
    shapes.push_back({1, 1, 1, nq, 1});
    std::vector<float>& list = lists.emplace_back();
    for (int64_t i = 0; i < nq && !ops_.stream().is_dry(); ++i) {
      list.push_back(has_state || (nk > 0 && i + core_.offsets[p] + 1 > 0) ? 1 : 0);
    }
  }
  return ops_.FromHost(shapes, std::move(lists));
}

Tensor Formula::Feature(const Tensor& x) {
  const auto apply = [&](ElementOp op) { return ops_.Apply(op, x); };
  switch (o_.map) {
    case FeatureMap::kEluPlusOne:
      return apply(ElementOp::kEluPlusOne);
    case FeatureMap::kRelu:
      return apply(ElementOp::kRelu);
    case FeatureMap::kReluSquared:
      return apply(ElementOp::kReluSquared);
    case FeatureMap::kSquared:
      return apply(ElementOp::kSquare);
    case FeatureMap::kAbs:
      return apply(ElementOp::kAbs);
    case FeatureMap::kSigmoid:
      return apply(ElementOp::kSigmoid);
    case FeatureMap::kSilu:
      return apply(ElementOp::kSilu);
    case FeatureMap::kGelu:
      return apply(ElementOp::kGelu);
    default:
      return o_.offset == 0 ? x : ops_.Affine(x, 1, o_.offset);
  }
}

void Formula::SplitFeatures() {
  q_ = ops_.Select(readers_, Feature(q_), Number(0, q_));
  key_ = Feature(key_);
}

// With m_t the largest key of each feature up to key t: the state keeps sums of e^(k - m_t), and a
// query reads them by e^(q + m_t - most_), most_ the largest q + m_t of the features. So d >= 1 and
// no weight overflows. Large q and m_t lose no digits: each is taken relative to its own largest
// first. Shifts cancel, so the gradient takes them as constants.
void Formula::SplitExp() {
  const Tensor keys = ops_.Stop(key_);
  const Tensor largest = ops_.Cumulative(CumulativeOp::kMax, keys, 2);
  const Tensor before = ops_.Cumulative(CumulativeOp::kMax, keys, 2, /*exclusive=*/true);
  const Tensor shift = Finite(largest);
  decay_ = Minus(before, shift);
  key_ = ops_.Apply(ElementOp::kExp, Minus(key_, shift));
  const Tensor most_key = Finite(ops_.Reduce(ReduceOp::kMax, largest, 3));
  const Tensor most_query = Finite(ops_.Reduce(ReduceOp::kMax, ops_.Stop(q_), 4));
  const Tensor seen = LastKeys();
  const Tensor sum =
      ops_.Apply(ElementOp::kAdd, Minus(q_, most_query), SeenBy(seen, Minus(largest, most_key)));
  const Tensor most = Finite(ops_.Reduce(ReduceOp::kMax, ops_.Stop(sum), 4));
  const Tensor weight = ops_.Apply(ElementOp::kExp, Minus(sum, most));
  most_ = ops_.Apply(ElementOp::kAdd, most,
                     ops_.Apply(ElementOp::kAdd, most_query, SeenBy(seen, most_key)));
  q_ = ops_.Select(readers_, weight, Number(0, weight));
}

// Of every query the last key that it sees, [1,1,Nq].
Tensor Formula::LastKeys() {
  if (!ops_.status().ok()) return {};
  std::vector<Shape> shapes;
  std::vector<std::vector<int32_t>> lists;
  for (size_t p = 0; p < q_.size(); ++p) {
    const int64_t nq = q_[p].shape[3], nk = key_[p].shape[2];
    shapes.push_back({1, 1, nq});
    std::vector<int32_t>& list = lists.emplace_back();
    for (int64_t i = 0; i < nq && !ops_.stream().is_dry(); ++i) {
      list.push_back(static_cast<int32_t>(std::clamp<int64_t>(i + core_.offsets[p], -1, nk - 1)));
    }
  }
  return ops_.FromHost(shapes, std::move(lists));
}

// What `of_keys` [c,Hkv,Nk,F] has at the last key that a query sees, [c,Hkv,1,Nq,F].
Tensor Formula::SeenBy(const Tensor& last_keys, const Tensor& of_keys) {
  const Tensor found = ops_.Gather(of_keys, last_keys);
  if (!ops_.status().ok()) return {};
  std::vector<Shape> grouped;
  for (size_t p = 0; p < found.size(); ++p) {
    const Shape& s = found[p].shape;
    grouped.push_back({s[0], s[1], 1, s[2], s[3]});
  }
  return ops_.Reshape(found, grouped);
}

// out and lse of kExp from num = scale S^T e^(q - most) and d.
void Formula::JoinExp(const Tensor& num, const Tensor& d, Tensor* out, Tensor* lse) {
  const Tensor is_zero = ops_.Apply(ElementOp::kEqual, d, Number(0, d));
  const Tensor log = ops_.Apply(ElementOp::kLog, ops_.Select(is_zero, Number(1, d), d));
  *lse = ops_.Select(is_zero, Number(-kInf, d), ops_.Apply(ElementOp::kAdd, log, most_));
  if (o_.den == ScanDen::kOne) {
    // In two factors: the product may be in range where e^most is not.
    const Tensor half = ops_.Apply(ElementOp::kExp, ops_.Affine(most_, 0.5));
    *out = Times(Times(num, half), half);
  } else {
    *out = ops_.Apply(ElementOp::kSafeDivide, num, d);
  }
}

Tensor Formula::Den(const Tensor& d) {
  const Tensor eps = Number(static_cast<float>(o_.eps), d);
  const auto above = [&](const Tensor& x) {
    return ops_.Select(ops_.Apply(ElementOp::kGreater, x, eps), x, eps);
  };
  switch (o_.den) {
    case ScanDen::kJax: {
      const Tensor far = ops_.Apply(ElementOp::kGreater, ops_.Apply(ElementOp::kAbs, d), eps);
      const Tensor more = ops_.Select(far, Number(0, d), ops_.Affine(eps, 2));
      return ops_.Apply(ElementOp::kAdd, d, ops_.Stop(more));
    }
    case ScanDen::kClamp:
      return above(d);
    case ScanDen::kAbsClamp:
      return above(ops_.Apply(ElementOp::kAbs, d));
    default:
      return ops_.Affine(d, 1, o_.eps);
  }
}

ScanOut Formula::Joined(const ScanCore::Result& result) {
  std::vector<int64_t> E, Dv, zero = {0};
  std::vector<Shape> outs, lses, sums;
  for (size_t p = 0; p < q_.size(); ++p) {
    const Shape& s = result.reads[p].shape;
    E.push_back(s[4]);
    Dv.push_back(s[4] - 1);
    outs.push_back({s[0], s[1] * s[2], s[3], s[4] - 1});
    lses.push_back({s[0], s[1] * s[2], s[3]});
    sums.push_back({s[0], s[1], result.state[p].shape[2]});
  }
  const Tensor num = ops_.Affine(ops_.Slice(result.reads, 4, zero, Dv), o_.scale);
  const Tensor d = ops_.Slice(result.reads, 4, Dv, E);
  Tensor out = num, lse;
  if (o_.map == FeatureMap::kExp) {
    JoinExp(num, d, &out, &lse);
  } else {
    if (o_.den != ScanDen::kOne) out = ops_.Apply(ElementOp::kSafeDivide, num, Den(d));
    const Tensor is_above = ops_.Apply(ElementOp::kGreater, d, Number(0, d));
    const Tensor log = ops_.Apply(ElementOp::kLog, ops_.Select(is_above, d, Number(1, d)));
    lse = ops_.Select(is_above, log, Number(std::numeric_limits<float>::quiet_NaN(), d));
  }
  if (!ops_.status().ok()) return {};
  lse = ops_.Select(readers_, lse, Number(-kInf, lse));
  out = ops_.Select(readers_, out, Number(0, out));
  ScanOut joined;
  joined.out = ops_.JoinBatch(ops_.Reshape(out, outs), OfCall([](auto& q, auto&, auto& v) {
                                return Shape{q[0], q[1], q[2], v[3]};
                              }));
  joined.lse = ops_.JoinBatch(ops_.Reshape(lse, lses), OfCall([](auto& q, auto&, auto&) {
                                return Shape{q[0], q[1], q[2]};
                              }),
                              -kInf);
  if (!call_.tensors.final_state) return joined;
  joined.s_out =
      ops_.JoinBatch(ops_.Slice(result.state, 3, zero, Dv), OfCall([](auto&, auto& k, auto& v) {
                       return Shape{k[0], k[1], k[3], v[3]};
                     }));
  joined.z_out = ops_.JoinBatch(ops_.Reshape(ops_.Slice(result.state, 3, Dv, E), sums),
                                OfCall([](auto&, auto& k, auto&) {
                                  return Shape{k[0], k[1], k[3]};
                                }));
  return joined;
}

}  // namespace

void ComposeScan(Ops& ops, const ScanCall& call, const ScanOut& out) {
  const Uncounted scope(ops);
  // Lists of other lengths stand for other counts on a dry stream: `ops` must not take them over.
  Ops inner(ops.stream(), nullptr);
  const ScanOut from = Formula(inner, call).Run();
  ops.Fail(inner.status());
  if (!ops.status().ok()) return;
  ops.CopyInto(ViewsOf(from.out), ViewsOf(out.out));
  if (call.tensors.wants_lse) ops.CopyInto(ViewsOf(from.lse), ViewsOf(out.lse));
  if (!call.tensors.final_state) return;
  ops.CopyInto(ViewsOf(from.s_out), ViewsOf(out.s_out));
  ops.CopyInto(ViewsOf(from.z_out), ViewsOf(out.z_out));
}

std::vector<Tensor> ComposeScanGrad(Ops& ops, const ScanCall& call, std::span<const Tensor> grads,
                                    const std::vector<bool>& wanted) {
  const Uncounted scope(ops);
  ScanCall own = call;
  Tensor* const inputs[] = {
      &own.q,          &own.k,         &own.v, &own.tensors.log_decay, &own.tensors.beta,
      &own.tensors.s0, &own.tensors.z0};
  Tape tape;
  Ops inner(ops.stream(), &tape);
  std::vector<Tensor> watched;
  for (size_t i = 0; i < std::size(inputs); ++i) {
    if (!wanted[i]) continue;
    // A tensor may be q and k at once: each has a gradient of its own.
    *inputs[i] = inner.Stop(*inputs[i]);
    tape.Watch(*inputs[i]);
    watched.push_back(*inputs[i]);
  }
  const ScanOut out = Formula(inner, own).Run();
  std::vector<Tensor> outputs = {out.out, out.lse};
  if (call.tensors.final_state) outputs.insert(outputs.end(), {out.s_out, out.z_out});
  std::vector<Tensor> back(watched.size());
  if (inner.status().ok()) {
    back = tape.Replay(inner, outputs, grads.first(outputs.size()), watched);
  }
  ops.Fail(inner.status());
  std::vector<Tensor> result(std::size(inputs));
  for (size_t i = 0, w = 0; i < result.size(); ++i) {
    if (wanted[i]) result[i] = back[w++];
  }
  return result;
}

}  // namespace attnd
