// The processor as devices of one instruction set each.
#pragma once

#include <string>
#include <vector>

#include "kernels/device/device.h"

namespace attnd {

// The targets that this machine has, and one device of each for the process: measuring its peak
// takes a while.
std::vector<std::string> AvailableIsas();
Device& CpuOf(const std::string& isa, int threads = 1);

}  // namespace attnd
