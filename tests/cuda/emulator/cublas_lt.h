// The stand-in for NVIDIA's cuBLASLt, as far as kernels/cuda/cublas_lt_api.h declares it.
#pragma once

#include <atomic>

namespace emu {

// From EMULATED_CUBLASLT: "absent", "no-handle", "no-algorithm", "fails" or "wrong".
enum class CublasLt {
  kRight,
  kAbsent,       // no function is found
  kNoHandle,     // cublasLtCreate fails
  kNoAlgorithm,  // no product is supported
  kFails,        // cublasLtMatmul fails
  kWrong,        // one element of a product is wrong
};
extern std::atomic<CublasLt> cublas_lt;

}  // namespace emu
