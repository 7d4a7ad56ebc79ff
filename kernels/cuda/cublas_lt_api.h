// The part of NVIDIA's cuBLASLt that products call, as cublasLt.h of CUDA 13 declares it: the same
// names and values (tests/cuda/cublas_lt_test.cc compares them where that header is installed). It
// is loaded at run time, never linked, and no header of it is needed to build.
#pragma once

#include <driver_types.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

namespace attnd::cuda::lt {

enum cublasStatus_t : int { CUBLAS_STATUS_SUCCESS = 0 };
enum cublasComputeType_t : int { CUBLAS_COMPUTE_32F = 68 };
enum cublasOperation_t : int { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasLtMatmulDescAttributes_t : int {
  CUBLASLT_MATMUL_DESC_TRANSA = 3,  // int32_t
  CUBLASLT_MATMUL_DESC_TRANSB = 4,  // int32_t
};
enum cublasLtMatmulPreferenceAttributes_t : int {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,    // uint64_t
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,  // uint32_t
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,  // uint32_t, as the next three
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
};
enum cublasLtMatmulAlgoConfigAttributes_t : int {
  CUBLASLT_ALGO_CONFIG_SPLITK_NUM = 2,        // int32_t
  CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME = 3,  // uint32_t
};
enum cublasLtReductionScheme_t : int { CUBLASLT_REDUCTION_SCHEME_NONE = 0 };

using cublasLtHandle_t = void*;
using cublasLtMatmulDesc_t = void*;
using cublasLtMatrixLayout_t = void*;
using cublasLtMatmulPreference_t = void*;

struct cublasLtMatmulAlgo_t {
  uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
};

// The functions by the rest of their names.
struct Functions {
  size_t (*GetVersion)();
  const char* (*GetStatusName)(cublasStatus_t);
  cublasStatus_t (*Create)(cublasLtHandle_t*);
  cublasStatus_t (*Destroy)(cublasLtHandle_t);
  cublasStatus_t (*MatmulDescCreate)(cublasLtMatmulDesc_t*, cublasComputeType_t,
                                     cudaDataType_t scale);
  cublasStatus_t (*MatmulDescDestroy)(cublasLtMatmulDesc_t);
  cublasStatus_t (*MatmulDescSetAttribute)(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                           const void*, size_t);
  // Stored by columns, which lie `ld` elements apart.
  cublasStatus_t (*MatrixLayoutCreate)(cublasLtMatrixLayout_t*, cudaDataType_t, uint64_t rows,
                                       uint64_t cols, int64_t ld);
  cublasStatus_t (*MatrixLayoutDestroy)(cublasLtMatrixLayout_t);
  cublasStatus_t (*MatmulPreferenceCreate)(cublasLtMatmulPreference_t*);
  cublasStatus_t (*MatmulPreferenceDestroy)(cublasLtMatmulPreference_t);
  cublasStatus_t (*MatmulPreferenceSetAttribute)(cublasLtMatmulPreference_t,
                                                 cublasLtMatmulPreferenceAttributes_t, const void*,
                                                 size_t);
  cublasStatus_t (*MatmulAlgoGetHeuristic)(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                           cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                           cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                           cublasLtMatmulPreference_t, int asked,
                                           cublasLtMatmulHeuristicResult_t[], int* found);
  cublasStatus_t (*MatmulAlgoConfigGetAttribute)(const cublasLtMatmulAlgo_t*,
                                                 cublasLtMatmulAlgoConfigAttributes_t, void*,
                                                 size_t, size_t* written);
  // D = alpha op(A) op(B) + beta C. The factors are read at once.
  cublasStatus_t (*Matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void* alpha, const void* a,
                           cublasLtMatrixLayout_t, const void* b, cublasLtMatrixLayout_t,
                           const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                           cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void* workspace,
                           size_t workspace_bytes, cudaStream_t);
};

}  // namespace attnd::cuda::lt
