// What kernels/cuda/cufft_api.h declares of cuFFT is what NVIDIA's header says, where it is
// installed: the build needs none.
#if __has_include(<cufft.h>)
#include <cufft.h>

#include "kernels/cuda/cufft_api.h"
#include "tests/cuda/same_interface.h"

namespace attnd::cuda {
namespace {

using testing::IsSame;
using testing::Same;

static_assert(IsSame(cufft::CUFFT_SUCCESS, ::CUFFT_SUCCESS));
static_assert(IsSame(cufft::CUFFT_INVALID_PLAN, ::CUFFT_INVALID_PLAN));
static_assert(IsSame(cufft::CUFFT_ALLOC_FAILED, ::CUFFT_ALLOC_FAILED));
static_assert(IsSame(cufft::CUFFT_INVALID_VALUE, ::CUFFT_INVALID_VALUE));
static_assert(IsSame(cufft::CUFFT_INTERNAL_ERROR, ::CUFFT_INTERNAL_ERROR));
static_assert(IsSame(cufft::CUFFT_EXEC_FAILED, ::CUFFT_EXEC_FAILED));
static_assert(IsSame(cufft::CUFFT_SETUP_FAILED, ::CUFFT_SETUP_FAILED));
static_assert(IsSame(cufft::CUFFT_INVALID_SIZE, ::CUFFT_INVALID_SIZE));
static_assert(IsSame(cufft::CUFFT_NOT_SUPPORTED, ::CUFFT_NOT_SUPPORTED));
static_assert(IsSame(cufft::CUFFT_R2C, ::CUFFT_R2C));
static_assert(sizeof(cufft::cufftHandle) == sizeof(::cufftHandle));

using F = cufft::Functions;
static_assert(Same<decltype(F::GetVersion)>::As(&cufftGetVersion));
static_assert(Same<decltype(F::Create)>::As(&cufftCreate));
static_assert(Same<decltype(F::Destroy)>::As(&cufftDestroy));
static_assert(Same<decltype(F::SetAutoAllocation)>::As(&cufftSetAutoAllocation));
static_assert(Same<decltype(F::MakePlanMany64)>::As(&cufftMakePlanMany64));
static_assert(Same<decltype(F::SetStream)>::As(&cufftSetStream));
static_assert(Same<decltype(F::SetWorkArea)>::As(&cufftSetWorkArea));
static_assert(Same<decltype(F::ExecR2C)>::As(&cufftExecR2C));

}  // namespace
}  // namespace attnd::cuda
#endif
