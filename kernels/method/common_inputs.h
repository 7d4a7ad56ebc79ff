// The tensors that every method takes.
#pragma once

#include <string>
#include <vector>

#include "kernels/method/info.h"

namespace attnd {

// q, k and v with their shapes, and how long each sequence is.
std::vector<TensorInfo> CommonInputs();

// v, the lengths, and q and k, which may be sent and are not read: for methods that mix the rows of
// v. H = Hkv and Nq = Nk.
std::vector<TensorInfo> ValueInputs();

// A float tensor that has a gradient and may be left out.
TensorInfo Differentiable(std::string name, std::string shape, std::string help,
                          std::string dtype = "float");

}  // namespace attnd
