// Speed of the backward of attend against the multiply-add peak of the same machine in the same
// run: a bound, since its five products are 10 N Nk D FLOPs a head. One JSON object a line: case,
// value (ms a call), ratio (share of peak of the credited FLOPs), busy (the same of the time that
// the process had its cores), peak (GFLOP/s of all threads), predicted (ms). Usage:
// attend_grad_bench [--isa=avx512|avx2|sse4] [--seconds=1] [--only=text]
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/attend_problem.h"
#include "tests/bench/attend_sampler.h"

namespace attnd {
namespace {

struct Options {
  std::string isa, only;
  double seconds = 1;
};

struct Case {
  std::string name;
  BenchSizes sizes;
  bool bias_gradient = false;
};

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

void Run(CpuBackend& backend, const Options& options, const Case& c) {
  const std::string name = "backward " + c.name + " T" + std::to_string(backend.cpu().threads);
  if (name.find(options.only) == std::string::npos) return;
  BenchSizes sizes = c.sizes;
  sizes.gradients = true;
  const BenchProblem bench(sizes);
  AttendGradProblem problem = bench.Backward();
  std::vector<AttendRow> rows(problem.forward.rows.begin(), problem.forward.rows.end());
  rows[0].gathers = sizes.pattern != nullptr && !sizes.pattern->key_rows.empty();
  problem.forward.rows = rows;
  std::vector<float> dbias;
  if (c.bias_gradient) {
    const Shape& shape = problem.forward.terms.bias.shape;
    dbias.resize(static_cast<size_t>(shape.size()));
    problem.dterms.bias = DenseView(dbias.data(), DType::kF32, shape);
  }
  BufferPool pool;
  Stream stream(backend, &pool), dry(backend, nullptr);
  const auto call = [&](Stream& on) {
    Check(backend.AttendGrad(on, {.params = bench.params(), .problems = {&problem, 1}}));
  };
  Check(backend.Attend(stream, {.params = bench.params(), .problems = {&problem.forward, 1}}));
  call(dry);
  Sampler sampler(backend, [&] { call(stream); });
  const double start = Wall();
  do {
    sampler.Add();
  } while ((Wall() - start < options.seconds || sampler.size() < 5) &&
           Wall() - start < 8 * options.seconds);
  const Measured m = sampler.Result();
  std::printf(
      "{\"case\":\"%s\",\"value\":%.3f,\"unit\":\"ms\",\"ratio\":%.3f,\"busy\":%.3f,"
      "\"peak\":%.1f,\"predicted\":%.3f,\"clean\":%s}\n",
      name.c_str(), m.seconds * 1e3, 2.5 * bench.flops() * m.share, 2.5 * bench.flops() * m.busy,
      m.peak / 1e9, dry.work().seconds * 1e3, m.clean ? "true" : "false");
  std::fflush(stdout);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, int64_t H, int64_t N, int64_t D) -> BenchSizes& {
    const std::string shape = " N" + std::to_string(N) + " D" + std::to_string(D) + " H";
    cases.push_back(
        {name + shape + std::to_string(H), {.H = H, .Hkv = H, .Nq = N, .Nk = N, .D = D}});
    return cases.back().sizes;
  };
  constexpr int64_t kNone = PatternBuilder::kUnbounded;
  for (int64_t N : {128, 512, 1024, 4096}) {
    for (int64_t D : {64, 128}) {
      add("full", 8, N, D);
      add("causal", 8, N, D).pattern = BandPattern(N, kNone, 0);
    }
  }
  for (int64_t D : {64, 128}) {
    add("bf16", 8, 1024, D).dtype = DType::kBF16;
    add("full", 1, 1024, D);
    add("full", 1, 4096, D);
    add("causal", 1, 4096, D).pattern = BandPattern(4096, kNone, 0);
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

int Main(const Options& options) {
  const std::vector<Case> cases = Cases();
  for (int threads : {1, 2}) {
    auto made = NewCpuBackend({.threads = threads, .isa = options.isa});
    Check(made.status());
    for (const Case& c : cases) Run(static_cast<CpuBackend&>(**made), options, c);
  }
  return 0;
}

}  // namespace
}  // namespace attnd

int main(int argc, char** argv) {
  attnd::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--isa=")) {
      options.isa = argument.substr(6);
    } else if (argument.starts_with("--seconds=")) {
      options.seconds = std::stod(argument.substr(10));
    } else if (argument.starts_with("--only=")) {
      options.only = argument.substr(7);
    } else {
      std::fprintf(stderr, "usage: attend_grad_bench [--isa=..] [--seconds=1] [--only=text]\n");
      return 2;
    }
  }
  return attnd::Main(options);
}
