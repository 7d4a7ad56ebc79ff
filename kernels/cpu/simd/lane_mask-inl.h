// Bit masks as lane masks, and their transposition.
#if defined(ATTND_CPU_LANE_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_LANE_MASK_INL_H_
#undef ATTND_CPU_LANE_MASK_INL_H_
#else
#define ATTND_CPU_LANE_MASK_INL_H_
#endif

#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/device/pattern.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The low kLanes bits as a mask.
HWY_INLINE hn::Mask<DF> LaneMask(uint64_t bits) {
  uint8_t bytes[8];
  std::memcpy(bytes, &bits, sizeof(bytes));
  return hn::LoadMaskBits(DF(), bytes);
}

// Bit k of rows[q] = bit q of mask[k], by exchanging ever smaller off-diagonal blocks.
HWY_INLINE void TransposeMask(const TileMask& mask, uint64_t* rows) {
  std::memcpy(rows, mask.data(), sizeof(mask));
  uint64_t low = 0xFFFFFFFFu;
  for (int width = 32; width > 0; width >>= 1, low ^= low << width) {
    for (int i = 0; i < 64; i = ((i | width) + 1) & ~width) {
      const uint64_t swapped = ((rows[i] >> width) ^ rows[i | width]) & low;
      rows[i] ^= swapped << width;
      rows[i | width] ^= swapped;
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
