#include "tests/cuda/costs/accesses.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <unordered_map>
#include <utility>

#include "tests/cuda/costs/warp_access.h"
#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/device_memory.h"
#include "tests/cuda/emulator/shared.h"

extern "C" char __executable_start;

namespace attnd::testing {
namespace {

enum class Kind : uint8_t { kGlobalRead, kGlobalWrite, kShared };

// An instruction of a warp of the running block.
struct Key {
  const void* code;
  int64_t met;  // when the warp last met
  int nth;      // since then
  int warp, piece;
  Kind kind;
  bool operator==(const Key&) const = default;
};
struct Hash {
  size_t operator()(const Key& k) const {
    size_t h = reinterpret_cast<uintptr_t>(k.code);
    for (const int64_t part : {k.met, int64_t{k.nth}, int64_t{k.warp}, int64_t{k.piece}}) {
      h = (h ^ static_cast<size_t>(part)) * 0x9e3779b97f4a7c15u;
      h ^= h >> 29;
    }
    return h;
  }
};

class Recorder {
 public:
  void Note(const void* code, uintptr_t at, int64_t bytes, bool writes) {
    if (emu::self == nullptr || emu::self->block == nullptr) return;
    const emu::Block& block = *emu::self->block;
    const auto* p = reinterpret_cast<const char*>(at);
    Kind kind;
    if (emu::DeviceMemory::Get().IsDevice(p)) {
      kind = writes ? Kind::kGlobalWrite : Kind::kGlobalRead;
    } else if (IsShared(block, p)) {
      kind = Kind::kShared;
    } else {
      return;
    }
    if (block.runs != run_) {
      Flush();
      run_ = block.runs;
    }
    const auto& fiber = static_cast<const emu::Fiber&>(*emu::self);
    const int64_t met = int64_t{block.generation} << 32 | fiber.collectives;
    Nth& nth = nth_[{code, fiber.id}];
    if (std::exchange(nth.run, run_) != run_ || std::exchange(nth.met, met) != met) {
      nth.count = 0;
    }
    nth.met = met;
    Key key{code, met, nth.count++, fiber.id / 32, 0, kind};
    // A structure is moved in words as large as its alignment allows.
    for (int64_t end = static_cast<int64_t>(at) + bytes; bytes > 0; ++key.piece) {
      int64_t word = 16;
      while (word > bytes || at % static_cast<uintptr_t>(word) != 0) word /= 2;
      WarpAccess& access = pending_[key];
      access.bytes = static_cast<int>(word);
      access.Add(fiber.Lane(), at);
      at += static_cast<uintptr_t>(word);
      bytes = end - static_cast<int64_t>(at);
    }
  }

  Accesses Take() {
    Flush();
    last_places_ = std::exchange(places_, {});
    return std::exchange(sums_, {});
  }

  std::vector<Place> Worst(size_t count) const {
    std::vector<Place> all;
    for (const auto& [code, place] : last_places_) all.push_back(place);
    std::sort(all.begin(), all.end(), [](const Place& a, const Place& b) {
      return a.sectors_beyond + a.passes_beyond > b.sectors_beyond + b.passes_beyond;
    });
    all.resize(std::min(count, all.size()));
    return all;
  }

 private:
  struct Nth {
    int64_t run = -1, met = -1;
    int count = 0;
  };
  struct NthHash {
    size_t operator()(const std::pair<const void*, int>& k) const {
      return (reinterpret_cast<uintptr_t>(k.first) ^ static_cast<size_t>(k.second) << 40) *
                 0x9e3779b97f4a7c15u >>
             8;
    }
  };

  static bool IsShared(const emu::Block& block, const char* p) {
    for (size_t i = 0; i < block.tiles_used; ++i) {
      const emu::Tile& tile = block.tiles[i];
      if (p >= tile.data.get() && p < tile.data.get() + tile.bytes) return true;
    }
    return false;
  }

