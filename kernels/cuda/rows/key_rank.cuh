// Ranks of keys.
#pragma once

#include "kernels/cuda/rows/key_sort.h"
#include "kernels/cuda/simt.h"

namespace attnd::cuda {

SIMT_FN uint32_t RankAt(KeyOrder order, const void* keys, int64_t at) {
  uint32_t bits = static_cast<const uint32_t*>(keys)[at];
  constexpr uint32_t kSign = 0x80000000u;
  switch (order) {
    case KeyOrder::kIndices:
      return bits;
    case KeyOrder::kInts:
      return bits ^ kSign;
    case KeyOrder::kIntsDescending:
      return ~(bits ^ kSign);
    default:
      break;
  }
  if ((bits & ~kSign) > 0x7f800000u) return 0xffffffffu;
  if (bits == kSign) bits = 0;
  bits = (bits & kSign) != 0 ? ~bits : bits | kSign;
  return order == KeyOrder::kFloatsDescending ? ~bits : bits;
}

}  // namespace attnd::cuda
