// Speed of matmul against the multiply-add peak of the same machine in the same run. One JSON
// object a line: case, value (ms a call), ratio (share of peak, for M1 of the streaming bandwidth),
// goal. Usage: matmul_bench [--quick] [--isa=avx512|avx2|sse4] [case ...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/peak.h"
#include "tests/bench/measure.h"

namespace attnd {
namespace {

struct Case {
  const char* name;
  int64_t batch, M, N, K;
  bool a_turned = false, b_turned = false;  // in memory
  DType dtype = DType::kF32;
  const char* goal = "";
};

constexpr Case kCases[] = {
    {"2048^3", 1, 2048, 2048, 2048, false, false, DType::kF32, ">= 0.85"},
    {"2048^3 b turned", 1, 2048, 2048, 2048, false, true},
    {"2048^3 a turned", 1, 2048, 2048, 2048, true, false},
    {"2048^3 bf16", 1, 2048, 2048, 2048, false, false, DType::kBF16},
    {"512^3", 1, 512, 512, 512},
    {"M4096 N64 K64", 8, 4096, 64, 64, false, false, DType::kF32, ">= 0.85"},
    {"M64 N4096 K64", 8, 64, 4096, 64, false, false, DType::kF32, ">= 0.85"},
    {"M64 N4096 K64 b turned", 8, 64, 4096, 64, false, true},
    {"M64 N64 K4096", 8, 64, 64, 4096, false, false, DType::kF32, ">= 0.85"},
    {"M64 N64 K4096 a turned", 8, 64, 64, 4096, true, false},
    {"M64 N64 K65536 a turned", 1, 64, 64, 65536, true, false},
    {"M64 N64 K64", 64, 64, 64, 64},
    {"M256 N64 K16384", 1, 256, 64, 16384},
    {"M1 N4096 K4096", 1, 1, 4096, 4096, false, false, DType::kF32, ">= 0.85"},
    {"M1 N4096 K4096 b turned", 1, 1, 4096, 4096, false, true},
    {"M4096 N1 K4096", 1, 4096, 1, 4096},
    {"M1 N4096 K4096 bf16", 1, 1, 4096, 4096, false, false, DType::kBF16},
};

// One product over random operands.
class Bench {
 public:
  explicit Bench(const Case& c) : case_(c) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (auto& [array, size] : {std::pair{&a_, c.batch * c.M * c.K}, {&b_, c.batch * c.K * c.N}}) {
      array->resize(static_cast<size_t>(size));
      for (float& x : *array) x = uniform(random);
    }
    if (c.dtype == DType::kBF16) {
      for (auto* array : {&a_, &b_}) {
        auto* halves = reinterpret_cast<uint16_t*>(array->data());
        for (size_t i = 0; i < array->size(); ++i) {
          uint32_t bits;
          std::memcpy(&bits, &(*array)[i], sizeof(bits));
          halves[i] = static_cast<uint16_t>(bits >> 16);
        }
      }
    }
    out_.resize(static_cast<size_t>(c.batch * c.M * c.N));
    problem_.a = Matrices(a_, c.dtype, c.M, c.K, c.a_turned);
    problem_.b = Matrices(b_, c.dtype, c.K, c.N, c.b_turned);
    problem_.out = Matrices(out_, DType::kF32, c.M, c.N, false);
  }

  double flops() const {
    return 2.0 * static_cast<double>(case_.batch * case_.M) *
           static_cast<double>(case_.N * case_.K);
  }
  double bytes() const {
    return static_cast<double>(problem_.a.bytes() + problem_.b.bytes() + problem_.out.bytes());
  }
  bool streams() const { return case_.M == 1 || case_.N == 1; }

  void Call(CpuDevice& device, Stream& stream) {
    const DeviceStatus status = device.Run(stream, MatMulArgs{.problems = {problem_}});
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", std::string(status.text()).c_str());
    std::exit(1);
  }

 private:
  View Matrices(Floats& data, DType dtype, int64_t rows, int64_t columns, bool turned) {
    View view = DenseView(data.data(), dtype, Shape{case_.batch, rows, columns});
    if (turned) view.stride = {rows * columns, 1, rows};
    return view;
  }

  const Case case_;
  Floats a_, b_, out_;
  MatMulProblem problem_;
};

// Calls take turns with the peak's loop, each for about as long as the other.
void Measure(CpuDevice& device, const Case& c, double budget) {
  const Cpu& cpu = device.cpu();
  Bench bench(c);
  BufferPool pool;
  Stream stream(device, &pool), dry(device, nullptr);
  bench.Call(device, dry);
  bench.Call(device, stream);
  std::vector<double> seconds, shares, peaks;
  const double begin = Wall();
  while (seconds.size() < 7 || Wall() - begin < budget) {
    const double start = Wall(), process = ProcessSeconds();
    int calls = 0;
    do {
      bench.Call(device, stream);
      ++calls;
    } while (Wall() - start < 5e-3);
    seconds.push_back((Wall() - start) / calls);
    // CPU time of the process: other programs add to the wall time of a call, while the peak is
    // measured in thread time.
    const double used = (ProcessSeconds() - process) / calls / cpu.threads;
    peaks.push_back(bench.streams() ? MeasurePeak(cpu.isa, *cpu.pool).bytes_per_second
                                    : MeasureFlops(cpu.isa, *cpu.pool, 5e-3));
    const double work = bench.streams() ? bench.bytes() : bench.flops();
    shares.push_back(work / used / peaks.back());
  }
  std::printf(
      "{\"case\":\"matmul %s x%lld T%d\",\"value\":%.4f,\"unit\":\"ms\",\"ratio\":%.3f,"
      "\"goal\":\"%s\",\"peak\":%.1f,\"best\":%.3f,\"predicted\":%.4f}\n",
      c.name, static_cast<long long>(c.batch), cpu.threads, Median(seconds) * 1e3, Median(shares),
      c.goal, Median(peaks) / 1e9, *std::max_element(shares.begin(), shares.end()),
      dry.work().seconds * 1e3);
  std::fflush(stdout);
}

int Main(bool quick, const std::string& isa, const std::vector<std::string>& wanted) {
  for (int threads : {1, 2}) {
    auto made = NewCpuDevice({.threads = threads, .isa = isa});
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", std::string(made.status().message()).c_str());
      return 1;
    }
    for (const Case& c : kCases) {
      const bool asked = std::any_of(wanted.begin(), wanted.end(), [&](const std::string& part) {
        return std::string(c.name).find(part) != std::string::npos;
      });
      if (wanted.empty() || asked) {
        Measure(static_cast<CpuDevice&>(**made), c, quick ? 0.1 : 0.5);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace attnd

int main(int argc, char** argv) {
  bool quick = false;
  std::string isa;
  std::vector<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (std::strncmp(argv[i], "--isa=", 6) == 0) {
      isa = argv[i] + 6;
    } else if (argv[i][0] != '-') {
      wanted.push_back(argv[i]);
    } else {
      std::fprintf(stderr, "usage: matmul_bench [--quick] [--isa=avx512|avx2|sse4] [case ...]\n");
      return 2;
    }
  }
  return attnd::Main(quick, isa, wanted);
}
