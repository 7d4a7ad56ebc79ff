// The C interface on devices that run launches asynchronously.
#include "kernels/engine/c_api.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace attnd::testing {
namespace {

class CApi : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      setenv("STRICT_DEVICE_SHARED", "1", /*overwrite=*/1);
    } else {
      unsetenv("STRICT_DEVICE_SHARED");
    }
    engine_ = attnd_engine_new(/*threads=*/1, /*isa=*/"", /*poison=*/1);
    ASSERT_NE(engine_, nullptr) << attnd_error();
  }
  void TearDown() override { attnd_engine_free(engine_); }

  attnd_engine* engine_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Memory, CApi, ::testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "OpenToTheHost" : "OfItsOwn");
});

// Symptom: a device that cannot read the host's memory got the caller's pointers, because the host
// can read the device's.
TEST_P(CApi, TensorsOfTheCallerAreCopiedToTheDevice) {
  // Two queries, of every second pair of floats, see one key.
  const std::vector<float> q = {1, 2, 9, 9, 3, 4}, k = {5, 6}, v = {7, 8, -9};
  const int64_t q_shape[] = {1, 1, 2, 2}, k_shape[] = {1, 1, 1, 2}, v_shape[] = {1, 1, 1, 3};
  const int64_t q_stride[] = {8, 8, 4, 1}, k_stride[] = {2, 2, 2, 1}, v_stride[] = {3, 3, 3, 1};
  attnd_call* call = attnd_call_new("softmax", /*backward=*/0);
  attnd_call_tensor(call, "q", 0, 4, q_shape, q_stride, 0, q.data());
  attnd_call_tensor(call, "k", 0, 4, k_shape, k_stride, 0, k.data());
  attnd_call_tensor(call, "v", 0, 4, v_shape, v_stride, 0, v.data());
  ASSERT_EQ(attnd_execute(engine_, &call, 1), 0) << attnd_error();
  int dtype = -1, rank = 0, bnhd = 1;
  int64_t shape[4] = {};
  const void* data = nullptr;
  const char* name = attnd_call_output(call, 0, &dtype, &rank, shape, &bnhd, &data);
  ASSERT_STREQ(name, "out");
  ASSERT_EQ(std::vector<int64_t>(shape, shape + 4), (std::vector<int64_t>{1, 1, 2, 3}));
  const auto* out = static_cast<const float*>(data);
  EXPECT_EQ(std::vector<float>(out, out + 6), (std::vector<float>{7, 8, -9, 7, 8, -9}));
  attnd_call_free(call);
}

}  // namespace
}  // namespace attnd::testing
