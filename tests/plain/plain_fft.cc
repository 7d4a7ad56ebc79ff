#include "tests/plain/plain_fft.h"

#include "tests/plain/plain.h"

namespace attnd::testing {

template <>
void PlainRun(const FftArgs& args) {
  for (const FftProblem& p : args.problems) WriteView(PlainFft<double>(ReadView(p.x)), p.out);
}

}  // namespace attnd::testing
