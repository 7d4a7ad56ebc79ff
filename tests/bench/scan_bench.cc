// Speed and memory of scan (linear attention, elu + 1, D = Dv = 64, float32). Bound: a token is 256
// multiply-adds of vectors of 16 to write and as many to read; 1 kB of q, k, v, out.
//
//   scan_bench [--quick]     --quick leaves out N = 1M (it takes 1 GB)
//
// One JSON object a line, see tests/bench/table.py. Figures are medians; with one thread in CPU
// time of that thread, which a busy machine disturbs least, with two in wall time.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu.h"
#include "kernels/device/device.h"
#include "tests/bench/measure.h"

namespace attnd {
namespace {

constexpr int64_t kD = 64;

struct Setting {
  bool causal = false;
  int threads = 1;
  int64_t N = 0, H = 1;
  bool backward = false;
  ScanRule rule = ScanRule::kSum;
  int64_t decays = 0;  // 0, 1 a key or kD
};

ScanParams ParamsOf(const Setting& s) {
  if (s.rule == ScanRule::kSum) return {.causal = s.causal};
  return {.map = FeatureMap::kIdentity, .rule = s.rule, .causal = s.causal, .den = ScanDen::kOne};
}

std::string NameOf(const Setting& s) {
  return absl::StrCat(s.rule == ScanRule::kDelta ? "delta " : "",
                      s.decays == 0   ? ""
                      : s.decays == 1 ? "decay "
                                      : "feature decay ",
                      s.causal ? "causal" : "full", s.backward ? " backward" : "", " D64");
}

// Seconds from an arbitrary start: only differences count.
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
  Bench(Device* device, const Setting& setting) : device_(device), setting_(setting) {
    const int64_t N = setting.N, H = setting.H;
    const Shape shape = {1, H, N, kD};
    const auto make = [&](const Shape& s, double phase) {
      storage_.push_back(pool_.Allocate(s.size() * SizeOf(DType::kF32)));
      float* x = static_cast<float*>(storage_.back()->data());
      for (int64_t i = 0; i < s.size(); ++i) {
        const double turns = 0.3774385 * static_cast<double>(i) + phase;
        x[i] =
            static_cast<float>(2 * (turns - static_cast<double>(static_cast<int64_t>(turns))) - 1);
      }
      return DenseView(x, DType::kF32, s);
    };
    seqs_ = {{.nq = N, .nk = N}};
    grad_.forward = {.q = make(shape, 0),
                     .k = make(shape, 0.3),
                     .v = make(shape, 0.7),
                     .out = make(shape, 0),
                     .lse = make({1, H, N}, 0),
                     .seqs = seqs_};
    if (setting.decays > 0) grad_.forward.log_decay = make({1, H, N, setting.decays}, 0.2);
    Prepare(grad_.forward.log_decay, -0.05f, -0.05f);
    if (setting.rule == ScanRule::kDelta) {
      // Keys shorter than 1, as the delta rule requires.
      Prepare(grad_.forward.k, 0.15f, 0);
    }
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
      Stream stream(*device_, &pool_);
      const double start = Now(setting_.threads);
      Run(stream);
      samples_.push_back(Now(setting_.threads) - start);
      total += samples_.back();
      workspace_bytes_ = stream.workspace().peak_bytes();
    }
  }

  Figures Measured() {
    Stream dry(*device_, nullptr);
    Run(dry);
    std::nth_element(samples_.begin(), samples_.begin() + samples_.size() / 2, samples_.end());
    return {.seconds = samples_[samples_.size() / 2],
            .flops = dry.work().flops,
            .predicted_seconds = dry.work().seconds,
            .workspace_bytes = workspace_bytes_};
  }

  const ScanProblem& problem() const { return grad_.forward; }

 private:
  static void Prepare(const View& view, float factor, float shift) {
    for (int64_t i = 0; view.given() && i < view.shape.size(); ++i) {
      view.As<float>()[i] = factor * view.As<float>()[i] + shift;
    }
  }

  void Run(Stream& stream) {
    const ScanParams params = ParamsOf(setting_);
    const DeviceStatus status =
        setting_.backward
            ? device_->Run(stream, ScanGradArgs{.params = params, .problems = {grad_}})
            : device_->Run(stream, ScanArgs{.params = params, .problems = {grad_.forward}});
    if (!status.ok()) {
      std::fprintf(stderr, "scan_bench: %s\n", status.text().c_str());
      std::exit(1);
    }
  }

