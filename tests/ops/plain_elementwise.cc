#include <cstdlib>

#include "tests/ops/plain.h"

namespace attnd::testing {

void PlainElementwise(const ElementwiseArgs& args) {
  for (const ElementwiseProblem& p : args.problems) {
    const PlainArray a = ReadView(p.a), b = ReadView(p.b);
    PlainArray out(p.out.shape);
    ForEachIndex(out.shape, [&](const std::vector<int64_t>& index) {
      out.At(index) = a.At(index) + (args.op == ElementOp::kAdd ? b.At(index) : 0);
    });
    WriteView(out, p.out);
  }
}

}  // namespace attnd::testing
