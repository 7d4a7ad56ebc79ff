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

struct Fiber : Thread {
  Stack* stack = nullptr;  // null: has not begun, or has ended
  int tiles_taken = 0, group = 0, warp_syncs = 0;
  std::vector<Copy> copies;
  bool exited = false;
  // What it waits for.
  const char* name = nullptr;
  Op op = nullptr;
  void* args = nullptr;
  unsigned mask = 0;
  Where where;
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
  unsigned generation = 0;
  std::array<uint64_t, 16> ready{};
  std::array<unsigned, 32> warp_arrived{};
  std::vector<Tile> tiles;
  size_t tiles_used = 0;  // by this block
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::unique_ptr<Stack>> stacks;
  std::vector<Stack*> free_stacks;
  Fiber caller;  // the OS thread itself
  Stack caller_stack;
  std::minstd_rand random;
  Counters counters;
  char begin = 0, end = 0, barrier[2] = {}, warp[32][2] = {};  // for Release and Acquire

  void Run(const LaunchShape& shape, uint3 index);

  // The thread that goes on; the caller after the last one.
  Fiber& Next();
  void SetReady(int id) { ready[static_cast<size_t>(id / 64)] |= uint64_t{1} << id % 64; }
  void SetAllReady();
  // The running thread waits: goes on in the next one.
  void Leave();
  // The last thread to arrive somewhere goes on at once, except, now and then, in random order.
  void MaybeLeave();
  // No thread can run: says who waits where, and aborts.
  [[noreturn]] void ReportStuck();

 private:
  void Reserve(const dim3& size);
};

inline Fiber& Self() { return static_cast<Fiber&>(*self); }
std::string Place(const Where& where);

// A stack on which RunThreads begins.
std::unique_ptr<Stack> NewStack(int id);
// Switches from `from`, which the running thread is on, to `to`'s, or to a new one for it.
void SwitchTo(Stack* from, Fiber* to);
// Where a new stack begins: runs one thread after another.
[[noreturn]] void RunThreads();
// Tells of the stack that the running OS thread is on.
void DescribeCallerStack(Stack* stack);

}  // namespace emu
