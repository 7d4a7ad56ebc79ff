// Speed of attend against the multiply-add peak of the same machine in the same run. One JSON
// object a line: case, value (ms a call or ns a token), ratio (share of peak, or of the reference
// case), goal, peak (GFLOP/s of all threads). Usage:
// attend_bench [--quick] [--isa=avx512|avx2|sse4]
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/peak.h"
#include "kernels/ops/pattern.h"

namespace attnd {
namespace {

double Wall() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ProcessSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Measured {
  double seconds = 0;  // median
  double peak = 0;     // FLOP/s of all threads, median
  double share = 0;    // of peak for each FLOP of a call: median of calls, each with the peaks
                       // measured before and after it
  bool clean = false;  // of samples during which this process had its cores
};

// Whoever shares the machine slows a long call and a short burst differently, so the peak is
// measured for about as long as a call takes. A sample counts when this process had its cores for
// most of it. Where that is rare (a busy machine, or a call so short that threads wait for one
// another) all samples count, and the line says so.
class Sampler {
 public:
  Sampler(CpuBackend& backend, std::function<void()> call)
      : cpu_(backend.cpu()), call_(std::move(call)) {
    call_();
  }

  void Add() {
    if (peaks_.empty()) AddPeak();
    const double wall = Wall(), process = ProcessSeconds();
    call_();
    const double wall_used = Wall() - wall, process_used = ProcessSeconds() - process;
    last_ = wall_used;
    AddPeak();
    const double peak = (peaks_[peaks_.size() - 2] + peaks_.back()) / 2;
    const bool has_cores = process_used > 0.95 * cpu_.threads * wall_used;
    for (int clean = 0; clean <= (has_cores ? 1 : 0); ++clean) {
      seconds_[clean].push_back(wall_used);
      shares_[clean].push_back(1 / wall_used / peak);
    }
  }

  size_t size() const { return seconds_[0].size(); }
  Measured Result() const {
    const bool clean = seconds_[1].size() >= 3;
    return {Median(seconds_[clean]), Median(peaks_), Median(shares_[clean]), clean};
  }

 private:
  void AddPeak() {
    peaks_.push_back(MeasureFlops(cpu_.isa, *cpu_.pool, std::clamp(last_, 2e-3, 0.2)));
  }

  const Cpu& cpu_;
  const std::function<void()> call_;
  double last_ = 0;
  std::vector<double> seconds_[2], shares_[2], peaks_;  // [1]: clean samples only
};

// Random tensors of one problem with every view that both directions need.
class Bench {
 public:
  Bench(int64_t H, int64_t N, int64_t D, bool banded, int64_t lo, int64_t hi)
      : H_(H), N_(N), D_(D) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (auto* t : {&q_, &k_, &v_, &dout_}) {
      t->resize(H * N * D);
      for (float& x : *t) x = normal(random);
    }
    for (auto* t : {&out_, &dq_, &dk_, &dv_}) t->resize(H * N * D);
    lse_.resize(H * N);
    rows_.resize(1);
    rows_[0].nq = rows_[0].nk = N;
    const double tiles = std::ceil(static_cast<double>(N) / kTile);
    rows_[0].visible_pairs = static_cast<double>(N) * static_cast<double>(N);
    rows_[0].visible_tiles = tiles * tiles;
    if (!banded) return;
    PatternBuilder builder(N, N);
    builder.AddBand(lo, hi);
    auto pattern = std::make_shared<Pattern>(std::move(builder).Build());
    rows_[0].visible_pairs = static_cast<double>(pattern->visible_pairs);
    rows_[0].visible_tiles = static_cast<double>(pattern->visible_tiles);
    rows_[0].pattern = pattern;
  }

  double flops() const { return 4.0 * rows_[0].visible_pairs * static_cast<double>(H_ * D_); }
  int64_t N() const { return N_; }

  void Forward(CpuBackend& backend, Stream& stream) {
    const AttendProblem p = Problem();
    Check(backend.Attend(stream, {.params = {.scale = Scale()}, .problems = {&p, 1}}));
  }
  void Backward(CpuBackend& backend, Stream& stream) {
    const AttendGradProblem p = {Problem(), Of(dout_), View(), Of(dq_), Of(dk_), Of(dv_)};
    Check(backend.AttendGrad(stream, {.params = {.scale = Scale()}, .problems = {&p, 1}}));
  }

 private:
  double Scale() const { return 1 / std::sqrt(static_cast<double>(D_)); }
  View Of(std::vector<float>& t) const {
    return DenseView(t.data(), DType::kF32, Shape{1, H_, N_, D_});
  }
  AttendProblem Problem() {
    return {Of(q_), Of(k_), Of(v_), Of(out_), DenseView(lse_.data(), DType::kF32, Shape{1, H_, N_}),
            rows_};
  }
  static void Check(const absl::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    std::exit(1);
  }

  const int64_t H_, N_, D_;
  std::vector<float> q_, k_, v_, dout_, out_, dq_, dk_, dv_, lse_;
  std::vector<AttendRow> rows_;
};

class Report {
 public:
  explicit Report(double budget) : budget_(budget) {}

