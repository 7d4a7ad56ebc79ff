// What kernels/cuda/cudnn_api.h declares of cuDNN is what NVIDIA's header says, where one of a
// version that declares all of it is installed: the build needs none.
#if __has_include(<cudnn_version.h>)
#include <cudnn_version.h>
#endif
#if defined(CUDNN_VERSION) && CUDNN_VERSION >= 91002
// Handles of plans and graphs are deprecated, but what the library documents.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include <cudnn_graph.h>

#include "kernels/cuda/cudnn_api.h"
#include "tests/cuda/same_interface.h"

namespace attnd::testing {
namespace {

namespace dnn = cuda::dnn;

static_assert(IsSame(dnn::CUDNN_STATUS_SUCCESS, ::CUDNN_STATUS_SUCCESS));
static_assert(IsSame(dnn::CUDNN_DATA_FLOAT, ::CUDNN_DATA_FLOAT));
static_assert(IsSame(dnn::CUDNN_DATA_HALF, ::CUDNN_DATA_HALF));
static_assert(IsSame(dnn::CUDNN_DATA_INT32, ::CUDNN_DATA_INT32));
static_assert(IsSame(dnn::CUDNN_DATA_BFLOAT16, ::CUDNN_DATA_BFLOAT16));
static_assert(IsSame(dnn::CUDNN_DATA_BOOLEAN, ::CUDNN_DATA_BOOLEAN));
static_assert(IsSame(dnn::CUDNN_POINTWISE_ADD, ::CUDNN_POINTWISE_ADD));
static_assert(IsSame(dnn::CUDNN_POINTWISE_MUL, ::CUDNN_POINTWISE_MUL));
static_assert(IsSame(dnn::CUDNN_POINTWISE_DIV, ::CUDNN_POINTWISE_DIV));
static_assert(IsSame(dnn::CUDNN_POINTWISE_SUB, ::CUDNN_POINTWISE_SUB));
static_assert(IsSame(dnn::CUDNN_POINTWISE_EXP, ::CUDNN_POINTWISE_EXP));
static_assert(IsSame(dnn::CUDNN_POINTWISE_LOG, ::CUDNN_POINTWISE_LOG));
static_assert(IsSame(dnn::CUDNN_POINTWISE_IDENTITY, ::CUDNN_POINTWISE_IDENTITY));
static_assert(IsSame(dnn::CUDNN_POINTWISE_CMP_GT, ::CUDNN_POINTWISE_CMP_GT));
static_assert(IsSame(dnn::CUDNN_POINTWISE_CMP_GE, ::CUDNN_POINTWISE_CMP_GE));
static_assert(IsSame(dnn::CUDNN_POINTWISE_GEN_INDEX, ::CUDNN_POINTWISE_GEN_INDEX));
static_assert(IsSame(dnn::CUDNN_POINTWISE_BINARY_SELECT, ::CUDNN_POINTWISE_BINARY_SELECT));
static_assert(IsSame(dnn::CUDNN_REDUCE_TENSOR_ADD, ::CUDNN_REDUCE_TENSOR_ADD));
static_assert(IsSame(dnn::CUDNN_REDUCE_TENSOR_MAX, ::CUDNN_REDUCE_TENSOR_MAX));
static_assert(IsSame(dnn::CUDNN_HEUR_MODE_A, ::CUDNN_HEUR_MODE_A));
static_assert(IsSame(dnn::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS,
                     ::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
static_assert(IsSame(dnn::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
                     ::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION));
static_assert(IsSame(dnn::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
                     ::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC));
static_assert(IsSame(dnn::CUDNN_KNOB_TYPE_SPLIT_K, ::CUDNN_KNOB_TYPE_SPLIT_K));
static_assert(IsSame(dnn::CUDNN_KNOB_TYPE_SPLIT_K_BUF, ::CUDNN_KNOB_TYPE_SPLIT_K_BUF));
static_assert(IsSame(dnn::CUDNN_KNOB_TYPE_SPLIT_K_SLC, ::CUDNN_KNOB_TYPE_SPLIT_K_SLC));
static_assert(IsSame(dnn::CUDNN_KNOB_TYPE_STREAM_K, ::CUDNN_KNOB_TYPE_STREAM_K));
static_assert(IsSame(dnn::CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                     ::CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_ENGINE_DESCRIPTOR, ::CUDNN_BACKEND_ENGINE_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                     ::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
                     ::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                     ::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
                     ::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                     ::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                     ::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
                     ::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_TENSOR_DESCRIPTOR, ::CUDNN_BACKEND_TENSOR_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_MATMUL_DESCRIPTOR, ::CUDNN_BACKEND_MATMUL_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                     ::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                     ::CUDNN_BACKEND_REDUCTION_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                     ::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                     ::CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_TYPE_HANDLE, ::CUDNN_TYPE_HANDLE));
static_assert(IsSame(dnn::CUDNN_TYPE_DATA_TYPE, ::CUDNN_TYPE_DATA_TYPE));
static_assert(IsSame(dnn::CUDNN_TYPE_BOOLEAN, ::CUDNN_TYPE_BOOLEAN));
static_assert(IsSame(dnn::CUDNN_TYPE_INT64, ::CUDNN_TYPE_INT64));
static_assert(IsSame(dnn::CUDNN_TYPE_VOID_PTR, ::CUDNN_TYPE_VOID_PTR));
static_assert(IsSame(dnn::CUDNN_TYPE_HEUR_MODE, ::CUDNN_TYPE_HEUR_MODE));
static_assert(IsSame(dnn::CUDNN_TYPE_KNOB_TYPE, ::CUDNN_TYPE_KNOB_TYPE));
static_assert(IsSame(dnn::CUDNN_TYPE_NUMERICAL_NOTE, ::CUDNN_TYPE_NUMERICAL_NOTE));
static_assert(IsSame(dnn::CUDNN_TYPE_POINTWISE_MODE, ::CUDNN_TYPE_POINTWISE_MODE));
static_assert(IsSame(dnn::CUDNN_TYPE_BACKEND_DESCRIPTOR, ::CUDNN_TYPE_BACKEND_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
                     ::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE));
static_assert(IsSame(dnn::CUDNN_ATTR_POINTWISE_MODE, ::CUDNN_ATTR_POINTWISE_MODE));
static_assert(IsSame(dnn::CUDNN_ATTR_POINTWISE_MATH_PREC, ::CUDNN_ATTR_POINTWISE_MATH_PREC));
static_assert(IsSame(dnn::CUDNN_ATTR_POINTWISE_AXIS, ::CUDNN_ATTR_POINTWISE_AXIS));
static_assert(IsSame(dnn::CUDNN_ATTR_ENGINEHEUR_MODE, ::CUDNN_ATTR_ENGINEHEUR_MODE));
static_assert(IsSame(dnn::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                     ::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
static_assert(IsSame(dnn::CUDNN_ATTR_ENGINEHEUR_RESULTS, ::CUDNN_ATTR_ENGINEHEUR_RESULTS));
static_assert(IsSame(dnn::CUDNN_ATTR_ENGINECFG_ENGINE, ::CUDNN_ATTR_ENGINECFG_ENGINE));
static_assert(IsSame(dnn::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, ::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES));
static_assert(IsSame(dnn::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, ::CUDNN_ATTR_EXECUTION_PLAN_HANDLE));
static_assert(IsSame(dnn::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                     ::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
static_assert(IsSame(dnn::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                     ::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
static_assert(IsSame(dnn::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, ::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE));
static_assert(IsSame(dnn::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, ::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                     ::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                     ::CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                     ::CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
                     ::CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
                     ::CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, ::CUDNN_ATTR_OPERATIONGRAPH_HANDLE));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATIONGRAPH_OPS, ::CUDNN_ATTR_OPERATIONGRAPH_OPS));
static_assert(IsSame(dnn::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, ::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT));
static_assert(IsSame(dnn::CUDNN_ATTR_TENSOR_DATA_TYPE, ::CUDNN_ATTR_TENSOR_DATA_TYPE));
static_assert(IsSame(dnn::CUDNN_ATTR_TENSOR_DIMENSIONS, ::CUDNN_ATTR_TENSOR_DIMENSIONS));
static_assert(IsSame(dnn::CUDNN_ATTR_TENSOR_STRIDES, ::CUDNN_ATTR_TENSOR_STRIDES));
static_assert(IsSame(dnn::CUDNN_ATTR_TENSOR_UNIQUE_ID, ::CUDNN_ATTR_TENSOR_UNIQUE_ID));
static_assert(IsSame(dnn::CUDNN_ATTR_TENSOR_IS_VIRTUAL, ::CUDNN_ATTR_TENSOR_IS_VIRTUAL));
static_assert(IsSame(dnn::CUDNN_ATTR_TENSOR_IS_BY_VALUE, ::CUDNN_ATTR_TENSOR_IS_BY_VALUE));
static_assert(IsSame(dnn::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                     ::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS));
static_assert(IsSame(dnn::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                     ::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS));
static_assert(IsSame(dnn::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, ::CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
static_assert(IsSame(dnn::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, ::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE));
static_assert(IsSame(dnn::CUDNN_ATTR_MATMUL_COMP_TYPE, ::CUDNN_ATTR_MATMUL_COMP_TYPE));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_MATMUL_ADESC, ::CUDNN_ATTR_OPERATION_MATMUL_ADESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_MATMUL_BDESC, ::CUDNN_ATTR_OPERATION_MATMUL_BDESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_MATMUL_CDESC, ::CUDNN_ATTR_OPERATION_MATMUL_CDESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_MATMUL_DESC, ::CUDNN_ATTR_OPERATION_MATMUL_DESC));
static_assert(IsSame(dnn::CUDNN_ATTR_REDUCTION_OPERATOR, ::CUDNN_ATTR_REDUCTION_OPERATOR));
static_assert(IsSame(dnn::CUDNN_ATTR_REDUCTION_COMP_TYPE, ::CUDNN_ATTR_REDUCTION_COMP_TYPE));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
                     ::CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
                     ::CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_REDUCTION_DESC,
                     ::CUDNN_ATTR_OPERATION_REDUCTION_DESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
                     ::CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
static_assert(IsSame(dnn::CUDNN_ATTR_OPERATION_RESHAPE_YDESC,
                     ::CUDNN_ATTR_OPERATION_RESHAPE_YDESC));

using F = dnn::Functions;
static_assert(Same<decltype(F::GetVersion)>::As(&cudnnGetVersion));
static_assert(Same<decltype(F::GetErrorString)>::As(&cudnnGetErrorString));
static_assert(Same<decltype(F::Create)>::As(&cudnnCreate));
static_assert(Same<decltype(F::Destroy)>::As(&cudnnDestroy));
static_assert(Same<decltype(F::SetStream)>::As(&cudnnSetStream));
static_assert(Same<decltype(F::BackendCreateDescriptor)>::As(&cudnnBackendCreateDescriptor));
static_assert(Same<decltype(F::BackendDestroyDescriptor)>::As(&cudnnBackendDestroyDescriptor));
static_assert(Same<decltype(F::BackendFinalize)>::As(&cudnnBackendFinalize));
static_assert(Same<decltype(F::BackendSetAttribute)>::As(&cudnnBackendSetAttribute));
static_assert(Same<decltype(F::BackendGetAttribute)>::As(&cudnnBackendGetAttribute));
static_assert(Same<decltype(F::BackendExecute)>::As(&cudnnBackendExecute));

}  // namespace
}  // namespace attnd::testing
#endif
