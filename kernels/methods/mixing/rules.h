// Rules of the methods that mix the rows of v: H = Hkv, Nq = Nk, q_lengths = kv_lengths.
#pragma once

#include "absl/strings/string_view.h"
#include "kernels/core/status.h"
#include "kernels/method/problem.h"

namespace attnd {

// "Hkv must be H = 4, got 2", "Nk must be Nq = 6, got 7", "q_lengths[1] must be kv_lengths[1] = 5,
// got 4". Nothing where a shared check has a reason already.
void CheckMixing(const ProblemShape& problem, Reasons* reasons);

// A table whose axes of rows are called L in `shape`, as TensorInfo has it: they are all alike and
// at least Nk; its first Nk rows are used.
void CheckRows(const ProblemShape& problem, absl::string_view name, absl::string_view shape,
               Reasons* reasons);

// A tensor that `option` = `value` does not read: "norm_weight must be absent with pre_norm =
// false, got [8]".
void CheckUnread(const ProblemShape& problem, absl::string_view name, absl::string_view option,
                 absl::string_view value, Reasons* reasons);

// Hkv Dv, the channels of all heads; 0 where a size is out of range, for which there is a reason.
int64_t ChannelsOf(const ProblemShape& problem);

}  // namespace attnd
