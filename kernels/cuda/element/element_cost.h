#pragma once

#include "kernels/device/elementwise.h"

namespace attnd::cuda {

// What an element costs beyond memory traffic, in FLOP of float32 at the peak: an operation of
// float64 takes as long as four.
inline double FlopsOf(ElementOp op) {
  switch (op) {
    case ElementOp::kExp:
    case ElementOp::kEluPlusOne:
    case ElementOp::kLog:
      return 40;
    case ElementOp::kSin:
    case ElementOp::kCos:
    case ElementOp::kTanh:
    case ElementOp::kSigmoid:
    case ElementOp::kSilu:
    case ElementOp::kGeluTanh:
      return 100;
    case ElementOp::kLogSigmoid:
    case ElementOp::kSoftplus:
    case ElementOp::kLogAddExp:
    case ElementOp::kGelu:
      return 160;
    default:
      return 8;
  }
}

}  // namespace attnd::cuda