  void Flush() {
    for (const auto& [key, access] : pending_) {
      Place& place = places_[key.code];
      place.code = key.code;
      if (key.kind == Kind::kShared) {
        const WarpAccess::SharedPasses passes = access.Shared();
        ++sums_.shared.instructions;
        sums_.shared.bytes += access.Bytes();
        sums_.shared.passes += passes.taken;
        sums_.shared.least_passes += passes.least;
        sums_.shared.alike += access.IsAlike() ? passes.taken : 0;
        place.passes_beyond += passes.taken - passes.least;
      } else if (key.kind == Kind::kGlobalRead && access.IsAlike()) {
        ++sums_.alike;
      } else {
        Accesses::Global& sum = key.kind == Kind::kGlobalRead ? sums_.reads : sums_.writes;
        const int64_t bytes = access.Bytes(), sectors = access.Sectors();
        ++sum.instructions;
        sum.bytes += bytes;
        sum.sectors += sectors;
        place.sectors_beyond += sectors - (bytes + 31) / 32;
      }
    }
    pending_.clear();
  }

  int64_t run_ = -1;
  std::unordered_map<Key, WarpAccess, Hash> pending_;
  std::unordered_map<std::pair<const void*, int>, Nth, NthHash> nth_;
  std::map<const void*, Place> places_, last_places_;
  Accesses sums_;
};

Recorder* recorder = nullptr;

void Note(const void* code, const void* at, int64_t bytes, bool writes) {
  if (recorder != nullptr) recorder->Note(code, reinterpret_cast<uintptr_t>(at), bytes, writes);
}

}  // namespace

void StartToCount() {
  if (emu::options.workers != 1) {
    std::fprintf(stderr, "costs: one worker, please (EMULATED_CUDA_WORKERS)\n");
    std::exit(1);
  }
  recorder = new Recorder;
  emu::copy_listener = [](void* to, const void* from, int bytes, int total, const void* code) {
    if (bytes > 0) Note(code, from, bytes, /*writes=*/false);
    Note(code, to, total, /*writes=*/true);
  };
}
Accesses TakeAccesses() { return recorder->Take(); }
std::vector<Place> WorstPlaces(size_t count) { return recorder->Worst(count); }

std::string Describe(const Place& place) {
  char command[96], line[512];
  std::snprintf(command, sizeof(command), "addr2line -Cipe /proc/%d/exe %tx", getpid(),
                static_cast<const char*>(place.code) - &__executable_start - 1);
  std::string text;
  FILE* pipe = popen(command, "r");
  while (pipe != nullptr && std::fgets(line, sizeof(line), pipe) != nullptr) text += line;
  if (pipe != nullptr) pclose(pipe);
  return text;
}

}  // namespace attnd::testing

// What g++ calls with -fsanitize=thread.
#define COSTS_ACCESSES(size)                                                       \
  extern "C" void __tsan_read##size(void* at) {                                    \
    attnd::testing::Note(__builtin_return_address(0), at, size, /*writes=*/false); \
  }                                                                                \
  extern "C" void __tsan_write##size(void* at) {                                   \
    attnd::testing::Note(__builtin_return_address(0), at, size, /*writes=*/true);  \
  }
COSTS_ACCESSES(1)
COSTS_ACCESSES(2)
COSTS_ACCESSES(4)
COSTS_ACCESSES(8)
COSTS_ACCESSES(16)
#undef COSTS_ACCESSES

extern "C" {
void __tsan_init() {}
void __tsan_read_range(void* at, size_t bytes) {
  attnd::testing::Note(__builtin_return_address(0), at, static_cast<int64_t>(bytes), false);
}
void __tsan_write_range(void* at, size_t bytes) {
  attnd::testing::Note(__builtin_return_address(0), at, static_cast<int64_t>(bytes), true);
}
// Atomic operations of kernels read, then exchange: one instruction. Others are the host's.
uint32_t __tsan_atomic32_load(const uint32_t* at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
bool __tsan_atomic32_compare_exchange_weak(uint32_t* at, uint32_t* expected, uint32_t desired, int,
                                           int) {
  attnd::testing::Note(__builtin_return_address(0), at, 4, true);
  return __atomic_compare_exchange_n(at, expected, desired, true, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST);
}
uint8_t __tsan_atomic8_load(const uint8_t* at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
uint8_t __tsan_atomic8_exchange(uint8_t* at, uint8_t value, int) {
  return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
}
uint32_t __tsan_atomic32_fetch_add(uint32_t* at, uint32_t value, int) {
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
uint64_t __tsan_atomic64_fetch_add(uint64_t* at, uint64_t value, int) {
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
}
