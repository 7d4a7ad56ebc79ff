// What a finding about a device holds for: another model, card or driver has another identity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda.h"
#include "tests/cuda/emulator_runtime.h"

namespace attnd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CudaIdentity, NamesDriverModelAndCard) {
  emu::machine.devices = 2;
  const CudaDevices found = NewCudaDevices({});
  emu::machine = {};
  ASSERT_EQ(found.identities.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_THAT(found.identities[i], AllOf(StartsWith("driver "), HasSubstr(" for CUDA 13."),
                                           HasSubstr(", Emulated GPU, sm_80, ")));
  }
  EXPECT_NE(found.identities[0], found.identities[1]);
}

TEST(CudaIdentity, OfTheSameDeviceIsTheSame) {
  EXPECT_EQ(NewCudaDevices({}).identities, NewCudaDevices({}).identities);
}

}  // namespace
}  // namespace attnd::testing
