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

  // Adds samples of about 20 ms, at least one call.
  void AddSamples() {
    double total = 0;
    while (total < 0.02) {
      Stream stream(*backend_, &pool_);
      const double start = Now(setting_.threads);
      Run(stream);
      samples_.push_back(Now(setting_.threads) - start);
      total += samples_.back();
      workspace_bytes_ = stream.workspace().peak_bytes();
    }
  }

  Figures Measured() {
    Stream dry(*backend_, nullptr);
    Run(dry);
    std::nth_element(samples_.begin(), samples_.begin() + samples_.size() / 2, samples_.end());
    return {.seconds = samples_[samples_.size() / 2],
            .flops = dry.work().flops,
            .predicted_seconds = dry.work().seconds,
            .workspace_bytes = workspace_bytes_};
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
  std::vector<double> samples_;
  int64_t workspace_bytes_ = 0;
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
double Report(Backend* backend, const Setting& s, const char* goal, const Figures& f) {
  const std::string name =
      absl::StrCat(s.causal ? "causal" : "full", s.backward ? " backward" : "", " D64 N", s.N, " H",
                   s.H, " ", s.threads, s.threads == 1 ? " thread" : " threads");
  const double nanoseconds = f.seconds * 1e9 / static_cast<double>(s.N * s.H);
  const double peak = backend->info().peak_flops;
  Print(name, nanoseconds, "ns/token/head", Goal(goal));
  Print(absl::StrCat(name, ", rate"), f.flops / f.seconds * 1e-9, "GFLOP/s",
        absl::StrCat(", \"peak\": ", peak * 1e-9, ", \"ratio\": ", f.flops / f.seconds / peak));
  Print(absl::StrCat(name, ", measured/predicted"), f.seconds / f.predicted_seconds, "");
  return nanoseconds;
}

// A family over N: constant time per token, and memory that does not grow faster than N. All N take
// turns, so that whoever shares the machine slows them alike.
void Sweep(Backend* backend, const Setting& family, bool quick) {
  constexpr int kRounds = 9;
  std::vector<Setting> settings;
  std::vector<std::unique_ptr<Bench>> benches;
  for (int64_t N : {4096, 16384, 65536, 1 << 20}) {
    if (N > 65536 && (quick || family.backward || family.threads > 1)) continue;
    settings.push_back(family);
    settings.back().N = N;
    settings.back().H = family.threads;
    benches.push_back(std::make_unique<Bench>(backend, settings.back()));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& bench : benches) bench->AddSamples();
  }
  std::vector<double> nanoseconds;
  std::vector<double> workspaces;
  for (size_t i = 0; i < benches.size(); ++i) {
    const bool is_goal = family.threads == 1 && settings[i].N >= 16384 && !family.backward;
    const Figures figures = benches[i]->Measured();
    nanoseconds.push_back(Report(backend, settings[i], !is_goal ? "" : "<= 500", figures));
    workspaces.push_back(static_cast<double>(figures.workspace_bytes));
  }
  const std::string name =
      absl::StrCat(family.causal ? "causal" : "full", family.backward ? " backward" : "", " D64 ",
                   family.threads, family.threads == 1 ? " thread" : " threads");
  const auto [least, most] = std::minmax_element(nanoseconds.begin(), nanoseconds.end());
  Print(absl::StrCat(name, ", slowest/fastest time per token over N"), *most / *least, "",
        Goal(family.threads == 1 && !family.backward ? "<= 1.15" : ""));
  Print(absl::StrCat(name, ", workspace at largest N"), workspaces.back(), "bytes");
  Print(absl::StrCat(name, ", growth of workspace from smallest to largest N"),
        workspaces.back() / workspaces.front(), "", Goal(family.backward ? "<= 16" : "<= 1"));
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