  Device* const device_;
  const Setting setting_;
  BufferPool pool_;  // as in the server, so that large tensors lie in huge pages
  std::vector<std::shared_ptr<Buffer>> storage_;
  std::vector<ScanSeq> seqs_;
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
double Report(Device* device, const Setting& s, const char* goal, const Figures& f) {
  const std::string name = absl::StrCat(NameOf(s), " N", s.N, " H", s.H, " ", s.threads,
                                        s.threads == 1 ? " thread" : " threads");
  const double nanoseconds = f.seconds * 1e9 / static_cast<double>(s.N * s.H);
  const double peak = device->info().peak_flops;
  Print(name, nanoseconds, "ns/token/head", Goal(goal));
  Print(absl::StrCat(name, ", rate"), f.flops / f.seconds * 1e-9, "GFLOP/s",
        absl::StrCat(", \"peak\": ", peak * 1e-9, ", \"ratio\": ", f.flops / f.seconds / peak));
  Print(absl::StrCat(name, ", measured/predicted"), f.seconds / f.predicted_seconds, "");
  return nanoseconds;
}

// A family over N: constant time per token, and memory that does not grow faster than N. All N take
// turns, so that other programs on the machine slow them alike.
void Sweep(Device* device, const Setting& family, bool quick) {
  constexpr int kRounds = 9;
  std::vector<Setting> settings;
  std::vector<std::unique_ptr<Bench>> benches;
  for (int64_t N : {4096, 16384, 65536, 1 << 20}) {
    if (N > 65536 && (quick || family.backward || family.threads > 1)) continue;
    settings.push_back(family);
    settings.back().N = N;
    settings.back().H = family.threads;
    benches.push_back(std::make_unique<Bench>(device, settings.back()));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& bench : benches) bench->AddSamples();
  }
  std::vector<double> nanoseconds;
  std::vector<double> workspaces;
  for (size_t i = 0; i < benches.size(); ++i) {
    const bool is_goal = family.threads == 1 && settings[i].N >= 16384 && !family.backward;
    const char* goal = family.causal ? "<= 290" : "<= 200";
    const Figures figures = benches[i]->Measured();
    nanoseconds.push_back(Report(device, settings[i], is_goal ? goal : "", figures));
    workspaces.push_back(static_cast<double>(figures.workspace_bytes));
  }
  const std::string name = absl::StrCat(NameOf(family), " ", family.threads,
                                        family.threads == 1 ? " thread" : " threads");
  const auto [least, most] = std::minmax_element(nanoseconds.begin(), nanoseconds.end());
  Print(absl::StrCat(name, ", slowest/fastest time per token over N"), *most / *least, "",
        Goal(family.threads == 1 && !family.backward ? "<= 1.15" : ""));
  Print(absl::StrCat(name, ", workspace at largest N"), workspaces.back(), "bytes");
  Print(absl::StrCat(name, ", growth of workspace from smallest to largest N"),
        workspaces.back() / workspaces.front(), "", Goal(family.backward ? "<= 16" : "<= 1"));
}

// The delta rule by its definition, one token after the other, as the compiler optimises it.
__attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3"))) void PlainDelta(
    const float* q, const float* k, const float* v, int64_t N, float* S, float* out) {
  for (int64_t t = 0; t < N; ++t, q += kD, k += kD, v += kD, out += kD) {
    float error[kD], sum[kD];
    for (int64_t d = 0; d < kD; ++d) {
      error[d] = v[d];
      sum[d] = 0;
    }
    for (int64_t c = 0; c < kD; ++c) {
      for (int64_t d = 0; d < kD; ++d) error[d] -= k[c] * S[c * kD + d];
    }
    for (int64_t c = 0; c < kD; ++c) {
      for (int64_t d = 0; d < kD; ++d) {
        S[c * kD + d] += k[c] * error[d];
        sum[d] += q[c] * S[c * kD + d];
      }
    }
    for (int64_t d = 0; d < kD; ++d) out[d] = sum[d];
  }
}

void CompareDelta(Device* device) {
  const Setting setting = {.causal = true, .N = 4096, .rule = ScanRule::kDelta};
  Bench bench(device, setting);
  const ScanProblem& p = bench.problem();
  std::vector<float> S(kD * kD);
  std::vector<double> plain;
  for (int round = 0; round < 21; ++round) {
    bench.AddSamples();
    std::fill(S.begin(), S.end(), 0.0f);
    const double start = Now(1);
    PlainDelta(p.q.As<float>(), p.k.As<float>(), p.v.As<float>(), setting.N, S.data(),
               p.out.As<float>());
    plain.push_back(Now(1) - start);
  }
  const Figures figures = bench.Measured();
  const double tokens = static_cast<double>(setting.N);
  Report(device, setting, "", figures);
  Print("delta causal D64 N4096, plain loops", Median(plain) * 1e9 / tokens, "ns/token/head");
  Print("delta causal D64 N4096, plain loops/ours", Median(plain) / figures.seconds, "");
}

// One head on two threads against one, wall time, in turns.
void CompareThreads(Device* one, Device* two, Setting setting) {
  setting.N = 16384;
  setting.threads = 2;  // wall time for both
  Bench a(one, setting), b(two, setting);
  for (int round = 0; round < 15; ++round) {
    a.AddSamples();
    b.AddSamples();
  }
  Print(absl::StrCat(NameOf(setting), " N16384 H1, one thread/two threads"),
        a.Measured().seconds / b.Measured().seconds, "", Goal(">= 1.7"));
}

int Main(bool quick) {
  auto one = NewCpuDevice({.threads = 1}), two = NewCpuDevice({.threads = 2});
  if (one.ok() && two.ok()) {
    CompareDelta(one->get());
    for (const bool backward : {false, true}) {
      for (const bool causal : {false, true}) {
        CompareThreads(one->get(), two->get(), {.causal = causal, .backward = backward});
      }
      const Setting delta = {.causal = true, .backward = backward, .rule = ScanRule::kDelta};
      CompareThreads(one->get(), two->get(), delta);
    }
    for (const int64_t decays : {int64_t{1}, kD}) {
      Sweep(one->get(), {.causal = true, .decays = decays}, /*quick=*/true);
    }
  }
  for (int threads : {1, 2}) {
    auto device = NewCpuDevice({.threads = threads});
    if (!device.ok()) {
      std::fprintf(stderr, "scan_bench: %s\n", device.status().ToString().c_str());
      return 1;
    }
    for (bool causal : {false, true}) {
      Sweep(device->get(), {.causal = causal, .threads = threads}, quick);
      Sweep(device->get(), {.causal = causal, .threads = threads, .backward = true}, quick);
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
