// Speed of fft, gather, scatter, sort, top-k, random features and of drawing numbers. One JSON
// object a line: case, value, ratio. The bound of what moves rows is the streaming bandwidth of the
// same machine in the same run: ratio is the share of it, counting every byte read and written
// once. Usage: rows_bench [--isa=avx512|avx2|sse4] [prefix of the cases to run]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/core/random.h"
#include "kernels/core/random_table.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/peak.h"
#include "tests/bench/measure.h"

namespace attnd {
namespace {

// One thread is timed in CPU time.
double Now(bool one_thread) { return one_thread ? ProcessSeconds() : Wall(); }

double MedianSeconds(int threads, const std::function<void()>& call) {
  call();
  std::vector<double> seconds;
  const bool one = threads == 1;
  const double start = Now(one);
  while (seconds.size() < 5 || Now(one) - start < 0.3) {
    const double before = Now(one);
    call();
    seconds.push_back(Now(one) - before);
  }
  return Median(seconds);
}

Floats Normals(int64_t count) {
  Floats values(static_cast<size_t>(count));
  RandomStream(1, "bench").Normals(0, std::span<float>(values));
  return values;
}

class Report {
 public:
  Report(CpuDevice& device, std::string prefix) : device_(device), prefix_(std::move(prefix)) {}

  // `bytes` 0: no bound is printed. per: the unit of the value (0: a whole call in ms).
  void Case(const std::string& name, double bytes, double per,
            const std::function<DeviceStatus(Stream&)>& call) {
    if (!name.starts_with(prefix_)) return;
    BufferPool pool(int64_t{4} << 30);
    Stream stream(device_, &pool), dry(device_, nullptr);
    const auto checked = [&](Stream& s) {
      const DeviceStatus status = call(s);
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.text().c_str());
    };
    checked(dry);
    const double seconds = MedianSeconds(device_.cpu().threads, [&] { checked(stream); });
    const double unit = per == 0 ? 1e3 : 1e9 / per;
    std::printf(
        "{\"case\":\"%s T%d\",\"value\":%.3f,\"unit\":\"%s\",\"ratio\":%.3f,"
        "\"predicted\":%.3f}\n",
        name.c_str(), device_.cpu().threads, seconds * unit, per == 0 ? "ms" : "ns",
        bytes / seconds / device_.info().bytes_per_second, dry.work().seconds * unit);
    std::fflush(stdout);
  }

  void Fft(int64_t N, int64_t M) {
    Floats x = Normals(N * M), out(x.size());
    const FftProblem p = {DenseView(x.data(), DType::kF32, {N, M}),
                          DenseView(out.data(), DType::kF32, {N, M})};
    Case("fft N" + std::to_string(N) + " M" + std::to_string(M), 8.0 * static_cast<double>(N * M),
         0, [&](Stream& s) { return device_.Run(s, FftArgs{.problems = {p}}); });
  }

  // 8 heads; a random permutation of the rows.
  void Rows(int64_t N, int64_t D) {
    const int64_t H = 8;
    Floats x = Normals(H * N * D), out(x.size());
    std::vector<int32_t> index;
    std::mt19937 random(1);
    for (int64_t h = 0; h < H; ++h) {
      std::vector<int32_t> rows(static_cast<size_t>(N));
      for (int64_t n = 0; n < N; ++n) rows[n] = static_cast<int32_t>(n);
      std::shuffle(rows.begin(), rows.end(), random);
      index.insert(index.end(), rows.begin(), rows.end());
    }
    const View of_x = DenseView(x.data(), DType::kF32, {H, N, D});
    const View of_out = DenseView(out.data(), DType::kF32, {H, N, D});
    const View of_index = DenseView(index.data(), DType::kI32, {H, N});
    const std::string shape = " N" + std::to_string(N) + " D" + std::to_string(D) + " H8";
    const double bytes = 8.0 * static_cast<double>(x.size()), rows = static_cast<double>(H * N);
    const GatherRowsProblem gather = {of_x, of_index, of_out};
    Case("gather" + shape, bytes, rows,
         [&](Stream& s) { return device_.Run(s, GatherRowsArgs{.problems = {gather}}); });
    const ScatterRowsProblem scatter = {of_x, of_index, of_out};
    Case("scatter" + shape, bytes, rows,
         [&](Stream& s) { return device_.Run(s, ScatterRowsArgs{.problems = {scatter}}); });
  }

  void Sort(int64_t rows, int64_t N, int64_t M, bool by_index = false) {
    Floats x = Normals(rows * N);
    std::vector<int32_t> order(static_cast<size_t>(rows * M));
    const SortProblem p = {DenseView(x.data(), DType::kF32, {rows, N}),
                           DenseView(order.data(), DType::kI32, {rows, M})};
    Case((by_index ? "top_k_by_index N"
          : M == N ? "sort N"
                   : "top_k N") +
             std::to_string(N) + " M" + std::to_string(M) + " rows" + std::to_string(rows),
         0, static_cast<double>(rows * N), [&](Stream& s) {
           return device_.Run(
               s, SortArgs{.descending = M != N, .by_index = by_index, .problems = {p}});
         });
  }

