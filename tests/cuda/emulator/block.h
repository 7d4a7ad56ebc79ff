// The emulator's own view of a block that runs: its fibers, stacks and shared memory.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fibers.h"
#include "sanitizers.h"

// Saves the callee-saved registers on the running stack and its pointer in *save, goes on at `to`.
// 6 ns; ucontext takes 250, because it calls the kernel.
extern "C" void EmuSwitchStack(void** save, void* to) __attribute__((visibility("hidden")));

namespace emu {

struct Stack {
  void* pointer = nullptr;       // of what is suspended on it
  const void* bottom = nullptr;  // lowest address
  size_t bytes = 0;
  void *fake = nullptr, *tsan = nullptr;  // the sanitizers'
};

// A cp.async under way.
struct Copy {
  void* to;
  const void* from;
  int bytes, total, group;
};

// A warp's collectives, and for every lane what it waits for.
struct Warp {
  unsigned arrived = 0;  // lanes that wait in a collective
  char sync[2] = {};     // for Release and Acquire
  // By lane. Side by side, since the last lane to arrive compares them all.
  void* args[32];
  const char* name[32];  // null: the thread has ended
  Op op[32];
  unsigned mask[32];
  Where where[32];

  void Note(int lane, const char* name_of_call, const Where& place) {
    name[lane] = name_of_call;
    where[lane] = place;
  }
};

struct alignas(64) Fiber : Thread {
  Stack* stack = nullptr;  // null: has not begun, or has ended
  Warp* warp = nullptr;
  int tiles_taken = 0, group = 0, warp_syncs = 0;
  int collectives = 0;  // since the last barrier
  std::vector<Copy> copies;
};

struct Free {
  void operator()(char* p) const { std::free(p); }
};
struct Tile {
  std::unique_ptr<char, Free> data;
  size_t bytes;
};

// One block at a time on one OS thread. Fibers, stacks and tiles serve many blocks.
struct Block {
  Geometry geometry;
  size_t shared_bytes = 0, shared_taken = 0;
  const std::function<void()>* body = nullptr;
  int threads = 0, exited = 0, arrived = 0, votes = 0, last_votes = 0;
  unsigned generation = 0;  // counts barriers
  int64_t runs = 0;         // counts blocks, over all launches
  std::array<uint64_t, 16> ready{};
  std::array<Warp, 32> warps;
  int first_at_barrier = 0;
  std::vector<Tile> tiles;
  size_t tiles_used = 0;  // by this block
  std::vector<Fiber> fibers;
  std::vector<std::unique_ptr<Stack>> stacks;
  std::vector<Stack*> free_stacks;
  Fiber caller;  // the OS thread itself
  Stack caller_stack;
  std::minstd_rand random;
  Counters counters;
  char begin = 0, end = 0, barrier[2] = {};  // for Release and Acquire

  void Run(const LaunchShape& shape, uint3 index);

  // One that no thread is on; `id` of the thread that wants it.
  Stack* TakeStack(int id);
  // The thread that goes on; the caller after the last one.
  Fiber& Next() {
    const Quiet quiet;
    if (options.order != Order::kForward) return NextInOtherOrder();
    for (size_t word = 0; word * 64 < static_cast<size_t>(threads); ++word) {
      if (ready[word] != 0) return Pick(word, std::countr_zero(ready[word]));
    }
    return NoneReady();
  }
  void SetReady(int id) { ready[static_cast<size_t>(id / 64)] |= uint64_t{1} << id % 64; }
  void SetAllReady();
  // The running thread waits: goes on in the next one.
  void Leave();
  // The last thread to arrive somewhere goes on at once, except, now and then, in random order.
  void MaybeLeave();
  // No thread can run: says who waits where, and aborts.
  [[noreturn]] void ReportStuck();
  // Where the thread waits.
  const Where& Place(int id) const { return warps[static_cast<size_t>(id / 32)].where[id % 32]; }

 private:
  void Reserve(const dim3& size);
  Fiber& NextInOtherOrder();
  Fiber& NoneReady();
  Fiber& Pick(size_t word, int bit) {
    ready[word] &= ~(uint64_t{1} << bit);
    return fibers[word * 64 + static_cast<size_t>(bit)];
  }
};

inline Fiber& Self() { return static_cast<Fiber&>(*self); }
std::string Text(const Where& where);

// Where a new stack begins: runs one thread after another.
[[noreturn]] void RunThreads();
// Tells of the stack that the running OS thread is on.
void DescribeCallerStack(Stack* stack);

// Switches from `from`, which the running thread is on, to `to`'s, or to a new one for it.
EMU_UNSEEN inline void SwitchTo(Stack* from, Fiber* to) {
  Block& b = *to->block;
  if (to->stack == nullptr) to->stack = b.TakeStack(to->id);
  ++b.counters.switches;
  self = to;
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to->stack->tsan, __tsan_switch_to_fiber_no_sync);
#elif defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from->fake, to->stack->bottom, to->stack->bytes);
#endif
  EmuSwitchStack(&from->pointer, to->stack->pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

inline void Block::Leave() {
  Fiber& next = Next();
  if (&next != self) SwitchTo(Self().stack, &next);
}

}  // namespace emu
