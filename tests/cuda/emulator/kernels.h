// Which kernels a program has, and which of them were launched.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "fibers.h"

namespace emu {

// How often each kernel of the running program was launched since the last call, 0 included, by its
// name: "attnd::cuda::MergeKernel". Kernels are the functions whose first parameter is a value of
// attnd::cuda::Problems, as the symbols of the program say, which must not be stripped. Thread
// safe.
std::map<std::string, int64_t> TakeLaunches();
// At its end the process adds the most shared memory of a block of each kernel, by its address in
// the program, to the file that EMULATED_CUDA_SHARED_TABLE names.
void CountLaunch(const LaunchShape& shape);
std::string NameOfKernel(const void* kernel);

}  // namespace emu
