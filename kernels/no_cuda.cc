// In place of kernels/cuda where CUDA is not part of the build.
#include "kernels/cuda/cuda.h"

namespace attnd {

CudaDevices NewCudaDevices(const CudaOptions&) {
  return {.why_not = "cuda: this build has no CUDA (-DATTND_CUDA=ON, which needs nvcc)",
          .is_built = false};
}

CudaLibrary CudaLibraryOf(const Device&, const std::string&) { return {}; }

}  // namespace attnd
