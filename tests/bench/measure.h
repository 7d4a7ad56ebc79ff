// Clocks, medians and arrays of benchmarks.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

namespace attnd {

inline double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
inline double Wall() { return Seconds(CLOCK_MONOTONIC); }
// CPU time of this process: other programs on the machine disturb it less than wall time.
inline double ProcessSeconds() { return Seconds(CLOCK_PROCESS_CPUTIME_ID); }

// 0 of none.
inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// Arrays begin with a cache line, as the buffers of a server and the tensors of PyTorch do.
template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kLine)); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kLine); }
  bool operator==(const LineAllocator&) const { return true; }
};

using Floats = std::vector<float, LineAllocator<float>>;

}  // namespace attnd
