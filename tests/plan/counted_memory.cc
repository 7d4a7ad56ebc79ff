#include "tests/plan/counted_memory.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace attnd::testing {
namespace {

std::atomic<int64_t> alive{0}, base{0}, peak{0}, count{0}, bytes{0};

void* Counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const auto size = static_cast<int64_t>(malloc_usable_size(memory));
  ++count;
  bytes += size;
  const int64_t now = alive += size;
  int64_t highest = peak.load(std::memory_order_relaxed);
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
  return memory;
}

void Freed(void* memory) {
  alive -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void ResetAllocations() {
  base = peak = alive.load();
  count = bytes = 0;
}

Allocations AllocationsSoFar() {
  return {.count = count, .bytes = bytes, .peak_bytes = peak - base};
}

}  // namespace attnd::testing

// In a separate source file: where GCC can inline them, it warns that new and free do not match.
void* operator new(std::size_t size) { return attnd::testing::Counted(std::malloc(size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto unit = static_cast<std::size_t>(alignment);
  return attnd::testing::Counted(std::aligned_alloc(unit, (size + unit - 1) / unit * unit));
}
void operator delete(void* memory) noexcept { attnd::testing::Freed(memory); }
void operator delete(void* memory, std::size_t) noexcept { attnd::testing::Freed(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { attnd::testing::Freed(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  attnd::testing::Freed(memory);
}
