// One key of a composed scan, over the problems that have it: what the recurrence of scan_core.h
// and its gradient share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/core/stopped.h"
#include "kernels/ops/scan_core.h"

namespace attnd {

constexpr int64_t kScanCoreChunk = 64;  // states of one chunk at a time are in memory

// Elements [begin, end) along an axis.
inline View Part(View view, int axis, int64_t begin, int64_t end) {
  view.layout = Layout::kBHND;
  view.shape.dims[axis] = end - begin;
  if (view.data != nullptr)
    view.data = view.As<char>() + begin * view.stride[axis] * SizeOf(view.dtype);
  return view;
}
inline View Transposed(View view) {
  const int last = view.shape.rank - 1;
  std::swap(view.shape.dims[last - 1], view.shape.dims[last]);
  std::swap(view.stride[last - 1], view.stride[last]);
  return view;
}
// [c,Hkv,D,E] as [c,Hkv,1,D,E].
inline View Grouped(const View& view) {
  View grouped = view;
  grouped.shape = {view.shape[0], view.shape[1], 1, view.shape[2], view.shape[3]};
  grouped.stride = {view.stride[0], view.stride[1], 0, view.stride[2], view.stride[3]};
  return grouped;
}
// Entry t of [c,Hkv,T,D,E], as [c,Hkv,D,E].
inline View Entry(const View& view, int64_t t) {
  View entry = Part(view, 2, t, t + 1);
  entry.shape = {view.shape[0], view.shape[1], view.shape[3], view.shape[4]};
  entry.stride = {view.stride[0], view.stride[1], view.stride[3], view.stride[4]};
  return entry;
}

// What both directions share.
class ScanSteps {
 public:
  using Problems = std::vector<size_t>;
  using ViewFor = std::function<View(size_t p)>;

  ScanSteps(Ops& ops, const ScanCore& core, const std::vector<Tensor>& in)
      : ops_(ops), core_(core), in_(in) {
    for (size_t p = 0; p < in[ScanCore::kKey].size(); ++p) {
      const Shape& k = in[ScanCore::kKey][p].shape;
      longest_ = std::max(longest_, k[2]);
      states_.push_back({k[0], k[1], k[3], in[ScanCore::kValue][p].shape[3]});
    }
    const Tensor &decay = in[ScanCore::kDecay], &beta = in[ScanCore::kBeta];
    if (!decay.empty()) {
      factor_ = ops.Apply(ElementOp::kExp, decay);
      decayed_ = States();
    }
    // The delta rule writes all but the last column again.
    const bool is_given = beta.empty() && !core.is_delta;
    write_ = is_given       ? in[ScanCore::kValue]
             : beta.empty() ? ops.Copy(in[ScanCore::kValue])
                            : ops.Apply(ElementOp::kMultiply, in[ScanCore::kValue], beta);
  }

 protected:
  size_t size() const { return states_.size(); }
  int64_t longest() const { return longest_; }
  int64_t Keys(size_t p) const { return in_[ScanCore::kKey][p].shape[2]; }
  bool Has(ScanCore::Input i) const { return !in_[i].empty(); }
  // The row of key t.
  View At(ScanCore::Input i, size_t p, int64_t t) const { return Row(in_[i], p, t); }
  static View Row(const Tensor& x, size_t p, int64_t t) { return Part(x[p], 2, t, t + 1); }
  // The queries that read the state after `t` keys, of a tensor [c,Hkv,G,Nq,..].
  View Readers(const Tensor& x, size_t p, int64_t t) const {
    return Part(x[p], 3, t == 0 ? 0 : ReadersUntil(p, t - 1), ReadersUntil(p, t));
  }
  // All columns that the delta rule corrects.
  static View Corrected(const View& view) { return Part(view, 3, 0, view.shape[3] - 1); }
  static View LastColumn(const View& view) {
    return Part(view, 3, view.shape[3] - 1, view.shape[3]);
  }

  Tensor States() { return ops_.Empty(DType::kF32, states_); }
  // [c,Hkv,entries,D,E].
  Tensor ListOfStates(const std::function<int64_t(size_t)>& entries) {
    std::vector<Shape> shapes;
    for (size_t p = 0; p < size(); ++p) {
      const Shape& s = states_[p];
      shapes.push_back({s[0], s[1], entries(p), s[2], s[3]});
    }
    return ops_.Empty(DType::kF32, shapes);
  }
  template <class F>
  Problems Where(const F& holds) const {
    Problems list;
    for (size_t p = 0; p < size(); ++p) {
      if (holds(p)) list.push_back(p);
    }
    return list;
  }
  Problems All() const {
    return Where([](size_t) { return true; });
  }
  Problems WithKey(int64_t t) const {
    return Where([&](size_t p) { return t < Keys(p); });
  }
  Problems WithReaders(int64_t t) const {
    return Where([&](size_t p) {
      return t <= Keys(p) && Readers(in_[ScanCore::kQuery], p, t).shape[3] > 0;
    });
  }

