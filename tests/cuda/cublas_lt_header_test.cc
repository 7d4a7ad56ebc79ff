// What kernels/cuda/cublas_lt_api.h declares of cuBLASLt is what NVIDIA's header says, where it is
// installed: the build needs none.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include "kernels/cuda/cublas_lt_api.h"
#include "tests/cuda/same_interface.h"

namespace attnd::cuda {
namespace {

using testing::IsSame;
using testing::Same;

static_assert(IsSame(lt::CUBLAS_STATUS_SUCCESS, ::CUBLAS_STATUS_SUCCESS));
static_assert(IsSame(lt::CUBLAS_COMPUTE_32F, ::CUBLAS_COMPUTE_32F));
static_assert(IsSame(lt::CUBLAS_OP_N, ::CUBLAS_OP_N));
static_assert(IsSame(lt::CUBLAS_OP_T, ::CUBLAS_OP_T));
static_assert(IsSame(lt::CUBLASLT_MATMUL_DESC_TRANSA, ::CUBLASLT_MATMUL_DESC_TRANSA));
static_assert(IsSame(lt::CUBLASLT_MATMUL_DESC_TRANSB, ::CUBLASLT_MATMUL_DESC_TRANSB));
static_assert(IsSame(lt::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                     ::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES));
static_assert(IsSame(lt::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                     ::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK));
static_assert(IsSame(lt::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                     ::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES));
static_assert(IsSame(lt::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                     ::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES));
static_assert(IsSame(lt::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                     ::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES));
static_assert(IsSame(lt::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                     ::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES));
static_assert(IsSame(lt::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, ::CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
static_assert(IsSame(lt::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                     ::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME));
static_assert(IsSame(lt::CUBLASLT_REDUCTION_SCHEME_NONE, ::CUBLASLT_REDUCTION_SCHEME_NONE));

using Ours = lt::cublasLtMatmulHeuristicResult_t;
using Theirs = ::cublasLtMatmulHeuristicResult_t;
static_assert(sizeof(Ours) == sizeof(Theirs));
static_assert(offsetof(Ours, algo) == offsetof(Theirs, algo));
static_assert(offsetof(Ours, workspaceSize) == offsetof(Theirs, workspaceSize));
static_assert(offsetof(Ours, state) == offsetof(Theirs, state));

using F = lt::Functions;
static_assert(Same<decltype(F::GetVersion)>::As(&cublasLtGetVersion));
static_assert(Same<decltype(F::GetStatusName)>::As(&cublasLtGetStatusName));
static_assert(Same<decltype(F::Create)>::As(&cublasLtCreate));
static_assert(Same<decltype(F::Destroy)>::As(&cublasLtDestroy));
static_assert(Same<decltype(F::MatmulDescCreate)>::As(&cublasLtMatmulDescCreate));
static_assert(Same<decltype(F::MatmulDescDestroy)>::As(&cublasLtMatmulDescDestroy));
static_assert(Same<decltype(F::MatmulDescSetAttribute)>::As(&cublasLtMatmulDescSetAttribute));
static_assert(Same<decltype(F::MatrixLayoutCreate)>::As(&cublasLtMatrixLayoutCreate));
static_assert(Same<decltype(F::MatrixLayoutDestroy)>::As(&cublasLtMatrixLayoutDestroy));
static_assert(Same<decltype(F::MatmulPreferenceCreate)>::As(&cublasLtMatmulPreferenceCreate));
static_assert(Same<decltype(F::MatmulPreferenceDestroy)>::As(&cublasLtMatmulPreferenceDestroy));
static_assert(
    Same<decltype(F::MatmulPreferenceSetAttribute)>::As(&cublasLtMatmulPreferenceSetAttribute));
static_assert(Same<decltype(F::MatmulAlgoGetHeuristic)>::As(&cublasLtMatmulAlgoGetHeuristic));
static_assert(
    Same<decltype(F::MatmulAlgoConfigGetAttribute)>::As(&cublasLtMatmulAlgoConfigGetAttribute));
static_assert(Same<decltype(F::Matmul)>::As(&cublasLtMatmul));

}  // namespace
}  // namespace attnd::cuda
#endif
