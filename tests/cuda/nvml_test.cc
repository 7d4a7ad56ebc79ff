// Reading a device through a stand-in for NVIDIA's management library (nvml/fake_nvml.cc).
#include "kernels/cuda/nvml.h"

#include <gtest/gtest.h>

namespace attnd::cuda {
namespace {

TEST(Nvml, ReadsADevice) {
  const auto nvml = Nvml::Open(Nvml::BusIdOf(0, 0, 0), FAKE_NVML);
  ASSERT_NE(nvml, nullptr);
  const DeviceReadings read = nvml->Read();
  EXPECT_EQ(read.utilisation, 0.42);
  EXPECT_EQ(read.power_watts, 123.5);
  EXPECT_EQ(read.temperature_celsius, 61);
  EXPECT_EQ(read.memory_used_bytes, int64_t{3} << 30);
  EXPECT_EQ(read.memory_total_bytes, int64_t{8} << 30);
  EXPECT_EQ(nvml->DriverVersion(), "580.65.06");
}

TEST(Nvml, LeavesOutWhatADeviceDoesNotKnow) {
  const auto nvml = Nvml::Open("00000000:3b:00.0", FAKE_NVML);
  ASSERT_NE(nvml, nullptr);
  const DeviceReadings read = nvml->Read();
  EXPECT_FALSE(read.utilisation.has_value());
  EXPECT_EQ(read.power_watts, 123.5);
}

TEST(Nvml, IsAbsentWithoutTheLibraryOrTheDevice) {
  EXPECT_EQ(Nvml::Open("00000000:00:00.0", "libno-such-library.so.1"), nullptr);
  EXPECT_EQ(Nvml::Open("00000000:01:00.0", FAKE_NVML), nullptr);
  // A library, but another one.
  EXPECT_EQ(Nvml::Open("00000000:00:00.0", "libm.so.6"), nullptr);
}

TEST(Nvml, NamesDevicesByTheirPlaceOnTheBus) {
  EXPECT_EQ(Nvml::BusIdOf(0, 0x3b, 0), "00000000:3b:00.0");
  EXPECT_EQ(Nvml::BusIdOf(1, 0x5, 0x1f), "00000001:05:1f.0");
}

}  // namespace
}  // namespace attnd::cuda
