// The stand-in for NVIDIA's cuDNN, as far as kernels/cuda/cudnn_api.h declares it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

namespace emu {

// From EMULATED_CUDNN: "absent", "no-handle", "no-engine", "fails", "wrong", "wrong-bands",
// "wrong-gradients" or "spreads".
enum class Cudnn {
  kRight,
  kAbsent,          // no function is found
  kNoHandle,        // cudnnCreate fails
  kNoEngine,        // no graph is supported
  kFails,           // cudnnBackendExecute fails
  kWrong,           // one element of a result is wrong
  kWrongBands,      // the same, of attention with masks alone
  kWrongGradients,  // the same, of gradients alone
  kSpreads,         // invisible values of a tile that is seen in part are multiplied by zero
};
extern std::atomic<Cudnn> cudnn;
// As the library tells it: 91900 is 9.19.0. From EMULATED_CUDNN_VERSION, or kNewCudnn.
constexpr size_t kNewCudnn = 92801;
extern std::atomic<size_t> cudnn_version;
// Called whenever a plan is compiled, on the thread that asked for it; null: nothing is. It is set
// while no thread asks.
extern std::function<void()> cudnn_compiles;

}  // namespace emu
