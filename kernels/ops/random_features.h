// random_features as a formula calls it: Ops::RandomFeatures. What it computes is in
// kernels/device/random_features.h.
#pragma once

#include "kernels/device/random_features.h"
#include "kernels/ops/tensor.h"

namespace attnd {

// phi [B,H,N,F] and shift [B,H,N|1,1], a constant; empty where there is none.
struct RandomFeaturesOut {
  Tensor phi, shift;
};

}  // namespace attnd