  // Both directions of one shape; the goal is for the forward's share of peak.
  void Shares(CpuBackend& backend, const std::string& name, Bench bench, bool has_goal) {
    Share(backend, "forward " + name, bench.flops(), has_goal ? "\"goal\":\">= 0.65\"," : "",
          [&](Stream& stream) { bench.Forward(backend, stream); });
    Share(backend, "backward " + name, 2.5 * bench.flops(), "",
          [&](Stream& stream) { bench.Backward(backend, stream); });
  }

  // Time a token of a causal window, and its ratio to the shortest sequence's. All N take turns.
  void Windows(CpuBackend& backend, const std::vector<int64_t>& sizes, bool backward) {
    struct Sequence {
      std::unique_ptr<Bench> bench;
      std::unique_ptr<Sampler> sampler;
    };
    BufferPool pool;
    Stream stream(backend, &pool);
    std::vector<Sequence> sequences;
    for (int64_t N : sizes) {
      auto bench = std::make_unique<Bench>(/*H=*/2, N, /*D=*/64, /*banded=*/true, -255, 0);
      Bench* b = bench.get();
      b->Forward(backend, stream);
      auto sampler = std::make_unique<Sampler>(backend, [&backend, &stream, b, backward] {
        backward ? b->Backward(backend, stream) : b->Forward(backend, stream);
      });
      sequences.push_back({std::move(bench), std::move(sampler)});
    }
    const double start = Wall();
    do {
      for (Sequence& s : sequences) s.sampler->Add();
    } while (sequences[0].sampler->size() < 7 || Wall() - start < budget_);
    double first = 0;
    for (const auto& [bench, sampler] : sequences) {
      Stream dry(backend, nullptr);
      backward ? bench->Backward(backend, dry) : bench->Forward(backend, dry);
      const Measured m = sampler->Result();
      const double tokens = static_cast<double>(bench->N()), ns = m.seconds / tokens * 1e9;
      if (first == 0) first = ns;
      std::printf(
          "{\"case\":\"%s window 256 N%lld T%d\",\"value\":%.1f,\"unit\":\"ns/token\","
          "\"ratio\":%.3f,\"goal\":\"<= 1.15\",\"peak\":%.1f,\"useful_share\":%.3f,"
          "\"predicted\":%.1f,\"clean\":%s}\n",
          backward ? "backward" : "forward", static_cast<long long>(bench->N()),
          backend.cpu().threads, ns, ns / first, m.peak / 1e9,
          (backward ? 2.5 : 1.0) * bench->flops() * m.share, dry.work().seconds / tokens * 1e9,
          m.clean ? "true" : "false");
    }
    std::fflush(stdout);
  }

 private:
  void Share(CpuBackend& backend, const std::string& name, double flops, const std::string& goal,
             const std::function<void(Stream&)>& call) {
    BufferPool pool;
    Stream stream(backend, &pool), dry(backend, nullptr);
    call(dry);
    Sampler sampler(backend, [&] { call(stream); });
    const double start = Wall();
    do {
      sampler.Add();
    } while ((Wall() - start < budget_ || sampler.size() < 5) && Wall() - start < 8 * budget_);
    const Measured m = sampler.Result();
    std::printf(
        "{\"case\":\"%s T%d\",\"value\":%.3f,\"unit\":\"ms\",\"ratio\":%.3f,%s"
        "\"peak\":%.1f,\"predicted\":%.3f,\"clean\":%s}\n",
        name.c_str(), backend.cpu().threads, m.seconds * 1e3, flops * m.share, goal.c_str(),
        m.peak / 1e9, dry.work().seconds * 1e3, m.clean ? "true" : "false");
    std::fflush(stdout);
  }

  const double budget_;
};

int Main(bool quick, const std::string& isa) {
  Report report(quick ? 0.2 : 1.0);
  for (int threads : {1, 2}) {
    auto made = NewCpuBackend({.threads = threads, .isa = isa});
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", std::string(made.status().message()).c_str());
      return 1;
    }
    CpuBackend& backend = static_cast<CpuBackend&>(**made);
    for (int64_t N : {128, 1024, 4096}) {
      if (quick && N > 1024) continue;
      for (int64_t D : {64, 128}) {
        const std::string shape = "N" + std::to_string(N) + " D" + std::to_string(D) + " H8";
        report.Shares(backend, "full " + shape, Bench(8, N, D, false, 0, 0), N >= 1024);
        report.Shares(backend, "causal " + shape,
                      Bench(8, N, D, true, PatternBuilder::kUnbounded, 0), false);
      }
    }
    for (bool backward : {false, true}) {
      std::vector<int64_t> sizes = {4096, 16384};
      if (!quick) sizes.push_back(131072);
      report.Windows(backend, sizes, backward);
    }
  }
  return 0;
}

}  // namespace
}  // namespace attnd

int main(int argc, char** argv) {
  bool quick = false;
  std::string isa;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strncmp(argv[i], "--isa=", 6) == 0) {
      isa = argv[i] + 6;
    } else {
      std::fprintf(stderr, "usage: attend_bench [--quick] [--isa=avx512|avx2|sse4]\n");
      return 2;
    }
  }
  return attnd::Main(quick, isa);
}
