// Arrays of benchmarks begin with a cache line, as the buffers of a server and the tensors of
// PyTorch do.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace attnd {

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
