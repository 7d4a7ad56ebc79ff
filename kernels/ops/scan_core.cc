// The recurrence of a composed scan, key by key, in chunks: what is kept for the gradient is the
// state before each chunk, whose steps are computed again.
#include "kernels/ops/scan_core.h"

#include <algorithm>

#include "kernels/core/integer.h"
#include "kernels/ops/composed.h"

namespace attnd {
namespace {

constexpr int64_t kChunk = 64;  // states of one chunk at a time are in memory

using Indices = std::vector<int64_t>;

class Chunks {
 public:
  Chunks(const ScanCore& core, const Tensor& q, const Tensor& k) : core_(core) {
    for (size_t p = 0; p < q.size(); ++p) {
      nq_.push_back(q[p].shape[3]);
      nk_.push_back(k[p].shape[2]);
      longest_ = std::max(longest_, nk_.back());
    }
  }
  int64_t count() const { return std::max<int64_t>(CeilDiv(longest_, kChunk), 1); }

  // Keys before key t, of every problem.
  Indices Keys(int64_t t) const {
    Indices list;
    for (int64_t nk : nk_) list.push_back(std::min(t, nk));
    return list;
  }
  // Queries that have seen at most t keys.
  Indices Queries(int64_t t) const {
    Indices list;
    for (size_t p = 0; p < nq_.size(); ++p) {
      const int64_t some = std::clamp<int64_t>(t - core_.offsets[p], 0, nq_[p]);
      list.push_back(t >= nk_[p] ? nq_[p] : t < 0 ? 0 : some);
    }
    return list;
  }

  // Its part of q [.., n, D] and of what lies along the keys; the state stays whole.
  std::vector<Tensor> Inputs(Ops& ops, const std::vector<Tensor>& all, int64_t chunk) const {
    std::vector<Tensor> parts;
    for (size_t i = 0; i < all.size(); ++i) parts.push_back(Part(ops, all[i], i, chunk));
    return parts;
  }
  Tensor Part(Ops& ops, const Tensor& x, size_t i, int64_t chunk) const {
    if (x.empty() || i == ScanCore::kState) return x;
    if (i == ScanCore::kQuery)
      return ops.Slice(x, 3, Queries(FirstRead(chunk)), Queries(End(chunk)));
    return ops.Slice(x, 2, Keys(chunk * kChunk), Keys(End(chunk)));
  }

  // What the queries of a chunk read, and the state after it.
  std::vector<Tensor> Run(Ops& ops, const std::vector<Tensor>& in, int64_t chunk) const {
    const int64_t begin = chunk * kChunk, end = End(chunk);
    Tensor state = in[ScanCore::kState];
    std::vector<Tensor> reads;
    const auto read = [&](int64_t from, int64_t to) {
      const Tensor q = ops.Slice(in[ScanCore::kQuery], 3, Since(Queries(from), FirstRead(chunk)),
                                 Since(Queries(to), FirstRead(chunk)));
      reads.push_back(ops.MatMul(q, Grouped(ops, state)));
    };
    if (chunk == 0) read(-1, 0);
    for (int64_t t = begin; t < end && ops.status().ok(); ++t) {
      const auto at = [&](size_t i) {
        const Indices first = Keys(begin);
        Indices from = Keys(t), to = Keys(t + 1);
        for (size_t p = 0; p < first.size(); ++p) from[p] -= first[p], to[p] -= first[p];
        return ops.Slice(in[i], 2, from, to);
      };
      state = Step(ops, in, at, state);
      read(t, t + 1);
    }
    return {ops.Concat(reads, 3), state};
  }

 private:
  int64_t End(int64_t chunk) const { return std::min((chunk + 1) * kChunk, longest_); }
  // The first chunk also reads what no key has changed.
  static int64_t FirstRead(int64_t chunk) { return chunk == 0 ? -1 : chunk * kChunk; }
  Indices Since(Indices list, int64_t first) const {
    const Indices before = Queries(first);
    for (size_t p = 0; p < list.size(); ++p) list[p] -= before[p];
    return list;
  }
  // [c,Hkv,D,E] as [c,Hkv,1,D,E].
  static Tensor Grouped(Ops& ops, const Tensor& state) {
    if (!ops.status().ok()) return {};
    std::vector<Shape> shapes;
    for (size_t p = 0; p < state.size(); ++p) {
      const Shape& s = state[p].shape;
      shapes.push_back({s[0], s[1], 1, s[2], s[3]});
    }
    return ops.Reshape(state, shapes);
  }
  // One key; in problems that have no more of them the state stays.
  template <class At>
  Tensor Step(Ops& ops, const std::vector<Tensor>& in, const At& at, const Tensor& before) const {
    Tensor state = before;
    if (!in[ScanCore::kDecay].empty()) {
      const Tensor log = ops.Reduce(ReduceOp::kSum, at(ScanCore::kDecay), 2);
      const Tensor decay = ops.Transpose(ops.Apply(ElementOp::kExp, log), 2, 3);
      state = ops.Apply(ElementOp::kMultiply, state, decay);
    }
    const Tensor key = at(ScanCore::kKey);
    Tensor write = at(ScanCore::kValue);
    if (!core_.learned.empty()) {
      const Tensor found = ops.MatMul(key, state);
      write = ops.Apply(ElementOp::kSubtract, write,
                        ops.Apply(ElementOp::kMultiply, found, core_.learned));
    }
    if (!in[ScanCore::kBeta].empty()) {
      write = ops.Apply(ElementOp::kMultiply, write, at(ScanCore::kBeta));
    }
    return ops.Apply(ElementOp::kAdd, state, ops.MatMul(ops.Transpose(key, 2, 3), write));
  }

