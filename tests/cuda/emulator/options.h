// How launches run, and what they counted.
#pragma once

#include <cstdint>

namespace emu {

// Which of the threads that can run goes next. The bits of a result must not depend on it.
enum class Order { kForward, kReverse, kRandom };

// The defaults come from the environment: EMULATED_CUDA_ORDER (forward, reverse, random),
// EMULATED_CUDA_SEED, EMULATED_CUDA_WORKERS. Not to be changed while work runs.
struct Options {
  Order order = Order::kForward;
  uint64_t seed = 1;  // of kRandom
  int workers = 1;    // OS threads of a launch; each runs every workers-th block
};
Options OptionsFromEnvironment();
extern Options options;

// Sums over all launches: what a profiler would count.
struct Counters {
  int64_t launches = 0, blocks = 0, switches = 0, barriers = 0;
  int64_t mma_f16 = 0, mma_bf16 = 0, mma_tf32 = 0, ldmatrix = 0;
  int64_t bank_conflicts = 0;  // of ldmatrix: passes beyond one a matrix
  int64_t async_bytes = 0;     // read by cp.async
  int64_t copied_bytes = 0;    // by copies and memsets of streams

  Counters& operator+=(const Counters& other);
};
// The sums since the last call.
Counters TakeCounters();
void AddCounters(const Counters& counters);

}  // namespace emu
