// The stand-in for NVIDIA's cuDNN, as far as kernels/cuda/cudnn_api.h declares it.
#pragma once

#include <atomic>

namespace emu {

// From EMULATED_CUDNN: "absent", "old", "no-handle", "no-engine", "fails", "wrong" or
// "spreads".
enum class Cudnn {
  kRight,
  kAbsent,    // no function is found
  kOld,       // of a version without what is needed
  kNoHandle,  // cudnnCreate fails
  kNoEngine,  // no graph is supported
  kFails,     // cudnnBackendExecute fails
  kWrong,     // one element of a result is wrong
  kSpreads,   // invisible values of a tile that is seen in part are multiplied by zero
};
extern std::atomic<Cudnn> cudnn;

}  // namespace emu
