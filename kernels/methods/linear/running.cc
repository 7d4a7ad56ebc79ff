#include "kernels/methods/linear/running.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/run_control.h"
#include "kernels/core/stopped.h"

namespace attnd {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kKeys = 2;  // the axis of keys

// How many keys a query sees.
int64_t KeysSeen(const ScanSeq& seq, int64_t query) {
  return std::clamp<int64_t>(query + seq.offset + 1, 0, seq.nk);
}

// For each part the number of keys that its queries see, plus `more`.
template <class T>
std::vector<std::vector<T>> ListsSeen(Ops& ops, const std::vector<int64_t>& queries,
                                      const ScanSplit& split, int64_t more) {
  std::vector<std::vector<T>> lists(queries.size());
  for (size_t p = 0; p < queries.size() && !ops.stream().is_dry(); ++p) {
    if (CheckPoint()) ops.Fail(StoppedStatus());
    lists[p].resize(static_cast<size_t>(queries[p]));
    for (int64_t i = 0; i < queries[p]; ++i) {
      lists[p][i] = static_cast<T>(KeysSeen(split.seqs()[p][0], i) + more);
    }
  }
  return lists;
}

// The number of keys that each query of a part sees, [1,1,Nq,1].
Tensor CountsSeen(Ops& ops, const Tensor& phi_q, const ScanSplit& split) {
  std::vector<Shape> shapes;
  std::vector<int64_t> queries;
  for (const Shape& s : ShapesOf(phi_q)) {
    queries.push_back(s[2]);
    shapes.push_back({1, 1, s[2], 1});
  }
  return ops.FromHost(shapes, ListsSeen<float>(ops, queries, split, 0));
}

// The sums of values as the state of one feature, [B,Hkv,1,Dv].
Tensor AsState(Ops& ops, const KeyTotals& totals) {
  std::vector<Shape> shapes;
  for (const Shape& s : ShapesOf(totals.values)) shapes.push_back({s[0], s[1], 1, s[2]});
  return totals.values.empty() ? Tensor() : ops.Reshape(totals.values, shapes);
}

// strength_i sum_j v_j over the keys that query i sees. The scan of the other features counts the
// visible pairs.
Tensor SumsOfValues(Ops& ops, const Tensor& strength, const Tensor& v, const KeyTotals& before,
                    const ScanSplit& split) {
  std::vector<Shape> ones = ShapesOf(v);
  ScanSeqs seqs = split.seqs();
  for (size_t p = 0; p < v.size(); ++p) {
    ones[p].dims[3] = 1;
    for (ScanSeq& seq : seqs[p]) seq.visible_pairs = 0;
  }
  const ScanParams sums = {.map = FeatureMap::kIdentity, .causal = true, .den = ScanDen::kOne};
  return ops.Scan(strength, ops.Constant(1, ones), v, sums, seqs, {.s0 = AsState(ops, before)}).out;
}

}  // namespace

Tensor LastSeen(Ops& ops, const Tensor& x, bool has_first, const std::vector<Shape>& queries,
                const ScanSplit& split) {
  std::vector<Shape> shapes;
  std::vector<int64_t> rows;
  for (const Shape& s : queries) {
    rows.push_back(s[2]);
    shapes.push_back({1, 1, s[2]});
  }
  const int64_t more = has_first ? 0 : -1;
  return ops.Gather(x, ops.FromHost(shapes, ListsSeen<int32_t>(ops, rows, split, more)));
}

KeyTotals TotalsAfter(Ops& ops, const KeyTotals& before, const Tensor& v) {
  if (!ops.status().ok()) return {};
  std::vector<Shape> sums, counts;
  std::vector<std::vector<float>> keys;
  for (const Shape& s : ShapesOf(v)) {
    sums.push_back({s[0], s[1], s[3]});
    counts.push_back({s[0], 1, 1, 1});
    keys.emplace_back(s[0], static_cast<float>(s[kKeys]));
  }
  KeyTotals after = {.values = ops.Reshape(ops.Reduce(ReduceOp::kSum, v, kKeys), sums),
                     .count = ops.FromHost(counts, std::move(keys))};
  if (before.values.empty()) return after;
  return {.values = ops.Apply(ElementOp::kAdd, after.values, before.values),
          .count = ops.Apply(ElementOp::kAdd, after.count, before.count)};
}

void AddConstant(Ops& ops, double eps, const KeyTotals& of_keys, Tensor* s, Tensor* z) {
  if (!ops.status().ok()) return;
  *s = ops.Apply(ElementOp::kAdd, *s, ops.Affine(AsState(ops, of_keys), eps));
  std::vector<Shape> flat;
  for (const Shape& n : ShapesOf(of_keys.count)) flat.push_back({n[0], 1, 1});
  *z = ops.Apply(ElementOp::kAdd, *z, ops.Affine(ops.Reshape(of_keys.count, flat), eps));
}

void AddToKeys(Ops& ops, const ConstantFeature& constant, const Tensor& phi_q, const Tensor& v,
               const KeyTotals& before, const ScanSplit& split, ScanOut* scanned) {
  if (!ops.status().ok()) return;
  const auto apply = [&](ElementOp op, const Tensor& a, const Tensor& b) {
    return ops.Apply(op, a, b);
  };
  const Tensor strength = ops.Affine(ops.Reduce(ReduceOp::kSum, phi_q, -1), constant.eps);
  const Tensor more = SumsOfValues(ops, strength, v, before, split);
  Tensor counts = CountsSeen(ops, phi_q, split);
  if (!before.count.empty()) counts = apply(ElementOp::kAdd, counts, before.count);
  if (!ops.status().ok()) return;
  const Tensor log_d = ops.Reshape(scanned->lse, ShapesOf(strength));
  const auto number = [&](double x) { return NumberLike(ops, static_cast<float>(x), log_d); };
  const Tensor zero = number(0), least = number(-kInf);
  // d of the other features; their lse is NaN or -inf where it is 0.
  const Tensor is_given = apply(ElementOp::kGreater, log_d, least);
  const Tensor others = ops.Apply(ElementOp::kExp, ops.Select(is_given, log_d, zero));
  const Tensor d = apply(ElementOp::kAdd, ops.Select(is_given, others, zero),
                         apply(ElementOp::kMultiply, strength, counts));
  scanned->out = apply(ElementOp::kAdd, scanned->out, more);
  if (constant.is_normalised) {
    const Tensor is_far = apply(ElementOp::kGreater, d, number(constant.den_eps));
    const Tensor den =
        apply(ElementOp::kAdd, d, ops.Select(is_far, zero, number(2 * constant.den_eps)));
    scanned->out = apply(ElementOp::kSafeDivide, scanned->out, den);
  }
  const Tensor is_positive = apply(ElementOp::kGreater, d, zero);
  const Tensor log = ops.Apply(ElementOp::kLog, ops.Select(is_positive, d, number(1)));
  const Tensor of_seen = ops.Select(is_positive, log, number(std::nan("")));
  const Tensor lse = ops.Select(apply(ElementOp::kGreater, counts, zero), of_seen, least);
  scanned->lse = ops.Reshape(lse, ShapesOf(scanned->lse));
}

}  // namespace attnd
