// The part of NVIDIA's cuFFT that transforms call, as cufft.h of CUDA 13 declares it: the same
// names and values (tests/cuda/cufft_header_test.cc compares them where that header is installed).
// It is loaded at run time, never linked, and no header of it is needed to build.
#pragma once

#include <driver_types.h>

#include <cstddef>

namespace attnd::cuda::cufft {

enum cufftResult : int {
  CUFFT_SUCCESS = 0x0,
  CUFFT_INVALID_PLAN = 0x1,
  CUFFT_ALLOC_FAILED = 0x2,
  CUFFT_INVALID_VALUE = 0x4,
  CUFFT_INTERNAL_ERROR = 0x5,
  CUFFT_EXEC_FAILED = 0x6,
  CUFFT_SETUP_FAILED = 0x7,
  CUFFT_INVALID_SIZE = 0x8,
  CUFFT_NOT_SUPPORTED = 0x10,
};
enum cufftType : int { CUFFT_R2C = 0x2a };  // float32

using cufftHandle = int;

// The functions by the rest of their names.
struct Functions {
  cufftResult (*GetVersion)(int*);
  cufftResult (*Create)(cufftHandle*);
  cufftResult (*Destroy)(cufftHandle);
  // 0: before a plan is made, leaves its work area to the caller.
  cufftResult (*SetAutoAllocation)(cufftHandle, int);
  // Rows of `embed` elements, those of the last axis `stride` apart, matrices `dist`.
  cufftResult (*MakePlanMany64)(cufftHandle, int rank, long long* n, long long* inembed,
                                long long istride, long long idist, long long* onembed,
                                long long ostride, long long odist, cufftType, long long batch,
                                size_t* work_bytes);
  cufftResult (*SetStream)(cufftHandle, cudaStream_t);
  cufftResult (*SetWorkArea)(cufftHandle, void*);
  // `to` holds complex numbers.
  cufftResult (*ExecR2C)(cufftHandle, float* from, void* to);
};

}  // namespace attnd::cuda::cufft
