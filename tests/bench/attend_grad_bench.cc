// Speed of the backward of attend against the multiply-add peak of the same machine in the same
// run: a bound, since its five products are 10 N Nk D FLOPs a head. One JSON object a line: case,
// value (ms a call), ratio (share of peak of the credited FLOPs), goal, busy (the same of the time
// that the process had its cores), peak (GFLOP/s of all threads), predicted (ms). Cases that
// compare two ways take turns; their value and ratio are the quotient of the medians. Usage:
// attend_grad_bench [--quick] [--isa=avx512|avx2|sse4] [--only=text]
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "tests/bench/attend_problem.h"
#include "tests/bench/attend_sampler.h"

namespace attnd {
namespace {

struct Options {
  std::string isa, only;
  bool quick = false;

  double seconds() const { return quick ? 0.2 : 1.0; }
};

struct Case {
  std::string name;
  BenchSizes sizes;
  bool bias_gradient = false;
  std::string goal = "";
};

void Check(const DeviceStatus& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.text()).c_str());
  std::exit(1);
}

std::unique_ptr<Device> Cpu(const Options& options, int threads) {
  auto made = NewCpuDevice({.threads = threads, .isa = options.isa});
  if (!made.ok()) Check({DeviceStatus::Code::kFailed, made.status().ToString()});
  return *std::move(made);
}

BenchSizes WithGradients(BenchSizes sizes) {
  sizes.gradients = true;
  return sizes;
}

// The calls of a case on a device.
class Bench {
 public:
  Bench(Device& device, const Case& c)
      : device_(device),
        bench_(WithGradients(c.sizes)),
        problem_(bench_.Backward()),
        seqs_(problem_.forward.seqs.begin(), problem_.forward.seqs.end()),
        stream_(device, &pool_) {
    seqs_[0].gathers = c.sizes.pattern != nullptr && !c.sizes.pattern->key_rows.empty();
    problem_.forward.seqs = seqs_;
    if (c.bias_gradient) {
      const Shape& shape = problem_.forward.terms.bias.shape;
      dbias_.resize(static_cast<size_t>(shape.size()));
      problem_.dterms.bias = DenseView(dbias_.data(), DType::kF32, shape);
    }
    const AttendArgs forward = {.params = bench_.params(), .problems = {problem_.forward}};
    Check(device_.Run(stream_, forward));
  }
  void Call() { CallOn(stream_); }
  double flops() const { return 2.5 * bench_.flops(); }
  double predicted() {
    Stream dry(device_, nullptr);
    CallOn(dry);
    return dry.work().seconds;
  }

 private:
  void CallOn(Stream& stream) {
    Check(device_.Run(stream, AttendGradArgs{.params = bench_.params(), .problems = {problem_}}));
  }

  Device& device_;
  const BenchProblem bench_;
  AttendGradProblem problem_;
  std::vector<AttendSeq> seqs_;
  std::vector<float> dbias_;
  BufferPool pool_;
  Stream stream_;
};

void Run(CpuDevice& device, const Options& options, const Case& c) {
  const std::string name = "backward " + c.name + " T" + std::to_string(device.cpu().threads);
  if (name.find(options.only) == std::string::npos) return;
  Bench bench(device, c);
  PeakSampler sampler(device, [&] { bench.Call(); });
  const double start = Wall();
  do {
    sampler.Add();
  } while ((Wall() - start < options.seconds() || sampler.size() < 5) &&
           Wall() - start < 8 * options.seconds());
  const Measured m = sampler.Result();
  const std::string goal = c.goal.empty() ? "" : "\"goal\":\"" + c.goal + "\",";
  std::printf(
      "{\"case\":\"%s\",\"value\":%.3f,\"unit\":\"ms\",\"ratio\":%.3f,%s\"busy\":%.3f,"
      "\"peak\":%.1f,\"predicted\":%.3f,\"clean\":%s}\n",
      name.c_str(), m.seconds * 1e3, bench.flops() * m.share, goal.c_str(), bench.flops() * m.busy,
      m.peak / 1e9, bench.predicted() * 1e3, m.clean ? "true" : "false");
  std::fflush(stdout);
}

