#include "kernels/cpu/cpu_backend.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/core/run_control.h"
#include "kernels/core/status.h"
#include "kernels/core/stopped.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/attend_list.h"
#include "kernels/cpu/peak.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/scan.h"
#include "kernels/cpu/targets.h"

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

// Highway answers with the baseline when the machine has nothing; only the processor knows.
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

// Problems whose rows are listed have kernels of their own. Nearly always all are or none.
bool IsListed(const AttendProblem& p) { return !p.rows.empty() && p.rows[0].is_listed; }
bool IsListed(const AttendGradProblem& p) { return IsListed(p.forward); }
template <class Problem, class Tiles, class Lists>
absl::Status EachForm(std::span<const Problem> problems, const Tiles& tiles, const Lists& lists) {
  const auto is_listed = [](const Problem& p) { return IsListed(p); };
  std::vector<Problem> listed;
  std::copy_if(problems.begin(), problems.end(), std::back_inserter(listed), is_listed);
  if (listed.empty()) return tiles(problems);
  if (listed.size() == problems.size()) return lists(problems);
  std::vector<Problem> rest;
  std::remove_copy_if(problems.begin(), problems.end(), std::back_inserter(rest), is_listed);
  const absl::Status status = tiles(std::span<const Problem>(rest));
  return status.ok() ? lists(std::span<const Problem>(listed)) : status;
}

}  // namespace

double Cpu::ParallelSeconds(double serial_seconds, int64_t items) const {
  if (!Parallel(serial_seconds)) return serial_seconds;
  const double rounds = std::ceil(static_cast<double>(items) / threads);
  const double ways = items <= 0 ? 1.0 : static_cast<double>(items) / std::max(rounds, 1.0);
  return serial_seconds / ways;
}

absl::StatusOr<std::shared_ptr<Buffer>> Take(Stream& stream, int64_t bytes) {
  std::shared_ptr<Buffer> buffer = stream.workspace().Allocate(bytes);
  if (buffer == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cpu: no memory for ", bytes, " bytes of scratch"));
  }
  return buffer;
}

CpuBackend::CpuBackend(Isa isa, int threads) : pool_(threads) {
  const Peak peak = MeasurePeak(isa, pool_);
  cpu_ = {.isa = isa,
          .threads = threads,
          .pool = &pool_,
          .thread_flops = peak.flops / threads,
          .bytes_per_second = peak.bytes_per_second};
  info_ = {.name = "cpu",
           .description =
               absl::StrCat(Display(isa), ", ", threads, threads == 1 ? " thread" : " threads"),
           .peak_flops = peak.flops,
           .bytes_per_second = peak.bytes_per_second,
           .new_bytes_per_second = peak.new_bytes_per_second,
           .memory_bytes = UsableMemory()};
}

// What a stopped run has left out leaves wrong values behind: they must not look like a result.
template <class F>
absl::Status CpuBackend::Run(Stream& stream, const F& primitive) {
  if (stream.stopped()) return StoppedStatus();
  const RunScope scope(stream.control());
  absl::Status status = primitive();
  return status.ok() && stream.stopped() ? StoppedStatus() : status;
}

