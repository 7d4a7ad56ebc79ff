// Tensors of random numbers for the self-test.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/core/view.h"

namespace attnd {

struct RandomArray {
  // Dense, of a float dtype. Numbers are normal, with few enough bits to be exact in every type,
  // and follow from the seed.
  RandomArray(DType dtype, const Shape& shape, unsigned seed);
  RandomArray(RandomArray&&) = default;  // a copy's view would be of the other's bytes

  std::vector<std::byte> bytes;
  View view;
};

}  // namespace attnd
