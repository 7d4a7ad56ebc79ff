#pragma once

#include "kernels/device/elementwise.h"

namespace attnd {

// What an element costs beyond memory traffic, in multiply-adds of float32 at the peak: functions
// in float64 take 20 to 50 instructions on half as many lanes; see tests/bench/along.
inline double FlopsOf(ElementOp op) {
  switch (op) {
    case ElementOp::kExp:
    case ElementOp::kEluPlusOne:
      return 100;
    case ElementOp::kLog:
    case ElementOp::kSin:
    case ElementOp::kCos:
    case ElementOp::kTanh:
    case ElementOp::kSigmoid:
    case ElementOp::kLogSigmoid:
    case ElementOp::kSoftplus:
    case ElementOp::kSilu:
    case ElementOp::kGelu:
    case ElementOp::kGeluTanh:
    case ElementOp::kLogAddExp:
      return 200;
    default:
      return 4;
  }
}

}  // namespace attnd
