// A test of a library that the emulator has a stand-in for.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda.h"
#include "kernels/engine/devices.h"
#include "tests/cuda/emulator/orders.h"
#include "tests/cuda/on_host.h"

namespace attnd::testing {

// `how` is the stand-in's switch, an atomic enumeration: it is right again after each test.
template <auto& how>
class WithStandIn : public ::testing::Test {
 protected:
  using How = typename std::remove_reference_t<decltype(how)>::value_type;

  ~WithStandIn() override { how = How::kRight; }

  std::unique_ptr<OnHost> NewDevice(How behaviour) {
    how = behaviour;
    CudaDevices found = NewCudaDevices(
        {.retain_bytes = 0, .poison_memory = true, .warn = [this](const std::string& line) {
           warnings.push_back(line);
         }});
    EXPECT_EQ(found.why_not, "");
    return std::make_unique<OnHost>(std::move(found.devices.at(0)));
  }
  // The devices of a server, which prove themselves first. Every kernel is launched once, which
  // SelfTestCuda repeats.
  static Devices NewServerDevices() {
    const int64_t repeats = std::exchange(emu::repeats, 0);
    absl::StatusOr<Devices> devices =
        NewDevices({.kinds = DeviceOptions::Kinds::kCuda, .cpu = {.threads = 1}});
    emu::repeats = repeats;
    EXPECT_TRUE(devices.ok()) << devices.status();
    return std::move(*devices);
  }

  std::vector<std::string> warnings;
};

}  // namespace attnd::testing
