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

class SparseStrided : public PatternMethod<Options> {
 public:
  SparseStrided()
      : PatternMethod(
            {.id = "sparse_strided",
             .summary = "A window of `stride` keys and every stride-th key",
             .reference = "Child et al. 2019 (arXiv 1904.10509), sections 4.2-4.4",
             .cost = "2 (D + Dv) FLOPs per visible pair, n (s + n/s) pairs; memory O(n)",
             .has_windows = [](const Options&) { return true; },
             .options = {
                 IntOption("stride", &Options::stride, {.min = 1},
                           absl::StrCat("s; about sqrt(n) is good; ", kPositionHelp)),
                 EnumOption("part", &Options::part, {"union", "window", "comb", "alternate"},
                            "one softmax over both, one of them, or heads in turn")}}) {}

 protected:
  HeadParts Sees(const SeenSeq& seq, const Options& o, const Integers&) const override {
    const auto half_of = [&](int64_t head) {
      if (o.part == Part::kUnion) return Half::kBoth;
      if (o.part == Part::kAlternate) return head % 2 == 0 ? Half::kLocal : Half::kGlobal;
      return o.part == Part::kWindow ? Half::kLocal : Half::kGlobal;
    };
    const bool is_alike = o.part != Part::kAlternate;
    const HeadRule rule{.count = is_alike ? 1 : seq.problem.H, .period = 2};
    return EachHead(seq, rule,
                    [&](int64_t head) { return StridedParts(seq, o.stride, half_of(head)); });
  }
};

}  // namespace

ATTND_METHOD(sparse_strided, SparseStrided)

}  // namespace attnd