// Seconds of the first over those of the second.
void Compare(const Options& options, const std::string& name, const std::string& goal, Bench& first,
             Bench& second) {
  std::vector<double> seconds[2];
  Bench* const benches[2] = {&first, &second};
  const double start = Wall();
  do {
    for (int i : {0, 1}) {
      const double before = Wall();
      benches[i]->Call();
      seconds[i].push_back(Wall() - before);
    }
  } while (Wall() - start < 4 * options.seconds() || seconds[0].size() < 5);
  const double quotient = Median(seconds[0]) / Median(seconds[1]);
  std::printf("{\"case\":\"%s\",\"value\":%.3f,\"unit\":\"\",\"goal\":\"%s\"}\n", name.c_str(),
              quotient, goal.c_str());
  std::fflush(stdout);
}

std::vector<Case> Cases(bool quick) {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, int64_t H, int64_t N, int64_t D) -> BenchSizes& {
    const std::string shape = " N" + std::to_string(N) + " D" + std::to_string(D) + " H";
    cases.push_back(
        {name + shape + std::to_string(H), {.H = H, .Hkv = H, .Nq = N, .Nk = N, .D = D}});
    return cases.back().sizes;
  };
  constexpr int64_t kNone = attnd::kUnbounded;
  for (int64_t N : {128, 1024, 4096}) {
    for (int64_t D : {64, 128}) {
      if (quick && N > 1024) continue;
      add("full", 8, N, D);
      if (N >= 1024) cases.back().goal = ">= 0.80";
      add("causal", 8, N, D).pattern = BandPattern(N, kNone, 0);
    }
  }
  for (int64_t N : {4096, 32768}) add("window 256", 2, N, 64).pattern = BandPattern(N, -255, 0);
  add("tiles 0.1", 2, 8192, 64).pattern = RandomTiles(8192, 0.1);
  add("gathered", 2, 4096, 64).pattern = GatheredKeys(4096, 256);
  add("groups of 4", 8, 1024, 64).Hkv = 2;
  add("alibi", 8, 1024, 64).alibi = true;
  add("cap", 8, 1024, 64).params.softcap = 30;
  add("relu", 8, 1024, 64).params.weighting = Weighting::kRelu;
  add("bias", 8, 1024, 64).bias = true;
  add("bias with gradient", 8, 1024, 64).bias = true;
  cases.back().bias_gradient = true;
  add("relative", 8, 1024, 64).L = 1024;
  BenchSizes& labels = add("labels", 8, 1024, 64);
  labels.labels = true;
  labels.pattern = Labelled(1024);
  return cases;
}

// One head shared by two threads, and 16-bit tensors beside float32.
void Comparisons(const Options& options, Device& one, Device& two) {
  const BenchSizes head = {.H = 1, .Hkv = 1, .Nq = 4096, .Nk = 4096, .D = 64};
  const std::string shared = "backward one head N4096 D64: one thread / two threads";
  if (shared.find(options.only) != std::string::npos) {
    Bench alone(one, {"", head}), both(two, {"", head});
    Compare(options, shared, ">= 1.8", alone, both);
  }
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const std::string name = "backward N1024 D64 H8 T1: " + std::string(Name(dtype)) + " / float32";
    if (name.find(options.only) == std::string::npos) continue;
    BenchSizes sizes = {.Nq = 1024, .Nk = 1024, .D = 64};
    Bench wide(one, {"", sizes});
    sizes.dtype = dtype;
    Bench half(one, {"", sizes});
    Compare(options, name, "<= 1.1", half, wide);
  }
}

void Main(const Options& options) {
  const std::vector<Case> cases = Cases(options.quick);
  const std::unique_ptr<Device> one = Cpu(options, 1), two = Cpu(options, 2);
  for (Device* device : {one.get(), two.get()}) {
    for (const Case& c : cases) Run(static_cast<CpuDevice&>(*device), options, c);
  }
  Comparisons(options, *one, *two);
}

}  // namespace
}  // namespace attnd

int main(int argc, char** argv) {
  attnd::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      options.quick = true;
    } else if (argument.starts_with("--isa=")) {
      options.isa = argument.substr(6);
    } else if (argument.starts_with("--only=")) {
      options.only = argument.substr(7);
    } else {
      std::fprintf(stderr,
                   "usage: attend_grad_bench [--quick] [--isa=avx512|avx2|sse4] [--only=text]\n");
      return 2;
    }
  }
  attnd::Main(options);
  return 0;
}
