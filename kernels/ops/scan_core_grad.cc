// The gradient of a composed scan's recurrence. It goes back in chunks: what is kept for it is the
// state before each chunk, whose states are computed again.
#include <algorithm>

#include "kernels/ops/composed.h"
#include "kernels/ops/scan_steps.h"

namespace attnd {
namespace {

class Backward : public ScanSteps {
 public:
  Backward(Ops& ops, const ScanCore& core, const std::vector<Tensor>& in, const Tensor& kept,
           const std::vector<bool>& wanted)
      : ScanSteps(ops, core, in), kept_(kept), result_(in.size()), flips_(size(), false) {
    for (size_t i = 0; i < in.size(); ++i) {
      if (in[i].empty() || i == ScanCore::kState || (i == ScanCore::kDecay && !wanted[i])) continue;
      result_[i] = ops.Empty(DType::kF32, ShapesOf(in[i]));
    }
    history_ = ListOfStates([&](size_t p) { return std::min(Keys(p), kScanCoreChunk); });
    flow_ = States(), other_flow_ = States();
    flow_of_write_ = OneRow(ScanCore::kValue), flow_of_key_ = OneRow(ScanCore::kKey);
    if (Has(ScanCore::kBeta)) unexplained_ = OneRow(ScanCore::kValue);
    if (result_[ScanCore::kDecay].empty()) return;
    product_ = States();
    std::vector<Shape> columns = ShapesOf(product_);
    for (Shape& shape : columns) shape.dims[3] = 1;
    sums_ = ops.Empty(DType::kF32, columns);
  }

  // Gradients of the inputs from those of reads and state; empty: zero.
  std::vector<Tensor> Run(const Tensor& dreads, const Tensor& dstate) {
    if (!ops_.status().ok()) return std::vector<Tensor>(result_.size());
    const Tensor start = dstate.empty() ? NumberLike(ops_, 0, flow_) : dstate;
    ApplyInto(ops_, ElementOp::kCopy, flow_, start);
    if (dreads.empty()) {
      const Tensor& dq = result_[ScanCore::kQuery];
      ApplyInto(ops_, ElementOp::kCopy, dq, NumberLike(ops_, 0, dq));
    }
    // The steps are the same in one chunk, which is enough for a plan.
    const bool is_dry = ops_.stream().is_dry();
    const int64_t chunk = is_dry ? std::max<int64_t>(longest(), 1) : kScanCoreChunk;
    const int64_t chunks = std::max<int64_t>(CeilDiv(longest(), chunk), 1);
    for (int64_t c = chunks - 1; c >= 0 && ops_.status().ok(); --c) {
      const int64_t begin = c * chunk, end = std::min(begin + chunk, longest());
      const auto state = [&](size_t p, int64_t t) {
        if (t > begin) return Entry(history_[p], t - begin - 1);
        return c == 0 ? in_[ScanCore::kState][p] : Entry(kept_[p], c - 1);
      };
      Steps(begin, end, 1, [&](int64_t t, int64_t) {
        Step(
            t, [&](size_t p) { return state(p, t); }, [&](size_t p) { return state(p, t + 1); });
      });
      Steps(begin, end, 1, [&](int64_t i, int64_t count) {
        const int64_t t = is_dry ? i : begin + end - 1 - i;
        const std::vector<bool> flips = flips_;
        BackFromReads(t + 1, dreads, [&](size_t p) { return state(p, t + 1); });
        BackFromStep(t, [&](size_t p) { return state(p, t); });
        if (count % 2 == 0) flips_ = flips;  // as after `count` such steps
      });
    }
    BackFromReads(0, dreads, [&](size_t p) { return in_[ScanCore::kState][p]; });
    result_[ScanCore::kState] = other_flow_;
    Copy(
        Where([&](size_t p) { return !flips_[p]; }), [&](size_t p) { return flow_[p]; },
        [&](size_t p) { return other_flow_[p]; });
    return result_;
  }

 private:
  // Memory for one key.
  Tensor OneRow(ScanCore::Input i) {
    std::vector<Shape> shapes = ShapesOf(in_[i]);
    for (Shape& shape : shapes) shape.dims[2] = 1;
    return ops_.Empty(DType::kF32, shapes);
  }
  // The gradient of the state, and where its next value goes.
  View Flow(size_t p) const { return flips_[p] ? other_flow_[p] : flow_[p]; }
  View Next(size_t p) const { return flips_[p] ? flow_[p] : other_flow_[p]; }
  void Flip(const Problems& some) {
    for (size_t p : some) flips_[p] = !flips_[p];
  }

  void BackFromReads(int64_t t, const Tensor& dreads, const ViewFor& state) {
    if (dreads.empty()) return;
    const Problems some = WithReaders(t);
    const auto incoming = [&](size_t p) { return Readers(dreads, p, t); };
    Product(
        some, 1, incoming, [&](size_t p) { return Transposed(Grouped(state(p))); },
        [&](size_t p) { return Readers(result_[ScanCore::kQuery], p, t); });
    Product(
        some, 1, [&](size_t p) { return Transposed(Readers(in_[ScanCore::kQuery], p, t)); },
        incoming, [&](size_t p) { return Grouped(Next(p)); },
        [&](size_t p) { return Grouped(Flow(p)); });
    Flip(some);
  }

