#include "fibers.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

#include "block.h"

namespace emu {

bool Where::operator==(const Where& other) const {
  return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
}

std::string Place(const Where& where) {
  return std::string(where.file) + ":" + std::to_string(where.line);
}

void Fail(const Where& where, const char* format, ...) {
  const Quiet quiet;
  std::fprintf(stderr, "cuda emulator: %s: ", Place(where).c_str());
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
  const auto text = [&](int i) {
    const Fiber& f = *fibers[static_cast<size_t>(i)];
    return f.exited ? std::string("exited")
                    : std::string("wait in ") + f.name + " at " + Place(f.where);
  };
  const Fiber* waiting = nullptr;
  for (int i = 0, j; i < threads; i = j) {
    const Fiber& f = *fibers[static_cast<size_t>(i)];
    if (!f.exited) waiting = &f;
    for (j = i + 1; j < threads && text(j) == text(i);) ++j;
    std::fprintf(stderr, "  threads %d to %d %s\n", i, j - 1, text(i).c_str());
  }
  Fail(waiting->where, "divergence: %s waits for threads that never come", waiting->name);
}

Fiber& Block::Next() {
  const Quiet quiet;
  const size_t words = static_cast<size_t>(threads + 63) / 64;
  int id = -1;
  if (options.order == Order::kReverse) {
    for (size_t w = words; w-- > 0 && id < 0;) {
      if (ready[w] != 0) id = static_cast<int>(w) * 64 + 63 - std::countl_zero(ready[w]);
    }
  } else {
    const size_t start = options.order == Order::kRandom ? random() % threads : 0;
    for (size_t i = 0; i <= words && id < 0; ++i) {
      const size_t w = (start / 64 + i) % words;
      const uint64_t bits = i == 0 ? ready[w] & ~uint64_t{0} << start % 64 : ready[w];
      if (bits != 0) id = static_cast<int>(w) * 64 + std::countr_zero(bits);
    }
  }
  if (id < 0) {
    if (exited < threads) ReportStuck();
    return caller;
  }
  ready[static_cast<size_t>(id / 64)] &= ~(uint64_t{1} << id % 64);
  return *fibers[static_cast<size_t>(id)];
}

void Block::SetAllReady() {
  const auto whole = static_cast<size_t>(threads / 64);
  std::fill_n(ready.begin(), whole, ~uint64_t{0});
  if (threads % 64 != 0) ready[whole] = (uint64_t{1} << threads % 64) - 1;
}

void Block::Leave() {
  Fiber& next = Next();
  if (&next != self) SwitchTo(Self().stack, &next);
}

void Block::MaybeLeave() {
  if (options.order != Order::kRandom || random() % 2 != 0) return;
  SetReady(self->id);
  Leave();
}

void Block::Reserve(const dim3& size) {
  while (static_cast<int>(fibers.size()) < threads) {
    auto f = std::make_unique<Fiber>();
    f->id = static_cast<int>(fibers.size());
    f->geometry = &geometry;
    f->block = this;
    fibers.push_back(std::move(f));
  }
  for (int i = 0; i < threads; ++i) {
    const auto id = static_cast<unsigned>(i);
    fibers[id]->index = {id % size.x, id / size.x % size.y, id / (size.x * size.y)};
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
  warp_arrived = {};
  for (int i = 0; i < threads; ++i) {
    Fiber& f = *fibers[static_cast<size_t>(i)];
    f.exited = false;
    f.tiles_taken = f.group = 0;
    f.copies.clear();
  }
  SetAllReady();
  ++counters.blocks;
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
  Self().name = "__syncthreads";
  Self().where = where;
  b.votes += vote != 0;
  if (++b.arrived < b.threads) {
    if (b.arrived + b.exited == b.threads) b.ReportStuck();
    b.Leave();
  } else {
    for (int i = 0; i < b.threads; ++i) {
      const Where& other = b.fibers[static_cast<size_t>(i)]->where;
      if (other == where) continue;
      Fail(where, "divergence: thread %d waits in the __syncthreads at %s", i,
           Place(other).c_str());
    }
    b.SetAllReady();
    b.ready[static_cast<size_t>(self->id / 64)] &= ~(uint64_t{1} << self->id % 64);
    b.last_votes = std::exchange(b.votes, 0);
    b.arrived = 0;
    ++b.generation;
    ++b.counters.barriers;
    b.MaybeLeave();
  }
  Acquire(sync);
  return b.last_votes;
}

void SyncWarp(unsigned mask, const Where& where) {
  char* const sync = &self->block->warp[self->id / 32][Self().warp_syncs++ & 1];
  Release(sync);
  Collective("__syncwarp", nullptr, nullptr, mask, where);
  Acquire(sync);
}

void Collective(const char* name, Op op, void* args, unsigned mask, const Where& where) {
  const Quiet quiet;
  Block& b = *self->block;
  Fiber& f = Self();
  const int lane = f.Lane(), first = f.id - lane;
  f.name = name;
  f.op = op;
  f.args = args;
  f.mask = mask;
  f.where = where;
  if ((mask >> lane & 1) == 0) {
    Fail(where, "%s: mask %08x leaves the calling lane %d out", name, mask, lane);
  }
  unsigned& arrived = b.warp_arrived[static_cast<size_t>(f.id / 32)];
  arrived |= 1u << lane;
  if ((arrived & mask) != mask) return b.Leave();
  void* lanes[32] = {};
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    const int i = std::countr_zero(rest);
    const Fiber& g = *b.fibers[static_cast<size_t>(first + i)];
    if (g.op != op || g.mask != mask || !(g.where == where)) {
      Fail(where, "divergence: %s, mask %08x, meets lane %d in %s, mask %08x, at %s", name, mask, i,
           g.name, g.mask, Place(g.where).c_str());
    }
    lanes[i] = g.args;
  }
  if (op != nullptr) op(lanes, mask, where);
  arrived &= ~mask;
  const uint64_t others = mask & ~(1u << lane);
  b.ready[static_cast<size_t>(first / 64)] |= others << first % 64;
  b.MaybeLeave();
}

}  // namespace emu
