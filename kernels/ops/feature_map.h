// The feature maps of kernel methods that are more than one elementwise operation.
#pragma once

#include "kernels/device/feature_rows.h"
#include "kernels/ops/tensor.h"

namespace attnd {

class Ops;

// x [.., D] -> [.., F] float32.
Tensor FeaturesOf(Ops& ops, const Tensor& x, const FeatureRows& features);

}  // namespace attnd
