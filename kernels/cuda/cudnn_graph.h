// Attention, or its gradient, as a graph of cuDNN's: matrix products, reductions and operations on
// elements, in the one order for which it has engines that keep scores on the chip. From 9.21 on
// cuDNN knows attention as one operation, too, and makes the same kernels of both.
#pragma once

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/cudnn_api.h"
#include "kernels/cuda/cudnn_descriptor.h"
#include "kernels/cuda/cudnn_parts.h"

namespace attnd::cuda::dnn {

class AttendGraph {
 public:
  AttendGraph(const Functions& functions, cudnnHandle_t handle, const DnnAttend& attend);

  bool ok() const { return graph_.ok(); }  // finalized
  const Descriptor& graph() const { return graph_; }

 private:
  GraphParts parts_;
  Descriptor graph_;
};

}  // namespace attnd::cuda::dnn