  // Calls step(t, count) for every `stride`-th t of [begin, end). On a dry stream one step stands
  // for `count` of them that launch the same, so that a plan takes as long for any number of keys.
  template <class F>
  void Steps(int64_t begin, int64_t end, int64_t stride, const F& step) {
    for (int64_t t = begin; t < end && ops_.status().ok();) {
      if (CheckPoint()) ops_.Fail(StoppedStatus());
      int64_t count = 1;
      if (ops_.stream().is_dry()) {
        count = CeilDiv(std::min(NextChange(t), end) - t, stride);
      }
      const Work before = ops_.stream().work();
      step(t, count);
      ops_.stream().work().Repeat(before, count);
      t += count * stride;
    }
  }

  // One launch each, over `problems`.
  void Product(const Problems& problems, double alpha, const ViewFor& a, const ViewFor& b,
               const ViewFor& out, const ViewFor& bias = nullptr,
               const ViewFor& multiply = nullptr) {
    if (problems.empty() || !ops_.status().ok()) return;
    MatMulArgs args{.alpha = alpha};
    for (size_t p : problems) {
      args.problems.push_back({.a = a(p),
                               .b = b(p),
                               .bias = bias == nullptr ? View() : bias(p),
                               .multiply = multiply == nullptr ? View() : multiply(p),
                               .out = out(p)});
    }
    ops_.Run(std::move(args));
  }
  void Elementwise(ElementOp op, const Problems& problems, const ViewFor& a, const ViewFor& out,
                   const ViewFor& b = nullptr) {
    if (problems.empty() || !ops_.status().ok()) return;
    ElementwiseArgs args{.op = op};
    for (size_t p : problems) {
      args.problems.push_back({.a = a(p), .b = b == nullptr ? View() : b(p), .out = out(p)});
    }
    ops_.Run(std::move(args));
  }
  void Copy(const Problems& problems, const ViewFor& from, const ViewFor& to) {
    Elementwise(ElementOp::kCopy, problems, from, to);
  }

  // S' of key t from the state before it.
  void Decay(const Problems& some, int64_t t, const ViewFor& before) {
    if (!Has(ScanCore::kDecay)) return;
    Elementwise(
        ElementOp::kMultiply, some, before, [&](size_t p) { return decayed_[p]; },
        [&](size_t p) { return Transposed(Row(factor_, p, t)); });
  }
  View Decayed(size_t p, const ViewFor& before) const {
    return Has(ScanCore::kDecay) ? decayed_[p] : before(p);
  }
  // value - S'^T key, times `multiply`, of the columns that the delta rule corrects.
  void Unexplained(const Problems& some, int64_t t, const ViewFor& before, const ViewFor& out,
                   const ViewFor& multiply) {
    Product(
        some, -1, [&](size_t p) { return At(ScanCore::kKey, p, t); },
        [&](size_t p) { return Corrected(Decayed(p, before)); }, out,
        [&](size_t p) { return Corrected(At(ScanCore::kValue, p, t)); }, multiply);
  }
  // The state after key t.
  void Step(int64_t t, const ViewFor& before, const ViewFor& after) {
    const Problems some = WithKey(t);
    Decay(some, t, before);
    if (core_.is_delta) {
      const ViewFor beta = [&](size_t p) { return At(ScanCore::kBeta, p, t); };
      Unexplained(
          some, t, before, [&](size_t p) { return Corrected(Row(write_, p, t)); },
          Has(ScanCore::kBeta) ? beta : nullptr);
    }
    Product(
        some, 1, [&](size_t p) { return Transposed(At(ScanCore::kKey, p, t)); },
        [&](size_t p) { return Row(write_, p, t); }, after,
        [&](size_t p) { return Decayed(p, before); });
  }

  Ops& ops_;
  const ScanCore& core_;
  const std::vector<Tensor>& in_;
  Tensor factor_;   // e^decay
  Tensor decayed_;  // S'
  Tensor write_;    // [c,Hkv,Nk,E], beta (value - S'^T key)

 private:
  // Queries before this one have read a state after at most `t` keys.
  int64_t ReadersUntil(size_t p, int64_t t) const {
    const int64_t nq = in_[ScanCore::kQuery][p].shape[3];
    return t >= Keys(p) ? nq : std::clamp<int64_t>(t - core_.offsets[p], 0, nq);
  }

  // The first step after t at which other problems have a key left, or other numbers of queries
  // read the state before or after it.
  int64_t NextChange(int64_t t) const {
    int64_t next = INT64_MAX;
    for (size_t p = 0; p < size(); ++p) {
      const int64_t nk = Keys(p), first = core_.offsets[p] + 1;
      const int64_t nq = in_[ScanCore::kQuery][p].shape[3];
      for (const int64_t change : {int64_t{1}, first, first + nq, nk, nk + 1}) {
        if (change - 1 > t) next = std::min(next, change - 1);
        if (change > t) next = std::min(next, change);
      }
    }
    return next;
  }

  int64_t longest_ = 0;
  std::vector<Shape> states_;
};

// The gradient of ScanCore::Run: of `in` from those of reads and state, empty: zero. `kept`: the
// state before each chunk but the first, [c,Hkv,chunks - 1,D,E].
std::vector<Tensor> ScanCoreGrad(Ops& ops, const ScanCore& core, const std::vector<Tensor>& in,
                                 const Tensor& kept, const std::vector<bool>& wanted,
                                 const Tensor& dreads, const Tensor& dstate);

}  // namespace attnd
