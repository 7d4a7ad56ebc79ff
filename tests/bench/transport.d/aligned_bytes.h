// Memory that the kernel copies into at full speed.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace attnd::bench {

// Aligned to cache lines. Plain malloc puts large blocks at offset 16 of a page, and there AMD's
// Zen 3 copies four to five times slower (`rep movsb`, the kernel's copy to user memory): sockets
// that receive into such a block would be no limit to compare with.
template <class T>
struct AlignedAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  AlignedAllocator() = default;
  template <class U>
  explicit AlignedAllocator(const AlignedAllocator<U>&) {}

  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kAlignment)); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kAlignment); }
  bool operator==(const AlignedAllocator&) const { return true; }
};

using AlignedBytes = std::vector<std::byte, AlignedAllocator<std::byte>>;

}  // namespace attnd::bench
