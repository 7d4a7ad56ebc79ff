// The cases of cuda_bench.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/launch.h"

namespace attnd {

struct BenchCase {
  std::string name;
  double flops = 0;  // credited
  // Made when its turn comes, of arrays in host memory.
  std::function<Launch()> launch;
};

// Arrays that live until ForgetArrays: of random numbers, or room for a result; and each row of
// `rows` once, in random order.
View NewArray(DType dtype, const Shape& shape);
View NewShuffled(int64_t rows);
void ForgetArrays();

// scan, and the primitives along rows and by index: memory bounds them.
std::vector<BenchCase> RowCases();

// Prints a line of how much of copies passes beside products. `libraries`: true or false, for JSON.
void MeasureCopies(Device& device, const char* libraries);

}  // namespace attnd
