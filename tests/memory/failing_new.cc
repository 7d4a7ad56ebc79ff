#include "tests/memory/failing_new.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace attnd {
namespace {

std::atomic<int64_t> to_fail{0}, counted{0};
std::atomic<bool> has_failed{false};
thread_local bool is_exempt = false;

enum class Owner : uint8_t { kUndecided, kOurs, kOthers };

bool StartsWith(const char* name, const char* start) {
  return std::strncmp(name, start, std::strlen(start)) == 0;
}

Owner OwnerOf(const char* name) {
  if (StartsWith(name, "_ZN5attnd") || StartsWith(name, "_ZNK5attnd")) return Owner::kOurs;
  for (const char* start : {"_ZSt", "_ZNSt", "_ZNKSt", "_ZN4absl", "_ZNK4absl", "_Znwm"}) {
    if (StartsWith(name, start)) return Owner::kUndecided;
  }
  return Owner::kOthers;
}

// Looking up a name is slow: it happens once for each address.
Owner OwnerAt(void* frame) {
  struct Known {
    std::atomic<void*> frame{nullptr};
    std::atomic<Owner> owner{Owner::kUndecided};
  };
  static Known table[1 << 14];
  Known& known = table[(reinterpret_cast<uintptr_t>(frame) * 0x9E3779B97F4A7C15u) >> 50];
  if (known.frame.load() == frame) return known.owner;
  Dl_info info{};
  const bool is_named = dladdr(frame, &info) != 0 && info.dli_sname != nullptr;
  const Owner owner = is_named ? OwnerOf(info.dli_sname) : Owner::kUndecided;
  // Two threads at once may lose an entry: it is then looked up again.
  if (void* free = nullptr; known.frame.compare_exchange_strong(free, &table)) {
    known.owner = owner;
    known.frame = frame;
  }
  return owner;
}

// Whether the server's code allocates. The innermost function decides that has a name (lambdas and
// local functions have none) and is neither of the standard library nor of Abseil, which exceptions
// pass through.
bool IsOurs() {
  void* frames[40];
  const int count = backtrace(frames, 40);
  // IsOurs, Allocate and operator new come first.
  for (int i = 3; i < count; ++i) {
    if (const Owner owner = OwnerAt(frames[i]); owner != Owner::kUndecided) {
      return owner == Owner::kOurs;
    }
  }
  return false;
}

[[gnu::noinline]] void* Allocate(size_t bytes) {
  if (!is_exempt && to_fail.load() > counted.load()) {
    // backtrace allocates the first time it is called.
    is_exempt = true;
    const bool is_ours = IsOurs();
    is_exempt = false;
    if (is_ours && counted.fetch_add(1) + 1 == to_fail.load()) {
      has_failed = true;
      return nullptr;
    }
  }
  return std::malloc(bytes == 0 ? 1 : bytes);
}

}  // namespace

void FailAllocation(int64_t n) {
  to_fail = 0;
  counted = 0;
  has_failed = false;
  to_fail = n;
}
int64_t CountedAllocations() { return counted; }
bool HasFailed() { return has_failed; }
void ExemptThread() { is_exempt = true; }

}  // namespace attnd

[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = attnd::Allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
