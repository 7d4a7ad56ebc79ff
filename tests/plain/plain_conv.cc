#include "tests/plain/plain.h"

namespace attnd::testing {

template <>
void PlainRun(const DepthwiseConvArgs& args) {
  for (const DepthwiseConvProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x), weight = ReadView(p.weight);
    const int64_t N = x.shape[2], w = weight.shape[1];
    PlainArray out(p.out.shape);
    ForEachIndex(out.shape, [&](const std::vector<int64_t>& at) {
      double sum = 0;
      for (int64_t t = 0; t < w; ++t) {
        const int64_t row = at[2] + t - args.left;
        if (row < 0 || row >= N) continue;
        sum += weight.At({at[1], args.flipped ? w - 1 - t : t}) * x.At({at[0], at[1], row, at[3]});
      }
      out.At(at) = sum;
    });
    WriteView(out, p.out);
  }
}

template <>
void PlainRun(const DepthwiseConvGradArgs& args) {
  for (const DepthwiseConvGradProblem& p : args.problems) {
    const PlainArray x = ReadView(p.x), dout = ReadView(p.dout);
    PlainArray dweight(p.dweight.shape);
    ForEachIndex(dout.shape, [&](const std::vector<int64_t>& at) {
      for (int64_t t = 0; t < dweight.shape[1]; ++t) {
        const int64_t row = at[2] + t - args.left;
        if (row < 0 || row >= x.shape[2]) continue;
        dweight.At({at[1], t}) += dout.At(at) * x.At({at[0], at[1], row, at[3]});
      }
    });
    WriteView(dweight, p.dweight);
  }
}

}  // namespace attnd::testing
