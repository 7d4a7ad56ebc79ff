// Threads of a CUDA block as fibers of one OS thread: each runs until it waits at a barrier or in a
// collective of its warp, then the next one in Options::order goes on. A launch is deterministic.
// Not emulated: time, caches, fences, waiting for a block that has not run, clusters.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "options.h"

namespace emu {

// Place of a call in a kernel's source.
struct Where {
  const char* file = "";
  int line = 0;
  static constexpr Where Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Where& other) const {
    return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
  }
};

struct Geometry {
  uint3 block_index{};
  dim3 block_dim, grid_dim;
};

struct Block;

// One CUDA thread.
struct Thread {
  uint3 index{};
  int id = 0;
  const Geometry* geometry = nullptr;
  Block* block = nullptr;
  int Lane() const { return id & 31; }
};
// The model of a program's own variables: shared libraries would call a function for each access.
inline constinit thread_local Thread* self __attribute__((tls_model("initial-exec"))) = nullptr;

// Prints the block, the thread and the message, then aborts.
[[noreturn]] void Fail(const Where& where, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// Waits for every thread of the block; returns the number of threads with vote != 0.
int SyncThreads(int vote, const Where& where);
// Waits for the lanes of `mask`, and orders their memory accesses.
void SyncWarp(unsigned mask, const Where& where);

// Waits for every lane of `mask` to arrive at the same place with the same `op`; the last one runs
// `op` once for the warp (args of lane i in lanes[i]). Orders no memory, as on the device.
using Op = void (*)(void* const lanes[32], unsigned mask, const Where& where);
void Collective(const char* name, Op op, void* args, unsigned mask, const Where& where);

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes;
  const void* kernel = nullptr;  // for kernels.h, which counts its launches
};
// Runs `thread_body` for every thread of every block, on this thread and on the other workers.
void RunLaunch(const LaunchShape& shape, const std::function<void()>& thread_body);

}  // namespace emu
