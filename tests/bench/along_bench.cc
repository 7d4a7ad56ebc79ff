// Speed of elementwise, reduce, softmax, cumulative, layer_norm and pool. One JSON object a line:
// case, value (ns an element of one thread's time), unit, gbps (GB/s of all threads, reads and
// writes), ratio (of that to a memcpy of as much memory in the same run, which goes around the
// caches), predicted (ns). `small` fits L2, `big` does not fit any cache. Bound of big ones:
// memory; of functions: tens of float64 instructions an element. Usage: along_bench [--quick]
// [--isa=avx512|avx2|sse4]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/pool.h"
#include "tests/bench/measure.h"

namespace attnd {
namespace {

// Arrays of one size; a, b in [0.1, 3.1], none denormal.
struct Arrays {
  explicit Arrays(int64_t n) : elements(n) {
    for (auto* array : {&a, &b, &out}) array->resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      a[static_cast<size_t>(i)] = 0.1f + 3.0f * static_cast<float>(i * 7919 % 1009) / 1009;
      b[static_cast<size_t>(i)] = 0.1f + 3.0f * static_cast<float>(i * 104729 % 1013) / 1013;
    }
  }
  int64_t elements;
  Floats a, b, out;
};

class Report {
 public:
  Report(CpuDevice& device, double budget, bool big) : device_(device), budget_(budget) {
    name_ = big ? "big" : "small";
    arrays_ = std::make_unique<Arrays>(big ? int64_t{1} << 24 : int64_t{1} << 16);
  }

  Arrays& arrays() { return *arrays_; }
  View Of(Floats& array, const Shape& shape) const {
    return DenseView(array.data(), DType::kF32, shape);
  }

  // `moved`: bytes that one call reads and writes.
  void Case(const std::string& name, int64_t moved,
            const std::function<DeviceStatus(Stream&)>& call) {
    BufferPool pool;
    Stream stream(device_, &pool), dry(device_, nullptr);
    const auto run = [&](Stream& on) {
      const DeviceStatus status = call(on);
      if (status.ok()) return;
      std::fprintf(stderr, "%s\n", std::string(status.text()).c_str());
      std::exit(1);
    };
    run(dry);
    run(stream);
    std::vector<double> seconds, ratios;
    const double start = Wall();
    do {
      const double copy = CopySeconds();
      const double before = Wall();
      run(stream);
      seconds.push_back(Wall() - before);
      const double copied = 8.0 * static_cast<double>(arrays_->elements);
      ratios.push_back(static_cast<double>(moved) / seconds.back() / (copied / copy));
    } while (Wall() - start < budget_ || seconds.size() < 5);
    const double median = Median(seconds), n = static_cast<double>(arrays_->elements);
    std::printf(
        "{\"case\":\"%s %s T%d\",\"value\":%.3f,\"unit\":\"ns/element\",\"gbps\":%.1f,"
        "\"ratio\":%.2f,\"predicted\":%.3f}\n",
        name.c_str(), name_.c_str(), device_.cpu().threads,
        median / n * 1e9 * device_.cpu().threads, static_cast<double>(moved) / median * 1e-9,
        Median(ratios), dry.work().seconds / n * 1e9 * device_.cpu().threads);
    std::fflush(stdout);
  }

 private:
  double CopySeconds() {
    const int64_t piece = std::max<int64_t>(arrays_->elements / 64, 1 << 14);
    const double before = Wall();
    device_.cpu().pool->ParallelFor(arrays_->elements / piece, true, [&](int64_t i, int) {
      std::memcpy(arrays_->out.data() + i * piece, arrays_->a.data() + i * piece,
                  static_cast<size_t>(piece) * sizeof(float));
    });
    return Wall() - before;
  }