  void BackFromStep(int64_t t, const ViewFor& before) {
    const Problems some = WithKey(t);
    const auto key = [&](size_t p) { return At(ScanCore::kKey, p, t); };
    const auto dvalue = [&](size_t p) { return Row(result_[ScanCore::kValue], p, t); };
    const auto dkey = [&](size_t p) { return Row(result_[ScanCore::kKey], p, t); };
    const auto flow = [&](size_t p) { return Flow(p); };
    const auto next = [&](size_t p) { return Next(p); };
    Decay(some, t, before);
    if (Has(ScanCore::kBeta)) {
      BackToBeta(some, t, before);
    } else {
      Product(some, 1, key, flow, dvalue);
    }
    Product(
        some, 1, [&](size_t p) { return Row(write_, p, t); },
        [&](size_t p) { return Transposed(Flow(p)); },
        [&](size_t p) { return core_.is_delta ? flow_of_key_[p] : dkey(p); });
    if (core_.is_delta) {
      const auto dfound = [&](size_t p) { return Corrected(dvalue(p)); };
      Product(
          some, -1, dfound, [&](size_t p) { return Transposed(Corrected(Decayed(p, before))); },
          dkey, [&](size_t p) { return flow_of_key_[p]; });
      Product(
          some, -1, [&](size_t p) { return Transposed(key(p)); }, dfound,
          [&](size_t p) { return Corrected(Next(p)); },
          [&](size_t p) { return Corrected(Flow(p)); });
      Copy(
          some, [&](size_t p) { return LastColumn(Flow(p)); },
          [&](size_t p) { return LastColumn(Next(p)); });
      Flip(some);
    }
    if (!Has(ScanCore::kDecay)) return;
    BackToDecay(some, t);
    Elementwise(ElementOp::kMultiply, some, flow, next,
                [&](size_t p) { return Transposed(Row(factor_, p, t)); });
    Flip(some);
  }

  // Gradients of beta and of the value.
  void BackToBeta(const Problems& some, int64_t t, const ViewFor& before) {
    const auto dwrite = [&](size_t p) { return flow_of_write_[p]; };
    const auto value = [&](size_t p) { return At(ScanCore::kValue, p, t); };
    Product(
        some, 1, [&](size_t p) { return At(ScanCore::kKey, p, t); },
        [&](size_t p) { return Flow(p); }, dwrite);
    Elementwise(
        ElementOp::kMultiply, some, dwrite,
        [&](size_t p) { return Row(result_[ScanCore::kValue], p, t); },
        [&](size_t p) { return At(ScanCore::kBeta, p, t); });
    if (core_.is_delta) {
      Unexplained(
          some, t, before, [&](size_t p) { return Corrected(unexplained_[p]); }, nullptr);
      Copy(
          some, [&](size_t p) { return LastColumn(value(p)); },
          [&](size_t p) { return LastColumn(unexplained_[p]); });
    }
    Product(
        some, 1, dwrite,
        [&](size_t p) { return Transposed(core_.is_delta ? unexplained_[p] : value(p)); },
        [&](size_t p) { return Row(result_[ScanCore::kBeta], p, t); });
  }

  // From the gradient of S'.
  void BackToDecay(const Problems& some, int64_t t) {
    const Tensor& ddecay = result_[ScanCore::kDecay];
    if (ddecay.empty() || some.empty()) return;
    Elementwise(
        ElementOp::kMultiply, some, [&](size_t p) { return Flow(p); },
        [&](size_t p) { return product_[p]; }, [&](size_t p) { return decayed_[p]; });
    ReduceArgs over_values{.op = ReduceOp::kSum, .axis = 3};
    ReduceArgs over_features{.op = ReduceOp::kSum, .axis = 2};
    for (size_t p : some) {
      const View row = Row(ddecay, p, t);
      const bool is_vector = row.shape[3] > 1;
      over_values.problems.push_back({product_[p], is_vector ? Transposed(row) : sums_[p]});
      if (!is_vector) over_features.problems.push_back({sums_[p], row});
    }
    ops_.Run(std::move(over_values));
    if (!over_features.problems.empty()) ops_.Run(std::move(over_features));
  }

  const Tensor kept_;
  std::vector<Tensor> result_;
  std::vector<bool> flips_;  // which of both holds the gradient of the state
  Tensor flow_, other_flow_;
  Tensor history_;                                    // the states after each key of the chunk
  Tensor flow_of_write_, flow_of_key_, unexplained_;  // of one key
  Tensor product_, sums_;                             // of the gradient of a decay
};

}  // namespace

std::vector<Tensor> ScanCoreGrad(Ops& ops, const ScanCore& core, const std::vector<Tensor>& in,
                                 const Tensor& kept, const std::vector<bool>& wanted,
                                 const Tensor& dreads, const Tensor& dstate) {
  return Backward(ops, core, in, kept, wanted).Run(dreads, dstate);
}

}  // namespace attnd
