// Counts the floating-point instructions of kernels, thread by thread. Kernels must be compiled
// with -fsanitize-coverage=trace-pc: each basic block then calls a function, which is defined here
// and counts its visits. What a block holds is read from the machine code of the running program,
// by objdump.
//
// They are those that g++ makes for x86-64, not a device's: a call of the mathematics library is
// one. Integers, addresses, tests of them and branches are not counted: g++ does not unroll what
// nvcc does, and has six times as many of them in a tile of dense attention. Nor are conversions to
// and from 16 bits, which are integers on the host. Not for several workers.
#pragma once

#include <cstdint>

namespace attnd::testing {

struct Arithmetic {
  int64_t plain = 0;    // sums, products, both at once, comparisons, maxima, conversions
  int64_t special = 0;  // quotients, roots, exponentials, logarithms and other functions
};
// Sums over all threads since the last call.
Arithmetic TakeArithmetic();

}  // namespace attnd::testing
