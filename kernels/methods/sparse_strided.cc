// Strided factorised attention (Child et al. 2019, sections 4.2-4.4). With d = p - j, p = i + off:
//   window: |d| < stride;  comb: d mod stride = 0
// union shows both in one softmax, alternate gives even heads the window and odd ones the comb;
// and, if causal, d >= 0. Scores, tensors and shapes as in softmax.
#include "kernels/methods/pattern/method.h"
#include "kernels/pattern/shapes/strided.h"

namespace attnd {
namespace {

enum class Part : uint8_t { kUnion, kWindow, kComb, kAlternate };

struct Options : PatternOptions {
  int64_t stride = 128;
  Part part = Part::kUnion;
};

HeadParts Sees(const SeenSeq& r, const Options& o) {
  if (o.part == Part::kAlternate) {
    const PatternParts even = StridedParts(r, o.stride, Half::kLocal);
    const PatternParts odd = StridedParts(r, o.stride, Half::kGlobal);
    HeadParts heads;
    // A plan tells of two heads, which an odd number of them is about.
    const bool is_about = r.is_planned && r.problem.H > r.most_sources;
    const int64_t told = is_about || (r.is_planned && r.problem.H % 2 == 0) ? 2 : r.problem.H;
    for (int64_t h = 0; h < told; ++h) heads.push_back(h % 2 == 0 ? even : odd);
    return heads;
  }
  const Half half = o.part == Part::kUnion    ? Half::kBoth
                    : o.part == Part::kWindow ? Half::kLocal
                                              : Half::kGlobal;
  return {StridedParts(r, o.stride, half)};
}

class SparseStrided : public PatternMethod<Options> {
 public:
  SparseStrided()
      : PatternMethod(
            {.id = "sparse_strided",
             .summary = "A window of `stride` keys and every stride-th key",
             .reference = "Child et al. 2019 (arXiv 1904.10509), sections 4.2-4.4",
             .cost = "2 (D + Dv) FLOPs per visible pair, n (s + n/s) pairs; memory O(n)",
             .options = {
                 IntOption("stride", &Options::stride, {.min = 1}, "s; about sqrt(n) is good"),
                 EnumOption("part", &Options::part, {"union", "window", "comb", "alternate"},
                            "one softmax over both, one of them, or heads in turn")}}) {}

 protected:
  Outputs Attend(Ops& ops, const Inputs& in, const Options& o) const override {
    return PatternAttend(ops, in, o, [&](const SeenSeq& r) { return Sees(r, o); });
  }
};

}  // namespace

ATTND_METHOD(sparse_strided, SparseStrided)

}  // namespace attnd
