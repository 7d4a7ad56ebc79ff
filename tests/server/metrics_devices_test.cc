// The metrics of devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/server/metrics_fixture.h"

namespace attnd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A device whose memory is the host's copies nothing, and a driver may not know everything.
TEST(Metrics, DevicesShowOnlyWhatIsMeasured) {
  Metrics metrics({.version = "0.1.0",
                   .isa = "AVX2",
                   .devices = {{"cpu", 1e9}, {"cuda:0", 1e12}},
                   .methods = {"local"}});
  const SelfTestReport proven{
      .rows = {{.primitive = "scan", .dtype = "float32"},
               {.primitive = "scan", .dtype = "float16", .failure = "differs"},
               {.primitive = "pool", .dtype = "float32", .is_declined = true}}};
  metrics.SetSources({.devices = [&] {
    Metrics::DeviceState state = ReadDevice();
    state.self_test = &proven;
    return std::vector{Metrics::DeviceState{.counters = {.launches = 3}}, state};
  }});
  metrics.RecordDeviceError(1, Metrics::DeviceError::kMemory);
  const auto value = [&](const char* name, const std::string& rest) {
    return Value(metrics, absl::StrCat("attnd_device_", name, "{device=\"", rest, "}"));
  };
  EXPECT_EQ(value("launches_total", R"(cpu")"), 3);
  EXPECT_EQ(value("launches_total", R"(cuda:0")"), 7);
  EXPECT_EQ(value("copied_bytes_total", R"(cuda:0",direction="to_device")"), 300);
  EXPECT_EQ(value("copied_bytes_total", R"(cuda:0",direction="to_host")"), 100);
  EXPECT_EQ(value("utilisation_ratio", R"(cuda:0")"), 0.5);
  EXPECT_EQ(value("power_watts", R"(cuda:0")"), 300.5);
  const auto of_scan = [&](const char* dtype) {
    return value("self_test_passed",
                 absl::StrCat(R"(cuda:0",dtype=")", dtype, R"(",primitive="scan")"));
  };
  EXPECT_EQ(of_scan("float32"), 1);
  EXPECT_EQ(of_scan("float16"), 0);
  EXPECT_THAT(*metrics.Text(), Not(HasSubstr(R"(primitive="pool")")));
  EXPECT_EQ(value("temperature_celsius", R"(cuda:0")"), 61);
  EXPECT_EQ(value("memory_bytes", R"(cuda:0",kind="used")"), 3);
  EXPECT_EQ(value("memory_bytes", R"(cuda:0",kind="total")"), 8);
  for (const char* device : {"cpu", "cuda:0"}) {
    const bool is_second = absl::string_view(device) == "cuda:0";
    EXPECT_EQ(value("errors_total", absl::StrCat(device, R"(",kind="failed")")), 0);
    EXPECT_EQ(value("errors_total", absl::StrCat(device, R"(",kind="memory")")), is_second);
  }
  const std::string text = *metrics.Text();
  for (const char* name : {"copied_bytes_total", "utilisation_ratio", "power_watts",
                           "temperature_celsius", "memory_bytes"}) {
    EXPECT_THAT(text, Not(HasSubstr(absl::StrCat("attnd_device_", name, "{device=\"cpu\""))));
  }
}

}  // namespace
}  // namespace attnd
