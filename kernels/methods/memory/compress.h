// Rows that leave the memory, as fewer rows that stand for them (Rae et al. 2019, section 3.1):
// L = n c rows to n rows, y_t from rows t c .. t c + c - 1.
//   mean, max: of each feature
//   conv, dilated_conv: y_t = b + sum_r W_r x_(t c + r dilation), rows past the end 0
//   most_used: the n rows with the largest sum_(h,i) P_hij of an attention, in their order
#pragma once

#include <vector>

#include "kernels/methods/memory/relative.h"

namespace attnd {

// conv_wk, conv_bk, conv_wv, conv_bv.
std::vector<TensorInfo> ConvInputs();
void CheckConv(const ProblemShape& problem, const MemoryOptions& o,
               const std::vector<TensorInfo>& inputs, Reasons* reasons);

struct Compressed {
  Tensor old_k, old_v;  // the rows, constants
  Tensor k, v;          // float32; with a gradient to the tensors of ConvInputs only
};

// rows: of each part, a multiple of the rate; they begin behind the compressed memory.
Compressed CompressOldest(Ops& ops, const Inputs& in, const SeqSplit& split,
                          const MemoryAttention& attended, const std::vector<int64_t>& rows,
                          const MemoryOptions& o);

}  // namespace attnd
