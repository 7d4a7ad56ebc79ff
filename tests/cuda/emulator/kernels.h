// Which kernels a program has, and which of them were launched.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace emu {

// How often each kernel of the running program was launched since the last call, 0 included, by its
// name: "attnd::cuda::MergeKernel". Kernels are the functions whose first parameter is a value of
// attnd::cuda::Problems, as the symbols of the program say, which must not be stripped. Thread
// safe.
std::map<std::string, int64_t> TakeLaunches();
void CountLaunch(const void* kernel);

}  // namespace emu