absl::Status CpuBackend::Attend(Stream& stream, const AttendArgs& args) {
  return Run(stream, [&] {
    return EachForm(
        args.problems,
        [&](auto problems) {
          return CpuAttend(*this, stream, {args.params, problems});
        },
        [&](auto problems) {
          return CpuAttendLists(*this, stream, {args.params, problems});
        });
  });
}
absl::Status CpuBackend::AttendGrad(Stream& stream, const AttendGradArgs& args) {
  return Run(stream, [&] {
    return EachForm(
        args.problems,
        [&](auto problems) {
          return CpuAttendGrad(*this, stream, {args.params, problems});
        },
        [&](auto problems) {
          return CpuAttendListsGrad(*this, stream, {args.params, problems});
        });
  });
}
absl::Status CpuBackend::Merge(Stream& stream, const MergeArgs& args) {
  return Run(stream, [&] { return CpuMerge(*this, stream, args); });
}
absl::Status CpuBackend::MergeGrad(Stream& stream, const MergeGradArgs& args) {
  return Run(stream, [&] { return CpuMergeGrad(*this, stream, args); });
}
absl::Status CpuBackend::Scan(Stream& stream, const ScanArgs& args) {
  return Run(stream, [&] { return CpuScan(*this, stream, args); });
}
absl::Status CpuBackend::ScanGrad(Stream& stream, const ScanGradArgs& args) {
  return Run(stream, [&] { return CpuScanGrad(*this, stream, args); });
}
absl::Status CpuBackend::MatMul(Stream& stream, const MatMulArgs& args) {
  return Run(stream, [&] { return CpuMatMul(*this, stream, args); });
}
absl::Status CpuBackend::Elementwise(Stream& stream, const ElementwiseArgs& args) {
  return Run(stream, [&] { return CpuElementwise(*this, stream, args); });
}
absl::Status CpuBackend::Reduce(Stream& stream, const ReduceArgs& args) {
  return Run(stream, [&] { return CpuReduce(*this, stream, args); });
}
absl::Status CpuBackend::Softmax(Stream& stream, const SoftmaxArgs& args) {
  return Run(stream, [&] { return CpuSoftmax(*this, stream, args); });
}
absl::Status CpuBackend::Cumulative(Stream& stream, const CumulativeArgs& args) {
  return Run(stream, [&] { return CpuCumulative(*this, stream, args); });
}
absl::Status CpuBackend::LayerNorm(Stream& stream, const LayerNormArgs& args) {
  return Run(stream, [&] { return CpuLayerNorm(*this, stream, args); });
}
absl::Status CpuBackend::Pool(Stream& stream, const PoolArgs& args) {
  return Run(stream, [&] { return CpuPool(*this, stream, args); });
}
absl::Status CpuBackend::DepthwiseConv(Stream& stream, const DepthwiseConvArgs& args) {
  return Run(stream, [&] { return CpuDepthwiseConv(*this, stream, args); });
}
absl::Status CpuBackend::DepthwiseConvGrad(Stream& stream, const DepthwiseConvGradArgs& args) {
  return Run(stream, [&] { return CpuDepthwiseConvGrad(*this, stream, args); });
}
absl::Status CpuBackend::GatherRows(Stream& stream, const GatherRowsArgs& args) {
  return Run(stream, [&] { return CpuGatherRows(*this, stream, args); });
}
absl::Status CpuBackend::ScatterRows(Stream& stream, const ScatterRowsArgs& args) {
  return Run(stream, [&] { return CpuScatterRows(*this, stream, args); });
}
absl::Status CpuBackend::Sort(Stream& stream, const SortArgs& args) {
  return Run(stream, [&] { return CpuSort(*this, stream, args); });
}
absl::Status CpuBackend::RealFft2(Stream& stream, const FftArgs& args) {
  return Run(stream, [&] { return CpuRealFft2(*this, stream, args); });
}
absl::Status CpuBackend::Upload(Stream& stream, void* destination,
                                std::span<const std::span<const std::byte>> spans) {
  return Run(stream, [&] { return CpuUpload(*this, stream, destination, spans); });
}
// The stream is done when a call returns.
absl::Status CpuBackend::Download(Stream& stream, const void* source, std::span<std::byte> bytes) {
  constexpr size_t kPiece = size_t{1} << 20;
  return Run(stream, [&] {
    for (size_t at = 0; at < bytes.size() && !CheckPoint(); at += kPiece) {
      std::memcpy(bytes.data() + at, static_cast<const std::byte*>(source) + at,
                  std::min(kPiece, bytes.size() - at));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<std::unique_ptr<Backend>> NewCpuBackend(const CpuOptions& options) {
  if (options.threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cpu: threads must be >= 0, got ", options.threads));
  }
  absl::StatusOr<Isa> isa = PickIsa(options.isa);
  if (!isa.ok()) return isa.status();
  return std::make_unique<CpuBackend>(*isa,
                                      options.threads > 0 ? options.threads : UsableThreads());
}

}  // namespace attnd
