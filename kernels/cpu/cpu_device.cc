#include "kernels/cpu/cpu_device.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/peak.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/simd/targets.h"
#include "kernels/cpu/upload.h"

#include "hwy/highway.h"

namespace attnd {
namespace {

struct IsaName {
  absl::string_view option, display;
  Isa isa;
  int64_t target;
};
constexpr IsaName kIsas[] = {{"avx512", "AVX-512", Isa::kAvx512, HWY_AVX3},
                             {"avx2", "AVX2", Isa::kAvx2, HWY_AVX2},
                             {"sse4", "SSE4", Isa::kSse4, HWY_SSE4}};

// Highway reports its baseline on any machine, so SSE4 is read from the processor itself.
bool HasSse4() { return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"); }

absl::StatusOr<Isa> PickIsa(absl::string_view wanted) {
  const int64_t supported = HasSse4() ? hwy::SupportedTargets() & HWY_TARGETS : 0;
  bool known = wanted.empty();
  for (const IsaName& name : kIsas) {
    known = known || wanted == name.option;
    if ((wanted.empty() || wanted == name.option) && (supported & name.target) != 0) {
      return name.isa;
    }
  }
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrCat("cpu: isa must be avx512, avx2, sse4 or empty, got \"", wanted, "\""));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cpu: isa must be one that this machine and this build have, got \"",
                   wanted.empty() ? "sse4" : wanted, "\""));
}

absl::string_view Display(Isa isa) {
  for (const IsaName& name : kIsas) {
    if (name.isa == isa) return name.display;
  }
  return "?";
}

// The first number of a cgroup file; `absent` when there is none ("max").
double ReadNumber(const char* path, double absent) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? value : absent;
}

int UsableThreads() {
  cpu_set_t set;
  int threads = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (file >> quota >> period && period > 0) {
    threads = std::min(threads, static_cast<int>(std::ceil(quota / period)));
  }
  return std::max(threads, 1);
}

int64_t UsableMemory() {
  double bytes = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    bytes = std::min(bytes, ReadNumber(path, bytes));
  }
  return static_cast<int64_t>(bytes);
}

DeviceStatus Stopped() { return {DeviceStatus::Code::kStopped, "run: stopped"}; }

// A stopped run leaves outputs partly written: its status must not be OK.
template <class F>
DeviceStatus RunControlled(Stream& stream, const F& primitive) {
  if (stream.stopped()) return Stopped();
  const RunScope scope(stream.control());
  DeviceStatus status = primitive();
  return status.ok() && stream.stopped() ? Stopped() : status;
}

}  // namespace

double Cpu::ParallelSeconds(double serial_seconds, int64_t items) const {
  if (!Parallel(serial_seconds)) return serial_seconds;
  const double rounds = std::ceil(static_cast<double>(items) / threads);
  const double ways = items <= 0 ? 1.0 : static_cast<double>(items) / std::max(rounds, 1.0);
  return serial_seconds / ways;
}

DeviceStatus NoMemory(Stream& stream) {
  return {
      DeviceStatus::Code::kNoMemory,
      absl::StrCat("cpu: no memory for ", stream.workspace().refused_bytes(), " bytes of scratch")};
}

CpuDevice::CpuDevice(Isa isa, const CpuOptions& options)
    : memory_(std::min(options.retain_bytes, UsableMemory() / 8), options.poison_memory),
      pool_(options.threads > 0 ? options.threads : UsableThreads()) {
  const int threads = pool_.threads();
  const Peak peak = MeasurePeak(isa, pool_);
  cpu_ = {.isa = isa,
          .threads = threads,
          .pool = &pool_,
          .thread_flops = peak.flops / threads,
          .bytes_per_second = peak.bytes_per_second};
  info_ = {.name = "cpu",
           .description =
               absl::StrCat(Display(isa), ", ", threads, threads == 1 ? " thread" : " threads"),
           .instruction_set = std::string(Display(isa)),
           .threads = threads,
           .peak_flops = peak.flops,
           .bytes_per_second = peak.bytes_per_second,
           .new_bytes_per_second = peak.new_bytes_per_second,
           .memory_bytes = UsableMemory()};
}

DeviceStatus CpuDevice::Run(Stream& stream, Launch launch) {
  return RunControlled(stream, [&] {
    return std::visit([&](const auto& args) { return RunOnCpu(*this, stream, args); }, launch);
  });
}

DeviceStatus CpuDevice::Upload(Stream& stream, void* destination,
                               std::span<const std::span<const std::byte>> spans,
                               std::shared_ptr<const void>) {
  return RunControlled(stream, [&] { return UploadToCpu(cpu_, stream, destination, spans); });
}

DeviceStatus CpuDevice::Download(Stream& stream, const void* source, std::span<std::byte> bytes) {
  constexpr size_t kPiece = size_t{1} << 20;
  return RunControlled(stream, [&] {
    // One thread reads and writes.
    const double serial =
        2 * static_cast<double>(bytes.size()) / (cpu_.bytes_per_second / cpu_.threads);
    if (Predicted(stream, serial)) return DeviceStatus();
    for (size_t at = 0; at < bytes.size() && !CheckPoint(); at += kPiece) {
      std::memcpy(bytes.data() + at, static_cast<const std::byte*>(source) + at,
                  std::min(kPiece, bytes.size() - at));
    }
    return DeviceStatus();
  });
}

absl::StatusOr<std::unique_ptr<Device>> NewCpuDevice(const CpuOptions& options) {
  if (options.threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cpu: threads must be >= 0, got ", options.threads));
  }
  absl::StatusOr<Isa> isa = PickIsa(options.isa);
  if (!isa.ok()) return isa.status();
  return std::make_unique<CpuDevice>(*isa, options);
}

}  // namespace attnd
