// A kernel whose accesses and arithmetic are known, compiled as those that are counted.
#include "tests/cuda/costs/known_kernel.h"

#include "kernels/cuda/simt.h"

namespace attnd::testing {
namespace {

// One warp. With a stride of 32 every lane wants another word of one bank, and another sector.
__global__ void Known(const float* from, float* to, int stride) {
  simt::SharedTiles shared;
  float* tile = shared.Take<float>(32 * 32);
  const int lane = static_cast<int>(threadIdx.x);
  tile[lane * stride] = from[lane];
  __syncwarp();
  // Of lane n: n products with a sum, and one; n exponentials.
  float x = tile[0];
  for (int i = 0; i < lane; ++i) x = simt::Exp2(x * 0.5f - 1.0f);
  to[lane * stride] = fmaf(x, x, x);
  // Lanes part, and each has as many accesses of its own.
  for (int i = 0; i < lane; ++i) tile[i] = 0;
  __syncwarp();
  if (lane < 4) {
    reinterpret_cast<float4*>(tile)[lane] = reinterpret_cast<const float4*>(from)[lane];
  }
}

}  // namespace

cudaError_t LaunchKnown(cudaStream_t stream, const float* from, float* to, int stride) {
  return emu::Enqueue(stream, {dim3(1), dim3(32), 32 * 32 * sizeof(float)},
                      [=] { Known(from, to, stride); });
}

}  // namespace attnd::testing
