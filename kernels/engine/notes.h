// What a reply says of a request that is legal and seldom meant.
#pragma once

#include <string>
#include <vector>

#include "kernels/method/method.h"

namespace attnd {

// The notes of the method and those of the tensors that all methods share, each a sentence
// "method: ...". REQUIRES: the request passed its checks.
std::vector<std::string> NotesOf(const Method& method, const ProblemShape& problem,
                                 const void* options);

}  // namespace attnd
