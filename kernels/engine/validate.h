// The checks of a request that all methods share.
#pragma once

#include "kernels/engine/engine.h"

namespace attnd {

// Sizes beyond these are refused. They keep every count in range (pairs of one head fit in 63 bits)
// and planning cheap; memory sets the practical limit long before.
constexpr int64_t kMaxTokens = int64_t{1} << 30;      // Nq, Nk
constexpr int64_t kMaxHeads = int64_t{1} << 16;       // B, H, Hkv
constexpr int64_t kMaxBatchHeads = int64_t{1} << 20;  // B * H, and with it B * Hkv
constexpr int64_t kMaxHeadDim = 4096;                 // D, Dv
constexpr int64_t kMaxBytes = int64_t{1} << 40;       // of one tensor, outputs included

// The sizes of a request, 0 where its tensors do not give them: those of queries by q, or by v
// where there is no q (H: MethodInfo::tensors_with_heads). `tensors` is set.
ProblemShape ShapeOf(const MethodInfo& info, const std::map<std::string, View>& tensors);

// Names, presence, dtypes, shapes, layouts, sizes, values of lengths; every reason at once.
void CheckTensors(const Method& method, const Call& call, Reasons* reasons);

// "grad_out" -> the output "out" of the method; null if it has none of that name.
const TensorInfo* OutputOfGrad(const MethodInfo& info, absl::string_view grad_name);

}  // namespace attnd
