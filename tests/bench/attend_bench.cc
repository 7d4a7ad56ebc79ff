// Speed of attend against the multiply-add peak of the same machine in the same run, and against
// reference cases. One JSON object a line: case, value (ms a call), ratio (share of peak, or for a
// case with a reference the time for each credited FLOP against the reference's), goal, peak
// (GFLOP/s of all threads), predicted (ms), share and busy (of the peak: by the clock, and by the
// time that the process had its cores, for machines with others on them). Cases of a group take
// turns. Usage: attend_bench [--quick] [--isa=avx512|avx2|sse4] [--threads=N] [--only=part of a
// name]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "tests/bench/attend_problem.h"
#include "tests/bench/attend_sampler.h"

namespace attnd {
namespace {

enum class Way { kForward, kBackward, kBoth };

const char* Name(Way way) {
  return way == Way::kForward ? "forward" : way == Way::kBackward ? "backward" : "both";
}

struct Case {
  std::string name, goal;
  std::vector<std::shared_ptr<BenchProblem>> problems;
  Way way = Way::kForward;
  bool is_reference = false;  // of those that follow

  double flops() const {
    const double share = way == Way::kForward ? 1.0 : way == Way::kBackward ? 2.5 : 3.5;
    double sum = 0;
    for (const auto& p : problems) sum += share * p->flops();
    return sum;
  }
  void Forward(CpuDevice& device, Stream& stream) const {
    AttendArgs args = {.params = problems[0]->params()};
    for (const auto& p : problems) args.problems.push_back(p->Forward());
    Check(device.Run(stream, args));
  }
  void Backward(CpuDevice& device, Stream& stream) const {
    AttendGradArgs args = {.params = problems[0]->params()};
    for (const auto& p : problems) args.problems.push_back(p->Backward());
    Check(device.Run(stream, args));
  }
  void Run(CpuDevice& device, Stream& stream) const {
    if (way != Way::kBackward) Forward(device, stream);
    if (way != Way::kForward) Backward(device, stream);
  }

