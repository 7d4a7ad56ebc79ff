// merge in plain loops, written from kernels/device/merge.h.
#include "tests/plain/plain_merge.h"

namespace attnd::testing {

template <>
void PlainRun(const MergeArgs& args) {
  for (const MergeProblem& p : args.problems) {
    const PlainMergeOut<double> merged = MergeParts<double>(ReadParts(p));
    WriteView(merged.out, p.out);
    WriteLse(merged.lse, p.lse, p.lse_low);
  }
}

template <>
void PlainRun(const MergeGradArgs& args) {
  for (const MergeGradProblem& p : args.problems) {
    const PlainParts parts = ReadParts(p.forward);
    const auto grads = MergePartsGrad<double>(parts, ReadView(p.dout), ReadView(p.dlse));
    for (size_t i = 0; i < parts.size(); ++i) {
      WriteView(grads[i].out, p.dparts[i].out);
      WriteView(grads[i].lse, p.dparts[i].lse);
    }
  }
}

}  // namespace attnd::testing
