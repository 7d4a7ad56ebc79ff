#include "tests/plain/cpus.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/targets.h"

#include "hwy/highway.h"

namespace attnd {

Device& CpuOf(const std::string& isa, int threads) {
  static auto& devices = *new std::map<std::pair<std::string, int>, std::unique_ptr<Device>>();
  std::unique_ptr<Device>& device = devices[{isa, threads}];
  if (device == nullptr) {
    auto made = NewCpuDevice({.threads = threads, .isa = isa});
    if (!made.ok()) ADD_FAILURE() << made.status();
    device = *std::move(made);
  }
  return *device;
}

std::vector<std::string> AvailableIsas() {
  static const auto& isas = *new std::vector<std::string>([] {
    // Highway lists them: every test process needs the list, and making a device measures its peak.
    const int64_t supported = hwy::SupportedTargets() & HWY_TARGETS;
    std::vector<std::string> available;
    if ((supported & HWY_SSE4) != 0) available.push_back("sse4");
    if ((supported & HWY_AVX2) != 0) available.push_back("avx2");
    if ((supported & HWY_AVX3) != 0) available.push_back("avx512");
#ifdef ATTND_TEST_ONE_ISA
    available.erase(available.begin(), available.end() - 1);
#endif
    return available;
  }());
  return isas;
}

}  // namespace attnd
