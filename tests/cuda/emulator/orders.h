// Launches that run in several orders of their threads and must leave the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>

#include "fibers.h"

namespace emu {

// The first so many launches of each kernel of a process run in five orders, one of them on two
// workers, each from the memory that the first found. If one leaves other bits in the device's
// memory than the first, the program aborts and names the kernel. 0: none does. A launch of
// more than 0.2 s, or beside arrays of more than 1 GiB together, runs once. From
// EMULATED_CUDA_REPEATS. Not to be changed while work runs.
extern int64_t repeats;
// Launches that did, of all kernels.
int64_t RepeatedLaunches();

// Whoever touches the memory of devices holds it, if there are repeats: they put back what others
// would have written meanwhile.
extern std::mutex memory_turn;

// Calls `run` as often as the launch must run. REQUIRES: the memory is open, memory_turn is held.
void RunInOrders(const LaunchShape& shape, const std::function<void()>& run);

}  // namespace emu
