// The methods that the self-test runs, and on what.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/view.h"
#include "kernels/method/options.h"

namespace attnd {

// A method on q [B,H,N,D], k [B,Hkv,Nk,D] and v [B,Hkv,Nk,Dv], as far as it takes them.
struct TestCall {
  const char* method;
  OptionMap options = {};
  int64_t N = 75;
  std::map<std::string, Shape> tensors = {};  // besides q, k, v
  int64_t D = 40;
  int64_t B = 2, H = 2, Hkv = 2;
  int64_t Nk = 0, Dv = 0;  // 0: as N and D
  std::vector<DType> dtypes = {DType::kF32, DType::kF16, DType::kBF16};
  bool has_backward = true;

  int64_t keys() const { return Nk == 0 ? N : Nk; }
  int64_t columns() const { return Dv == 0 ? D : Dv; }
};

// Together they launch every primitive (tests/engine/self_test_test.cc) and every kernel of the
// CUDA device, but for those that tests/cuda/self_test_cuda_test.cc names.
std::vector<TestCall> SelfTestCalls();

}  // namespace attnd