 private:
  static void Check(const DeviceStatus& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", std::string(status.text()).c_str());
    std::exit(1);
  }
};

std::vector<std::shared_ptr<BenchProblem>> One(const BenchSizes& sizes) {
  return {std::make_shared<BenchProblem>(sizes)};
}
BenchSizes Square(int64_t N, int64_t D = 64, std::shared_ptr<const Pattern> pattern = nullptr) {
  return {.Nq = N, .Nk = N, .D = D, .pattern = std::move(pattern)};
}

// A group is made when its turn comes: together they would fill the memory.
struct Group {
  std::string name;  // part of the names of its cases
  std::function<std::vector<Case>()> cases;
};

// The goal, as a share of the peak of this instruction set.
std::string DenseGoal(const std::string& isa, int64_t N, bool causal) {
  if (N < 1024) return "";
  if (isa == "avx2" || isa == "sse4") return causal ? "" : isa == "avx2" ? ">= 0.70" : ">= 0.60";
  return !causal ? ">= 0.83" : N == 1024 ? ">= 0.75" : ">= 0.80";
}

std::vector<Group> Groups(bool quick, const std::string& isa) {
  std::vector<Group> groups;
  for (int64_t N : {128, 1024, 4096}) {
    for (int64_t D : {64, 128}) {
      if (quick && N > 1024) continue;
      for (bool causal : {false, true}) {
        const std::string shape =
            (causal ? "causal N" : "full N") + std::to_string(N) + " D" + std::to_string(D) + " H8";
        const std::string goal = DenseGoal(isa, N, causal);
        groups.push_back(
            {shape, [=] {
               const auto band = causal ? BandPattern(N, kUnbounded, 0) : nullptr;
               return std::vector<Case>{{"forward " + shape, goal, One(Square(N, D, band))}};
             }});
      }
    }
  }
  groups.push_back(
      {"half N1024", [] {
         std::vector<Case> cases = {
             {"forward float32 N1024", "", One(Square(1024)), Way::kForward, true}};
         for (DType dtype : {DType::kF16, DType::kBF16}) {
           BenchSizes sizes = Square(1024);
           sizes.dtype = dtype;
           cases.push_back({"forward half " + std::string(Name(dtype)), "<= 1.1", One(sizes)});
         }
         return cases;
       }});
  for (bool backward : {false, true}) {
    const std::string way = backward ? "backward " : "forward ";
    groups.push_back({way + "window 256 per row", [=] {
                        std::vector<Case> cases;
                        for (int64_t N : {4096, 16384, 131072}) {
                          if (quick && N > 16384) continue;
                          BenchSizes sizes = Square(N, 64, BandPattern(N, -255, 0));
                          sizes.H = sizes.Hkv = 2;
                          sizes.gradients = true;
                          cases.push_back({way + "window 256 per row N" + std::to_string(N),
                                           cases.empty() ? "" : "<= 1.1", One(sizes),
                                           backward ? Way::kBackward : Way::kForward,
                                           cases.empty()});
                        }
                        return cases;
                      }});
  }
  for (int64_t W : {256, 512}) {
    groups.push_back({"window N16384 W" + std::to_string(W), [=] {
                        return std::vector<Case>{
                            {"forward window N16384 W" + std::to_string(W),
                             W == 256 ? ">= 0.5" : ">= 0.63",
                             One(Square(16384, 64, BandPattern(16384, 1 - W, 0)))}};
                      }});
  }
  groups.push_back({"tiles", [] {
                      std::vector<Case> cases = {
                          {"forward tiles all N4096", "", One(Square(4096)), Way::kForward, true}};
                      for (double density : {0.05, 0.1, 0.3}) {
                        cases.push_back({"forward tiles at " + std::to_string(density), "<= 1.2",
                                         One(Square(4096, 64, RandomTiles(4096, density)))});
                      }
                      return cases;
                    }});
  for (int64_t keys : {128, 512}) {
    groups.push_back({"gathered " + std::to_string(keys), [=] {
                        return std::vector<Case>{
                            {"forward gathered " + std::to_string(keys) + " of N16384", ">= 0.4",
                             One(Square(16384, 64, GatheredKeys(16384, keys)))}};
                      }});
  }
  groups.push_back(
      {"ragged", [] {
         std::vector<Case> cases = {
             {"forward ragged reference N1024", "", One(Square(1024)), Way::kForward, true},
             {"forward ragged 64 problems", "<= 1.1", {}}};
         std::mt19937 random(5);
         for (int n = 0; n < 64; ++n) {
           cases[1].problems.push_back(One(Square(64 + static_cast<int64_t>(random() % 960)))[0]);
         }
         return cases;
       }});
  groups.push_back({"terms", [] {
                      std::vector<Case> cases = {
                          {"forward terms none N1024", "", One(Square(1024)), Way::kForward, true}};
                      const auto add = [&](const char* name, const auto& change) {
                        BenchSizes sizes = Square(1024);
                        change(sizes);
                        cases.push_back({std::string("forward terms ") + name, "", One(sizes)});
                      };
                      add("sinks", [](BenchSizes& s) { s.sinks = true; });
                      add("softcap", [](BenchSizes& s) { s.params.softcap = 20; });
                      add("alibi", [](BenchSizes& s) { s.alibi = true; });
                      add("bias", [](BenchSizes& s) { s.bias = true; });
                      add("labels", [](BenchSizes& s) {
                        s.labels = true;
                        s.pattern = Labelled(1024);
                      });
                      add("relative", [](BenchSizes& s) { s.L = 1024; });
                      add("relu", [](BenchSizes& s) { s.params.weighting = Weighting::kRelu; });
                      add("gelu", [](BenchSizes& s) { s.params.weighting = Weighting::kGelu; });
                      return cases;
                    }});
  // A segment of 2048 after a memory of 2048.
  for (int64_t D : {32, 64, 128}) {
    for (Way way : {Way::kForward, Way::kBackward, Way::kBoth}) {
      groups.push_back({"distances " + std::string(Name(way)) + " D" + std::to_string(D), [=] {
                          BenchSizes sizes = {.Nq = 2048, .Nk = 4096, .D = D, .gradients = true};
                          sizes.pattern = BandPattern(sizes.Nq, sizes.Nk, kUnbounded, 2048);
                          const std::string shape = std::string(Name(way)) + " segment N2048 D" +
                                                    std::to_string(D) + " H8";
                          std::vector<Case> cases = {{shape, "", One(sizes), way, true}};
                          sizes.L = sizes.Nk;
                          const bool has_goal = D == 64 && way != Way::kBackward;
                          cases.push_back({shape + " with distances", has_goal ? "<= 1.6" : "",
                                           One(sizes), way});
                          return cases;
                        }});
    }
  }
  groups.push_back({"few queries", [] {
                      std::vector<Case> cases;
                      for (int64_t Nq : {1, 16, 64}) {
                        for (int64_t H : {1, 8}) {
                          BenchSizes sizes = {.H = H, .Hkv = H, .Nq = Nq, .Nk = 32768};
                          cases.push_back({"forward few queries Nq" + std::to_string(Nq) + " H" +
                                               std::to_string(H) + " Nk32768",
                                           "", One(sizes)});
                        }
                      }
                      return cases;
                    }});
  return groups;
}

// `isa` ends the names.
void Measure(CpuDevice& device, const std::string& isa, const std::vector<Case>& cases,
             double budget) {
  BufferPool pool;
  Stream stream(device, &pool);
  std::vector<PeakSampler> samplers;
  for (const Case& c : cases) {
    if (c.way == Way::kBackward) c.Forward(device, stream);
    samplers.emplace_back(device, [&device, &stream, &c] { c.Run(device, stream); });
  }
  const double start = Wall();
  do {
    for (PeakSampler& sampler : samplers) sampler.Add();
  } while (
      (Wall() - start < budget * static_cast<double>(cases.size()) || samplers[0].size() < 5) &&
      Wall() - start < 8 * budget * static_cast<double>(cases.size()));
  double reference = 0;
  for (size_t n = 0; n < cases.size(); ++n) {
    const Case& c = cases[n];
    Stream dry(device, nullptr);
    c.Run(device, dry);
    const Measured m = samplers[n].Result();
    const double share = c.flops() * m.share;
    if (c.is_reference) reference = share;
    const bool against = reference > 0 && !c.is_reference;
    const std::string goal = c.goal.empty() ? "" : "\"goal\":\"" + c.goal + "\",";
    std::printf(
        "{\"case\":\"%s%s "
        "T%d\",\"value\":%.3f,\"unit\":\"ms\",\"ratio\":%.3f,%s\"share\":%.3f,\"busy\":%.3f,"
        "\"peak\":%.1f,\"predicted\":%.3f,\"clean\":%s}\n",
        c.name.c_str(), isa.c_str(), device.cpu().threads, m.seconds * 1e3,
        against ? reference / share : share, goal.c_str(), share, c.flops() * m.busy, m.peak / 1e9,
        dry.work().seconds * 1e3, m.clean ? "true" : "false");
  }
  std::fflush(stdout);
}

int Main(bool quick, const std::string& isa, int only_threads, const std::string& only) {
  for (int threads : {1, 2}) {
    if (only_threads != 0 && only_threads != threads) continue;
    auto made = NewCpuDevice({.threads = threads, .isa = isa});
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", std::string(made.status().message()).c_str());
      return 1;
    }
    CpuDevice& device = static_cast<CpuDevice&>(**made);
    for (const Group& group : Groups(quick, isa)) {
      if (group.name.find(only) == std::string::npos) continue;
      Measure(device, isa.empty() ? "" : " " + isa, group.cases(), quick ? 0.2 : 1.0);
    }
  }
  return 0;
}

}  // namespace
}  // namespace attnd

int main(int argc, char** argv) {
  bool quick = false;
  int threads = 0;
  std::string isa, only;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strncmp(argv[i], "--isa=", 6) == 0) {
      isa = argv[i] + 6;
    } else if (std::strncmp(argv[i], "--threads=", 10) == 0) {
      threads = std::atoi(argv[i] + 10);
    } else if (std::strncmp(argv[i], "--only=", 7) == 0) {
      only = argv[i] + 7;
    } else {
      std::fprintf(stderr,
                   "usage: attend_bench [--quick] [--isa=avx512|avx2|sse4] [--threads=N] "
                   "[--only=part of a name]\n");
      return 2;
    }
  }
  return attnd::Main(quick, isa, threads, only);
}
