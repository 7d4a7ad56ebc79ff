// How long the lists of listed sequences are: a warp follows one, in launches of some pairs each.
#pragma once

#include <cstdint>

#include "kernels/device/attend.h"

namespace attnd::cuda {

// The most keys that a query lists; 0: no sequence is listed. On a dry stream as it was planned.
int64_t LongestListOfQueries(const AttendProblem& problem, bool is_dry);
// The most pairs that a key has with the query heads of its own head, or more. On a dry stream as
// if all queries of a sequence listed one key.
int64_t LongestListOfKeys(const AttendProblem& problem, bool is_dry);

}  // namespace attnd::cuda
