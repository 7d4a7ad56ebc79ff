// What g++ sees of CUDA C++ in place of nvcc: kernels run on the CPU, source unchanged.
#pragma once

// These use attributes that CUDA's headers redefine.
#include <functional>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include <cuda_runtime.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
// An empty attribute: the standard library's headers write __attribute__((__noinline__)).
#undef __noinline__
#define __noinline__

#include "fibers.h"
#include "intrinsics.h"
#include "runtime.h"
#include "shared.h"
#include "warp.h"

#define threadIdx (::emu::self->index)
#define blockIdx (::emu::self->geometry->block_index)
#define blockDim (::emu::self->geometry->block_dim)
#define gridDim (::emu::self->geometry->grid_dim)
inline constexpr int warpSize = 32;
