// What this machine can do, measured: the yardstick of every efficiency figure and prediction.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd/targets.h"
#include "kernels/cpu/thread_pool.h"

namespace attnd {

// FLOP/s of all threads of the pool together in a loop of register-only multiply-adds that runs for
// `seconds` of each thread's CPU time (SSE4 has no fused one: a multiplication and an addition).
// REQUIRES: nothing else runs on the pool.
double MeasureFlops(Isa isa, ThreadPool& pool, double seconds);

struct Peak {
  double flops = 0;                 // of all threads together
  double bytes_per_second = 0;      // all threads streaming through memory larger than most caches
  double new_bytes_per_second = 0;  // all threads writing to memory for the first time
};

// Takes about 40 ms. REQUIRES: nothing else runs on the pool.
Peak MeasurePeak(Isa isa, ThreadPool& pool);

}  // namespace attnd
