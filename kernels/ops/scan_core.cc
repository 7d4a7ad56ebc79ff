// The recurrence of a composed scan, key by key.
#include "kernels/ops/scan_core.h"

#include <algorithm>

#include "kernels/ops/scan_steps.h"

namespace attnd {
namespace {

class Forward : public ScanSteps {
 public:
  using ScanSteps::ScanSteps;

  // `kept`: gets the state before each chunk but the first, [c,Hkv,chunks - 1,D,E]; null: unwanted.
  ScanCore::Result Run(Tensor* kept) {
    std::vector<Shape> shapes = ShapesOf(in_[ScanCore::kQuery]);
    for (size_t p = 0; p < size(); ++p) shapes[p].dims[4] = in_[ScanCore::kValue][p].shape[3];
    const ScanCore::Result result = {ops_.Empty(DType::kF32, shapes), States()};
    const Tensor even = States(), odd = States();
    if (kept != nullptr) {
      *kept = ListOfStates(
          [&](size_t p) { return std::max<int64_t>(Keys(p) - 1, 0) / kScanCoreChunk; });
    }
    if (!ops_.status().ok()) return result;
    const auto state = [&](size_t p, int64_t t) {
      return t == 0 ? in_[ScanCore::kState][p] : t % 2 == 0 ? even[p] : odd[p];
    };
    const bool is_dry = ops_.stream().is_dry();
    const auto keep = [&](int64_t t, int64_t) {
      Copy(
          WithKey(t), [&](size_t p) { return state(p, t); },
          [&](size_t p) { return Entry((*kept)[p], t / kScanCoreChunk - 1); });
    };
    Steps(0, longest() + 1, 1, [&](int64_t t, int64_t) {
      const auto before = [&](size_t p) { return state(p, t - 1); };
      const auto after = [&](size_t p) { return state(p, t); };
      if (t > 0) Step(t - 1, before, after);
      Product(
          WithReaders(t), 1, [&](size_t p) { return Readers(in_[ScanCore::kQuery], p, t); },
          [&](size_t p) { return Grouped(after(p)); },
          [&](size_t p) { return Readers(result.reads, p, t); });
      if (kept != nullptr && !is_dry && t > 0 && t % kScanCoreChunk == 0) keep(t, 1);
    });
    if (kept != nullptr && is_dry) Steps(kScanCoreChunk, longest() + 1, kScanCoreChunk, keep);
    Copy(
        All(), [&](size_t p) { return state(p, Keys(p)); },
        [&](size_t p) { return result.state[p]; });
    return result;
  }
};

}  // namespace

ScanCore::Result ScanCore::Run(Ops& ops, const std::vector<Tensor>& in) const {
  if (!ops.status().ok()) return {};
  const bool recording = ops.recording(), records = recording && ops.tape() != nullptr;
  ops.set_recording(false);
  Tensor kept;
  const Result result = Forward(ops, *this, in).Run(records ? &kept : nullptr);
  ops.set_recording(recording);
  if (!ops.status().ok()) return {};
  if (records) {
    ops.tape()->Record(in, {result.reads, result.state},
                       [core = *this, in, kept](Ops& o, std::span<const Tensor> grads,
                                                const std::vector<bool>& wanted) {
                         return ScanCoreGrad(o, core, in, kept, wanted, grads[0], grads[1]);
                       });
  }
  return result;
}

}  // namespace attnd