  CpuDevice& device_;
  const double budget_;
  std::string name_;
  std::unique_ptr<Arrays> arrays_;
};

void Elementwise(Report& report, CpuDevice& device) {
  Arrays& x = report.arrays();
  const int64_t n = x.elements;
  const Shape rows{n / 64, 64};
  const View a = report.Of(x.a, rows), b = report.Of(x.b, rows), out = report.Of(x.out, rows);
  const auto run = [&](const std::string& name, ElementOp op, const ElementwiseProblem& p,
                       int64_t moved, bool derivative = false) {
    report.Case(name, moved, [&device, op, p, derivative](Stream& stream) {
      return device.Run(stream,
                        ElementwiseArgs{.op = op, .derivative = derivative, .problems = {p}});
    });
  };
  View row = b, column = b, turned = a;
  row.shape = {1, 64};
  column.shape = {n / 64, 1};
  turned.shape = {64, n / 64};
  std::swap(turned.stride[0], turned.stride[1]);
  View turned_out = out;
  turned_out.shape = turned.shape;
  turned_out.stride = DenseView(nullptr, DType::kF32, turned.shape).stride;
  run("copy", ElementOp::kCopy, {a, {}, {}, out}, 8 * n);
  run("copy turned", ElementOp::kCopy, {turned, {}, {}, turned_out}, 8 * n);
  run("add", ElementOp::kAdd, {a, b, {}, out}, 12 * n);
  run("add row", ElementOp::kAdd, {a, row, {}, out}, 8 * n);
  run("multiply column", ElementOp::kMultiply, {a, column, {}, out}, 8 * n);
  const std::pair<const char*, ElementOp> functions[] = {
      {"exp", ElementOp::kExp},   {"log", ElementOp::kLog},         {"sin", ElementOp::kSin},
      {"tanh", ElementOp::kTanh}, {"sigmoid", ElementOp::kSigmoid}, {"gelu", ElementOp::kGelu}};
  for (const auto& [name, op] : functions) run(name, op, {a, {}, {}, out}, 8 * n);
  run("gelu derivative", ElementOp::kGelu, {a, b, {}, out}, 12 * n, /*derivative=*/true);
}

void Along(Report& report, CpuDevice& device) {
  Arrays& x = report.arrays();
  const int64_t n = x.elements;
  const Shape shape{n / 65536 > 0 ? n / 65536 : 1, 1024, 64};
  const View a = report.Of(x.a, shape), out = report.Of(x.out, shape);
  for (int axis : {1, 2}) {
    const std::string name = " axis " + std::to_string(axis);
    View one = out;
    one.shape.dims[axis] = 1;
    one.stride = DenseView(nullptr, DType::kF32, one.shape).stride;
    const ReduceProblem reduced = {a, one};
    const std::pair<const char*, ReduceOp> ops[] = {{"sum", ReduceOp::kSum},
                                                    {"log sum exp", ReduceOp::kLogSumExp},
                                                    {"argmax", ReduceOp::kArgMax}};
    for (const auto& [op_name, op] : ops) {
      report.Case(op_name + name, 4 * n, [&, op = op](Stream& stream) {
        return device.Run(stream, ReduceArgs{.op = op, .axis = axis, .problems = {reduced}});
      });
    }
    const SoftmaxProblem softmax = {a, out};
    report.Case("softmax" + name, 8 * n, [&](Stream& stream) {
      return device.Run(stream, SoftmaxArgs{.axis = axis, .problems = {softmax}});
    });
    const CumulativeProblem cumulative = {a, out, {}};
    const std::pair<const char*, CumulativeOp> walks[] = {
        {"cumulative sum", CumulativeOp::kSum},
        {"cumulative log sum exp", CumulativeOp::kLogSumExp}};
    for (const auto& [op_name, op] : walks) {
      report.Case(op_name + name, 8 * n, [&, op = op](Stream& stream) {
        return device.Run(stream, CumulativeArgs{.op = op, .axis = axis, .problems = {cumulative}});
      });
    }
  }
  Floats rstd(static_cast<size_t>(n / 64));
  const LayerNormProblem norm = {a, out, report.Of(rstd, {shape[0], shape[1], 1})};
  report.Case("layer norm 64", 8 * n, [&](Stream& stream) {
    return device.Run(stream, LayerNormArgs{.problems = {norm}});
  });
  for (int64_t width : {4, 64}) {
    const std::vector<RowRange> ranges = Windows(shape[1], width);
    const PoolProblem pool = {
        a, report.Of(x.out, {shape[0], static_cast<int64_t>(ranges.size()), 64}), {}, ranges};
    report.Case("pool mean " + std::to_string(width), 4 * n, [&](Stream& stream) {
      return device.Run(stream, PoolArgs{.op = PoolOp::kMean, .problems = {pool}});
    });
  }
}

int Main(bool quick, const std::string& isa) {
  for (int threads : {1, 2}) {
    auto made = NewCpuDevice({.threads = threads, .isa = isa});
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", std::string(made.status().message()).c_str());
      return 1;
    }
    CpuDevice& device = static_cast<CpuDevice&>(**made);
    for (bool big : {false, true}) {
      Report report(device, quick ? 0.05 : 0.5, big);
      Elementwise(report, device);
      Along(report, device);
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
      std::fprintf(stderr, "usage: along_bench [--quick] [--isa=avx512|avx2|sse4]\n");
      return 2;
    }
  }
  return attnd::Main(quick, isa);
}
