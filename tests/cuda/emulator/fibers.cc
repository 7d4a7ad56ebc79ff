#include "fibers.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <utility>

#include "block.h"

namespace emu {

std::string Text(const Where& where) {
  return std::string(where.file) + ":" + std::to_string(where.line);
}

void Fail(const Where& where, const char* format, ...) {
  const Quiet quiet;
  std::fprintf(stderr, "cuda emulator: %s: ", Text(where).c_str());
  if (self != nullptr) {
    const uint3 b = self->geometry->block_index, t = self->index;
    std::fprintf(stderr, "block (%u,%u,%u) thread (%u,%u,%u): ", b.x, b.y, b.z, t.x, t.y, t.z);
  }
  va_list list;
  va_start(list, format);
  std::vfprintf(stderr, format, list);
  va_end(list);
  std::fputc('\n', stderr);
  std::abort();
}

void Block::ReportStuck() {
  const auto name = [&](int i) { return warps[static_cast<size_t>(i / 32)].name[i % 32]; };
  const auto text = [&](int i) {
    if (name(i) == nullptr) return std::string("exited");
    return std::string("wait in ") + name(i) + " at " + Text(Place(i));
  };
  int waiting = 0;
  for (int i = 0, j; i < threads; i = j) {
    if (name(i) != nullptr) waiting = i;
    for (j = i + 1; j < threads && text(j) == text(i);) ++j;
    std::fprintf(stderr, "  threads %d to %d %s\n", i, j - 1, text(i).c_str());
  }
  Fail(Place(waiting), "divergence: %s waits for threads that never come", name(waiting));
}

Fiber& Block::NoneReady() {
  if (exited < threads) ReportStuck();
  return caller;
}

Fiber& Block::NextInOtherOrder() {
  const size_t words = static_cast<size_t>(threads + 63) / 64;
  if (options.order == Order::kReverse) {
    for (size_t w = words; w-- > 0;) {
      if (ready[w] != 0) return Pick(w, 63 - std::countl_zero(ready[w]));
    }
    return NoneReady();
  }
  // The first one from some place on, around the end.
  const size_t start = random() % static_cast<size_t>(threads);
  for (size_t i = 0; i <= words; ++i) {
    const size_t w = (start / 64 + i) % words;
    const uint64_t bits = i == 0 ? ready[w] & ~uint64_t{0} << start % 64 : ready[w];
    if (bits != 0) return Pick(w, std::countr_zero(bits));
  }
  return NoneReady();
}

void Block::SetAllReady() {
  const auto whole = static_cast<size_t>(threads / 64);
  std::fill_n(ready.begin(), whole, ~uint64_t{0});
  if (threads % 64 != 0) ready[whole] = (uint64_t{1} << threads % 64) - 1;
}

void Block::MaybeLeave() {
  if (options.order != Order::kRandom || random() % 2 != 0) return;
  SetReady(self->id);
  Leave();
}

void Block::Reserve(const dim3& size) {
  for (int i = static_cast<int>(fibers.size()); i < threads; ++i) {
    Fiber& f = fibers.emplace_back();
    f.id = i;
    f.geometry = &geometry;
    f.block = this;
    f.warp = &warps[static_cast<size_t>(i / 32)];
    // What creates a thread comes before all that it does: here that is no other CUDA thread.
    if (kThreadSanitizer) f.stack = TakeStack(i);
  }
  for (int i = 0; i < threads; ++i) {
    const auto id = static_cast<unsigned>(i);
    fibers[id].index = {id % size.x, id / size.x % size.y, id / (size.x * size.y)};
  }
}

void Block::Run(const LaunchShape& shape, uint3 index) {
  const Quiet quiet;
  const dim3 size = shape.block, last = geometry.block_dim;
  threads = static_cast<int>(size.x * size.y * size.z);
  if (fibers.empty() || size.x != last.x || size.y != last.y || size.z != last.z) Reserve(size);
  geometry = {index, size, shape.grid};
  shared_bytes = shape.shared_bytes;
  shared_taken = tiles_used = 0;
  exited = arrived = votes = 0;
  SetAllReady();
  ++counters.blocks;
  ++runs;
  Thread* const outer = self;
  self = &caller;
  caller.geometry = &geometry;
  caller.block = this;
  caller.stack = &caller_stack;
  DescribeCallerStack(&caller_stack);
  Release(&begin);
  SwitchTo(&caller_stack, &Next());
  Acquire(&end);
  self = outer;
}

int SyncThreads(int vote, const Where& where) {
  Block& b = *self->block;
  char* const sync = &b.barrier[b.generation & 1];
  Release(sync);
  const Quiet quiet;
  Fiber& f = Self();
  f.warp->Note(f.Lane(), "__syncthreads", where);
  b.votes += vote != 0;
  if (b.arrived++ == 0) {
    b.first_at_barrier = f.id;
  } else if (const Where& other = b.Place(b.first_at_barrier); !(other == where)) {
    Fail(where, "divergence: thread %d waits in the __syncthreads at %s", b.first_at_barrier,
         Text(other).c_str());
  }
  if (b.arrived < b.threads) {
    if (b.arrived + b.exited == b.threads) b.ReportStuck();
    b.Leave();
  } else {
    b.SetAllReady();
    b.ready[static_cast<size_t>(f.id / 64)] &= ~(uint64_t{1} << f.id % 64);
    b.last_votes = std::exchange(b.votes, 0);
    b.arrived = 0;
    ++b.generation;
    ++b.counters.barriers;
    b.MaybeLeave();
  }
  f.collectives = 0;
  Acquire(sync);
  return b.last_votes;
}

void SyncWarp(unsigned mask, const Where& where) {
  Fiber& f = Self();
  char* const sync = &f.warp->sync[f.warp_syncs++ & 1];
  Release(sync);
  Collective("__syncwarp", nullptr, nullptr, mask, where);
  Acquire(sync);
}

void Collective(const char* name, Op op, void* args, unsigned mask, const Where& where) {
  const Quiet quiet;
  Fiber& f = Self();
  Warp& warp = *f.warp;
  ++f.collectives;
  const int lane = f.Lane();
  const unsigned bit = 1u << lane;
  warp.Note(lane, name, where);
  warp.op[lane] = op;
  warp.mask[lane] = mask;
  warp.args[lane] = args;
  if ((mask & bit) == 0) {
    Fail(where, "%s: mask %08x leaves the calling lane %d out", name, mask, lane);
  }
  warp.arrived |= bit;
  Block& b = *f.block;
  if ((warp.arrived & mask) != mask) return b.Leave();
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    const int i = std::countr_zero(rest);
    if (warp.op[i] == op && warp.mask[i] == mask && warp.where[i] == where) continue;
    Fail(where, "divergence: %s, mask %08x, meets lane %d in %s, mask %08x, at %s", name, mask, i,
         warp.name[i], warp.mask[i], Text(warp.where[i]).c_str());
  }
  if (op != nullptr) op(warp.args, mask, where);
  warp.arrived &= ~mask;
  const uint64_t others = mask & ~bit;
  b.ready[static_cast<size_t>(f.id / 64)] |= others << (f.id & 32);
  b.MaybeLeave();
}

}  // namespace emu