  // 8 heads, N 4096, D 64; a value is that of one row and direction.
  void Features(const std::string& name, const RandomFeaturesParams& params, int64_t m) {
    const Shape rows = {1, 8, 4096, 64}, features = {1, 8, 4096, FeatureCount(params.feature, m)};
    Floats x = Normals(rows.size()), w = Normals(m * 64), dx(x.size());
    Floats phi(static_cast<size_t>(features.size())), dphi = Normals(features.size());
    Floats shift(static_cast<size_t>(8 * 4096));
    const auto dense = [](Floats& values, const Shape& shape) {
      return DenseView(values.data(), DType::kF32, shape);
    };
    RandomFeaturesProblem p = {dense(x, rows), dense(w, {1, 1, m, 64}), dense(phi, features)};
    if (HasShift(params.feature)) {
      p.shift = dense(shift, {1, 8, params.shares_shift ? 1 : 4096, 1});
    }
    const RandomFeaturesGradProblem grad = {p, dense(dphi, features), dense(dx, rows)};
    const double products = static_cast<double>(8 * 4096 * m);
    const std::string size = " m" + std::to_string(m);
    Case("features " + name + size, static_cast<double>(p.x.bytes() + p.phi.bytes()), products,
         [&](Stream& s) {
           return device_.Run(s, RandomFeaturesArgs{params, {p}});
         });
    Case("features gradient " + name + size, static_cast<double>(2 * p.x.bytes() + p.phi.bytes()),
         products, [&](Stream& s) {
           return device_.Run(s, RandomFeaturesGradArgs{params, {grad}});
         });
  }

 private:
  CpuDevice& device_;
  const std::string prefix_;
};

void Draws(const std::string& prefix) {
  Floats values(1 << 20);
  const RandomStream stream(1, "bench");
  const auto draw = [&](const std::string& name, const std::function<void()>& call) {
    if (!name.starts_with(prefix)) return;
    std::printf("{\"case\":\"%s\",\"value\":%.3f,\"unit\":\"ns\"}\n", name.c_str(),
                MedianSeconds(1, call) * 1e9 / static_cast<double>(values.size()));
  };
  draw("draw uniform", [&] { stream.Uniforms(0, values); });
  draw("draw normal", [&] { stream.Normals(0, std::span<float>(values)); });
  draw("draw truncated", [&] { stream.TruncatedNormals(0, values); });
  for (int64_t D : {16, 64, 128, 256, 1024}) {
    const int64_t rows = static_cast<int64_t>(values.size()) / D;
    const DrawParams params = {.name = "w", .distribution = Distribution::kOrthogonalRows};
    draw("draw orthogonal D" + std::to_string(D), [&] { DrawTable(params, {rows, D}); });
  }
}

int Main(const std::string& isa, const std::string& prefix) {
  Draws(prefix);
  for (int threads : {1, 2}) {
    auto made = NewCpuDevice({.threads = threads, .isa = isa});
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", std::string(made.status().message()).c_str());
      return 1;
    }
    Report report(static_cast<CpuDevice&>(**made), prefix);
    for (int64_t N : {512, 1024, 4096, 4095, 4093, 16384, 65536}) report.Fft(N, 768);
    report.Fft(4096, 1024);
    for (int64_t D : {1, 16, 64, 128}) report.Rows(4096, D);
    report.Rows(65536, 64);
    for (int64_t N : {64, 256, 4096, 65536}) {
      report.Sort((1 << 18) / N, N, N);
      if (N > 64) report.Sort((1 << 18) / N, N, 16);
    }
    report.Sort(64, 4096, 512);
    report.Sort(1024, 4096, 64, /*by_index=*/true);
    const double alpha = 0.35;
    report.Features("exp", {.alpha = alpha, .eps = 1e-6}, 256);
    report.Features("exp shared", {.alpha = alpha, .eps = 1e-6, .shares_shift = true}, 256);
    report.Features("cosh", {.feature = RandomFeature::kCosh, .alpha = alpha}, 256);
    report.Features("waves", {.feature = RandomFeature::kSinCos, .alpha = alpha}, 64);
    report.Features("relu", {.feature = RandomFeature::kMapped, .alpha = alpha}, 256);
  }
  return 0;
}

}  // namespace
}  // namespace attnd

int main(int argc, char** argv) {
  std::string isa, prefix;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--isa=", 6) == 0) {
      isa = argv[i] + 6;
    } else {
      prefix = argv[i];
    }
  }
  return attnd::Main(isa, prefix);
}
