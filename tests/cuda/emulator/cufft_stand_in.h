// The stand-in for NVIDIA's cuFFT, as far as kernels/cuda/cufft_api.h declares it.
#pragma once

#include <atomic>

namespace emu {

// From EMULATED_CUFFT: "absent", "no-handle", "no-plan", "greedy", "fails" or "wrong".
enum class Cufft {
  kRight,
  kAbsent,    // no function is found
  kNoHandle,  // cufftCreate fails
  kNoPlan,    // no size is supported
  kGreedy,    // plans take more memory than their data
  kFails,     // cufftExecR2C fails
  kWrong,     // one element of a transform is wrong
};
extern std::atomic<Cufft> cufft;
// Plans that were made, and those that have not been destroyed.
extern std::atomic<int> cufft_made, cufft_alive;

}  // namespace emu
