#include "kernels/cpu/peak.h"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/peak.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// `steps` rounds of 12 independent multiply-adds: more than latency (4) times ports (2), and with
// two operands they fit 16 registers. Two 512-bit ports: a round takes the 6 cycles that a chain of
// two integer products beside it takes; 16 and 24 chains are no faster. Returns the FLOPs done;
// `sink` keeps the compiler from removing the loop.
double MultiplyAdds(int64_t steps, float* sink) {
  const hn::ScalableTag<float> d;
  constexpr int kChains = 12;
  const auto factor = hn::Set(d, 0.999f), term = hn::Set(d, 0.001f);
  hn::Vec<decltype(d)> chain[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) chain[i] = hn::Set(d, 1.0f + static_cast<float>(i));
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) chain[i] = hn::MulAdd(chain[i], factor, term);
  }
  auto sum = chain[0];
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum = hn::Add(sum, chain[i]);
  *sink = hn::GetLane(sum);
  return 2.0 * kChains * static_cast<double>(hn::Lanes(d)) * static_cast<double>(steps);
}

void Read(const float* from, int64_t n, float* sink) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
  for (int64_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, from + i));
    b = hn::Add(b, hn::LoadU(d, from + i + lanes));
    c = hn::Add(c, hn::LoadU(d, from + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, from + i + 3 * lanes));
  }
  *sink = hn::GetLane(hn::Add(hn::Add(a, b), hn::Add(c, e)));
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Runs fn(item) as one item a thread, all at the same time unless a worker is late by a
// millisecond.
template <class F>
void Together(ThreadPool& pool, const F& fn) {
  std::atomic<int> arrived{0};
  pool.ParallelFor(pool.threads(), /*parallel=*/true, [&](int64_t item, int) {
    const auto start = Clock::now();
    ++arrived;
    while (arrived < pool.threads() && SecondsSince(start) < 1e-3) {
    }
    fn(item);
  });
}

void MeasureMemory(Isa isa, ThreadPool& pool, Peak* peak) {
  auto* read = Choose(isa, HWY_CHOOSE_SSE4(Read), HWY_CHOOSE_AVX2(Read), HWY_CHOOSE_AVX3(Read));
  constexpr int64_t kBytes = int64_t{64} << 20;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  madvise(memory, kBytes, MADV_HUGEPAGE);
  float* data = static_cast<float*>(memory);
  const int64_t share = kBytes / static_cast<int64_t>(sizeof(float)) / pool.threads();
  // Bytes a second of all threads together, each of which has its share.
  const auto rate_of = [&](const std::function<void(int64_t)>& run) {
    std::vector<double> seconds(pool.threads());
    Together(pool, [&](int64_t item) {
      const auto start = Clock::now();
      run(item);
      seconds[item] = SecondsSince(start);
    });
    double rate = 0;
    for (double s : seconds) rate += static_cast<double>(share * sizeof(float)) / s;
    return rate;
  };
  // Written first: unwritten pages all map to one zero page.
  peak->new_bytes_per_second =
      rate_of([&](int64_t item) { std::fill_n(data + item * share, share, 1.0f); });
  std::vector<float> sinks(pool.threads());
  peak->bytes_per_second =
      rate_of([&](int64_t item) { read(data + item * share, share, &sinks[item]); });
  munmap(memory, kBytes);
}

// CPU time of this thread: time that other processes take on the core does not count.
double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double ThreadFlops(Isa isa, double seconds) {
  auto* run = Choose(isa, HWY_CHOOSE_SSE4(MultiplyAdds), HWY_CHOOSE_AVX2(MultiplyAdds),
                     HWY_CHOOSE_AVX3(MultiplyAdds));
  float sink = 0;
  double flops = 0, elapsed = 0;
  const double start = ThreadSeconds();
  do {
    flops += run(10000, &sink);
    elapsed = ThreadSeconds() - start;
  } while (elapsed < seconds);
  return flops / elapsed;
}

}  // namespace

double MeasureFlops(Isa isa, ThreadPool& pool, double seconds) {
  std::vector<double> flops(pool.threads());
  Together(pool, [&](int64_t item) { flops[item] = ThreadFlops(isa, seconds); });
  return std::accumulate(flops.begin(), flops.end(), 0.0);
}

Peak MeasurePeak(Isa isa, ThreadPool& pool) {
  Peak peak;
  // The best of a few: a neighbour on the machine can only slow it down.
  for (int round = 0; round < 4; ++round) {
    peak.flops = std::max(peak.flops, MeasureFlops(isa, pool, 3e-3));
  }
  MeasureMemory(isa, pool, &peak);
  return peak;
}

}  // namespace attnd
#endif