  const ScanCore& core_;
  Indices nq_, nk_;
  int64_t longest_ = 0;
};

Tensor ZerosLike(Ops& ops, const Tensor& x) {
  const Tensor zeros = ops.Empty(DType::kF32, ShapesOf(x));
  if (ops.status().ok()) ApplyInto(ops, ElementOp::kCopy, zeros, NumberLike(ops, 0, x));
  return zeros;
}

// From the last chunk to the first.
std::vector<Tensor> Back(Ops& ops, const ScanCore& core, std::vector<Tensor> in,
                         const std::vector<Tensor>& states, std::span<const Tensor> grads) {
  const Chunks chunks(core, in[ScanCore::kQuery], in[ScanCore::kKey]);
  std::vector<Tensor> result;
  for (const Tensor& x : in) result.push_back(x.empty() ? Tensor() : ZerosLike(ops, x));
  if (!grads[1].empty()) result[ScanCore::kState] = grads[1];
  for (int64_t c = chunks.count() - 1; c >= 0 && ops.status().ok(); --c) {
    Tape tape;
    Ops inner(ops.stream(), &tape);
    core.count_alike(inner);
    in[ScanCore::kState] = states[static_cast<size_t>(c)];
    const std::vector<Tensor> parts = chunks.Inputs(inner, in, c);
    std::vector<Tensor> watched;
    for (const Tensor& part : parts) {
      if (part.empty()) continue;
      // A handle of its own: the state of the first chunk may be an input.
      watched.push_back(part);
      tape.Watch(part);
    }
    const std::vector<Tensor> out = chunks.Run(inner, parts, c);
    Tensor flow;
    if (!grads[0].empty()) flow = chunks.Part(ops, grads[0], ScanCore::kQuery, c);
    std::vector<Tensor> back;
    if (inner.status().ok()) {
      back = tape.Replay(inner, out, {{flow, result[ScanCore::kState]}}, watched);
    }
    ops.Fail(inner.status());
    for (size_t i = 0, w = 0; i < in.size() && ops.status().ok(); ++i) {
      if (in[i].empty()) continue;
      const Tensor& grad = back[w++];
      if (grad.empty()) continue;
      if (i == ScanCore::kState) {
        result[i] = grad;
      } else {
        ops.CopyInto(ViewsOf(grad), ViewsOf(chunks.Part(ops, result[i], i, c)));
      }
    }
  }
  return result;
}

}  // namespace

ScanCore::Result ScanCore::Run(Ops& ops, const std::vector<Tensor>& in) const {
  if (!ops.status().ok()) return {};
  const Chunks chunks(*this, in[kQuery], in[kKey]);
  const bool recording = ops.recording(), records = recording && ops.tape() != nullptr;
  std::vector<Shape> shapes;
  for (size_t p = 0; p < in[kQuery].size(); ++p) {
    shapes.push_back(in[kQuery][p].shape);
    shapes.back().dims[4] = in[kValue][p].shape[3];
  }
  Result result = {ops.Empty(DType::kF32, shapes), in[kState]};
  std::vector<Tensor> all = in, states;
  ops.set_recording(false);
  for (int64_t c = 0; c < chunks.count() && ops.status().ok(); ++c) {
    if (records) states.push_back(result.state);
    all[kState] = result.state;
    const std::vector<Tensor> out = chunks.Run(ops, chunks.Inputs(ops, all, c), c);
    if (!ops.status().ok()) break;
    ops.CopyInto(ViewsOf(out[0]), ViewsOf(chunks.Part(ops, result.reads, kQuery, c)));
    result.state = out[1];
  }
  ops.set_recording(recording);
  if (!ops.status().ok()) return {};
  if (result.state.id() == in[kState].id()) result.state = ops.Stop(result.state);
  if (records) {
    ops.tape()->Record(in, {result.reads, result.state},
                       [core = *this, in, states](Ops& o, std::span<const Tensor> grads,
                                                  const std::vector<bool>&) {
                         return Back(o, core, in, states, grads);
                       });
  }
  return result;
}

}  // namespace attnd
