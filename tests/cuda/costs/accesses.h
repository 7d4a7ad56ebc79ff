// Counts the accesses of kernels to the device's and to shared memory, warp by warp. Kernels must
// be compiled with -fsanitize=thread (target attnd_cuda_counted): each access then calls a
// function, and these are defined here instead of in the sanitizer.
//
// Lanes of a warp share an instruction where they execute the same call for the n-th time since the
// warp last met (in a collective or a barrier). Approximate where lanes diverge: a loop around a
// loop whose length differs by lane lines up by count, not by iteration; and where the compilers
// differ in which loads they repeat. Arrays that a thread keeps to itself, spilled or not, and
// parameters of the launch are not counted. Not for several workers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attnd::testing {

struct Accesses {
  // Of the device's memory, before any cache. Bytes: different ones of each instruction.
  struct Global {
    int64_t instructions = 0, bytes = 0, sectors = 0;
  };
  // alike: of instructions by which several lanes read one word.
  struct Shared {
    int64_t instructions = 0, bytes = 0, passes = 0, least_passes = 0, alike = 0;
  };
  Global reads, writes;
  // Reads by which several lanes get one word, most of them numbers of the launch that stay in the
  // nearest cache: not among `reads`.
  int64_t alike = 0;
  Shared shared;  // but ldmatrix, which emu::Counters has
};

// Begins to count.
void StartToCount();
// Sums since the last call.
Accesses TakeAccesses();

// The places of the last sums that cost most: "file:line in function" with sectors beyond those
// that their bytes need and passes of shared memory beyond the least, worst first.
struct Place {
  const void* code;
  int64_t sectors_beyond = 0, passes_beyond = 0;
};
std::vector<Place> WorstPlaces(size_t count);
std::string Describe(const Place& place);

}  // namespace attnd::testing
