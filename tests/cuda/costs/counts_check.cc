// Whether accesses and arithmetic of a known kernel are counted as they are.
#include <cinttypes>
#include <cstdio>
#include <vector>

#include "tests/cuda/costs/accesses.h"
#include "tests/cuda/costs/arithmetic.h"
#include "tests/cuda/costs/known_kernel.h"
#include "tests/cuda/costs/table.h"
#include "tests/cuda/run_kernel.h"

namespace attnd::testing {
namespace {

bool Is(const char* what, int64_t got, int64_t wanted) {
  if (got == wanted) return true;
  std::fprintf(stderr, "costs: %s of the known kernel: %" PRId64 ", not %" PRId64 "\n", what, got,
               wanted);
  return false;
}

}  // namespace

bool CountsAreRight() {
  const DeviceArray<float> from(std::vector<float>(1024, 1.0f)), to(std::vector<float>(1024));
  bool right = true;
  for (const int stride : {1, 32}) {
    TakeAccesses();
    TakeArithmetic();
    right &= LaunchKnown(TestStream(), from.data(), to.data(), stride) == cudaSuccess;
    right &= cudaStreamSynchronize(TestStream()) == cudaSuccess;
    const Accesses a = TakeAccesses();
    right &= Is("instructions that read", a.reads.instructions, 2);
    right &= Is("bytes read", a.reads.bytes, 128 + 64);
    right &= Is("sectors read", a.reads.sectors, 4 + 2);
    right &= Is("bytes written", a.writes.bytes, 128);
    right &= Is("sectors written", a.writes.sectors, stride == 1 ? 4 : 32);
    // A store a lane, a load of one word, 31 stores of the loop, one of 16 bytes a lane.
    right &= Is("instructions of shared memory", a.shared.instructions, 1 + 1 + 31 + 1);
    right &= Is("bytes of shared memory", a.shared.bytes, 128 + 4 + 31 * 4 + 64);
    right &= Is("passes", a.shared.passes, stride + 1 + 31 + 1);
    right &= Is("least passes", a.shared.least_passes, 1 + 1 + 31 + 1);
    const Arithmetic arithmetic = TakeArithmetic();
    right &= Is("products", arithmetic.plain, 31 * 32 / 2 + 32);
    right &= Is("exponentials", arithmetic.special, 31 * 32 / 2);
  }
  return right;
}

}  // namespace attnd::testing
