// Speed and memory of scan (linear attention, elu + 1, D = Dv = 64, float32).
//
//   scan_bench [--quick]     --quick leaves out N = 1M (it takes 1 GB)
//
// One JSON object a line, see tests/bench/table.py. Figures are medians; with one thread in CPU
// time of that thread, which a busy machine disturbs least, with two in wall time.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"

namespace attnd {
namespace {

constexpr int64_t kD = 64;

struct Setting {
  bool causal = false;
  int threads = 1;
  int64_t N = 0, H = 1;
  bool backward = false;
};

// Seconds that only differences of matter.
double Now(int threads) {
  timespec now;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Figures {
  double seconds = 0, flops = 0, predicted_seconds = 0;
  int64_t workspace_bytes = 0;
};

// q, k, v, dout and all results, filled with a cheap wave.
class Bench {
 public:
  Bench(Backend* backend, const Setting& setting) : backend_(backend), setting_(setting) {
    const int64_t N = setting.N, H = setting.H;
    const Shape shape = {1, H, N, kD};
    const auto make = [&](const Shape& s, double phase) {
      storage_.push_back(pool_.Allocate(s.size() * SizeOf(DType::kF32)));
      float* x = static_cast<float*>(storage_.back()->data());
      for (int64_t i = 0; i < s.size(); ++i) {
        x[i] = static_cast<float>(std::fmod(0.754877 * static_cast<double>(i) + phase, 2.0) - 1);
      }
      return DenseView(x, DType::kF32, s);
    };
    rows_ = {{.nq = N, .nk = N}};
    grad_.forward = {.q = make(shape, 0),
                     .k = make(shape, 0.3),
                     .v = make(shape, 0.7),
                     .out = make(shape, 0),
                     .lse = make({1, H, N}, 0),
                     .rows = rows_};
    if (!setting.backward) return;
    grad_.dout = make(shape, 0.1);
    grad_.dq = make(shape, 0);
    grad_.dk = make(shape, 0);
    grad_.dv = make(shape, 0);
  }

  Figures Measure() {
    Figures figures;
    Stream dry(*backend_, nullptr);
    Run(dry);
    figures.predicted_seconds = dry.work().seconds;
    figures.flops = dry.work().flops;
    std::vector<double> samples;
    double total = 0;
    while (samples.size() < 5 || (total < 0.3 && samples.size() < 200)) {
      Stream stream(*backend_, &pool_);
      const double start = Now(setting_.threads);
      Run(stream);
      samples.push_back(Now(setting_.threads) - start);
      total += samples.back();
      figures.workspace_bytes = stream.workspace().peak_bytes();
    }
    std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
    figures.seconds = samples[samples.size() / 2];
    return figures;
  }

 private:
  void Run(Stream& stream) {
    const ScanParams params = {.causal = setting_.causal};
    const absl::Status status =
        setting_.backward
            ? backend_->ScanGrad(stream, {.params = params, .problems = {&grad_, 1}})
            : backend_->Scan(stream, {.params = params, .problems = {&grad_.forward, 1}});
    if (!status.ok()) {
      std::fprintf(stderr, "scan_bench: %s\n", status.ToString().c_str());
      std::exit(1);
    }
  }

  Backend* const backend_;
  const Setting setting_;
  BufferPool pool_;  // as in the server, so that large tensors lie in huge pages
  std::vector<std::shared_ptr<Buffer>> storage_;
  std::vector<ScanRow> rows_;
  ScanGradProblem grad_;
};

void Print(const std::string& name, double value, const char* unit, const std::string& rest = "") {
  std::printf("{\"case\": \"scan %s\", \"value\": %.6g, \"unit\": \"%s\"%s}\n", name.c_str(), value,
              unit, rest.c_str());
  std::fflush(stdout);
}

std::string Goal(const char* text) {
  return *text == '\0' ? "" : absl::StrCat(", \"goal\": \"", text, "\"");
}

// One line of time, one of work rate, one of prediction; returns ns per token and head.
double Report(Backend* backend, const Setting& s, const char* goal, int64_t* workspace) {
  const Figures f = Bench(backend, s).Measure();
  const std::string name =
      absl::StrCat(s.causal ? "causal" : "full", s.backward ? " backward" : "", " D64 N", s.N, " H",
                   s.H, " ", s.threads, s.threads == 1 ? " thread" : " threads");
  const double nanoseconds = f.seconds * 1e9 / static_cast<double>(s.N * s.H);
  const double peak = backend->info().peak_flops;
  Print(name, nanoseconds, "ns/token/head", Goal(goal));
  Print(absl::StrCat(name, ", rate"), f.flops / f.seconds * 1e-9, "GFLOP/s",
        absl::StrCat(", \"peak\": ", peak * 1e-9, ", \"ratio\": ", f.flops / f.seconds / peak));
  Print(absl::StrCat(name, ", measured/predicted"), f.seconds / f.predicted_seconds, "");
  *workspace = f.workspace_bytes;
  return nanoseconds;
}

// A family over N: constant time per token, and memory that does not grow faster than N.
void Sweep(Backend* backend, Setting s, bool quick) {
  std::vector<double> nanoseconds;
  std::vector<double> workspaces;
  for (int64_t N : {4096, 16384, 65536, 1 << 20}) {
    if (N > 65536 && (quick || s.backward || s.threads > 1)) continue;
    s.N = N;
    s.H = N > 65536 ? 1 : s.threads == 1 ? 1 : 2;
    const bool is_goal = s.threads == 1 && N >= 16384 && !s.backward;
    int64_t workspace = 0;
    nanoseconds.push_back(Report(backend, s, !is_goal ? "" : "<= 500", &workspace));
    workspaces.push_back(static_cast<double>(workspace));
  }
  const std::string name =
      absl::StrCat(s.causal ? "causal" : "full", s.backward ? " backward" : "", " D64 ", s.threads,
                   s.threads == 1 ? " thread" : " threads");
  const auto [least, most] = std::minmax_element(nanoseconds.begin(), nanoseconds.end());
  Print(absl::StrCat(name, ", slowest/fastest time per token over N"), *most / *least, "",
        Goal(s.threads == 1 && !s.backward ? "<= 1.15" : ""));
  Print(absl::StrCat(name, ", workspace at largest N"), workspaces.back(), "bytes");
  Print(absl::StrCat(name, ", growth of workspace from smallest to largest N"),
        workspaces.back() / workspaces.front(), "", Goal(s.backward ? "<= 16" : "<= 1"));
}

int Main(bool quick) {
  for (int threads : {1, 2}) {
    auto backend = NewCpuBackend({.threads = threads});
    if (!backend.ok()) {
      std::fprintf(stderr, "scan_bench: %s\n", backend.status().ToString().c_str());
      return 1;
    }
    for (bool causal : {false, true}) {
      Sweep(backend->get(), {.causal = causal, .threads = threads}, quick);
      Sweep(backend->get(), {.causal = causal, .threads = threads, .backward = true}, quick);
    }
  }
  return 0;
}

}  // namespace
}  // namespace attnd

int main(int argc, char** argv) {
  const bool quick = argc == 2 && std::strcmp(argv[1], "--quick") == 0;
  if (argc > 1 && !quick) {
    std::fprintf(stderr, "usage: scan_bench [--quick]\n");
    return 2;
  }
  return attnd::Main(quick);
}
