#include "kernels/cpu/scan.h"

#include <algorithm>
#include <memory>
#include <tuple>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/scan_item.h"

namespace attnd {
namespace {

// Around the items: allocating, listing, and caches that another request has filled.
constexpr double kLaunchSeconds = 7e-6;
constexpr int64_t kPage = 4096;  // scratch of two threads never shares a cache line

// Credited work of a walk: 2 D Dv FLOPs to add a key to the state and 2 D Dv to read it with a
// query; a query of a causal block of C meets C/2 keys at 2 (D + Dv) FLOPs. Backward: 2.5 times.
double Flops(const ScanItem& item, const ScanWalk& walk, double D, double Dv) {
  if (walk.steps() == 0) return 0;
  const double group = item.problem->q.shape[1] / item.problem->k.shape[1];
  const double steps = static_cast<double>(walk.steps());
  const double keys = static_cast<double>(walk.used_keys);
  double flops = 2 * D * Dv * (keys + group * steps);
  if (walk.used_keys > walk.absorbed) {
    const double block = std::min(static_cast<double>(ScanBlock(*item.params)), steps);
    flops += group * steps * block * (D + Dv);
  }
  return item.grad == nullptr ? flops : 2.5 * flops;
}

// Tiles are computed at padded widths; besides, each element of q, k, v and out is converted,
// mapped and checked. Fitted with tests/bench/scan_bench.
double Seconds(const Cpu& cpu, const ScanItem& item, const ScanWalk& walk) {
  constexpr double kEfficiency = 0.72, kSecondsPerElement = 0.4e-9, kSecondsPerItem = 1e-6;
  const View &q = item.problem->q, &v = item.problem->v;
  const double D = static_cast<double>(ScanLayout::Width(q.shape[3]));
  const double Dv = static_cast<double>(ScanLayout::Width(v.shape[3]));
  const double rows = static_cast<double>(walk.used_keys) +
                      static_cast<double>(walk.steps() * (q.shape[1] / v.shape[1]));
  const double moved = kSecondsPerElement * rows * (D + Dv) * (item.grad == nullptr ? 1 : 3);
  return kSecondsPerItem + moved + Flops(item, walk, D, Dv) / (kEfficiency * cpu.thread_flops);
}

const ScanProblem& Forward(const ScanProblem& problem) { return problem; }
const ScanProblem& Forward(const ScanGradProblem& problem) { return problem.forward; }
const ScanGradProblem* Gradient(const ScanProblem&) { return nullptr; }
const ScanGradProblem* Gradient(const ScanGradProblem& problem) { return &problem; }

// A dry run wants what has a shape: data is null there.
bool Wants(const View& view, bool dry) { return dry ? view.given() : view.data != nullptr; }

// Whether a problem has any element to write.
bool Writes(const ScanProblem& problem, bool) { return problem.q.shape[2] > 0; }
bool Writes(const ScanGradProblem& problem, bool dry) {
  const bool keys = problem.forward.k.shape[2] > 0;
  return (problem.forward.q.shape[2] > 0 && Wants(problem.dq, dry)) ||
         (keys && (Wants(problem.dk, dry) || Wants(problem.dv, dry)));
}

// Calls f(item) for the first kv head of every batch row of the problems that write something. All
// kv heads of a row do the same work.
template <class Args, class F>
void ForEachRow(const Args& args, bool dry, const F& f) {
  for (const auto& problem : args.problems) {
    if (!Writes(problem, dry)) continue;
    ScanItem item = {
        .params = &args.params, .problem = &Forward(problem), .grad = Gradient(problem)};
    for (item.b = 0; item.b < item.problem->k.shape[0]; ++item.b) f(item);
  }
}

// What a list takes: counted before anything is allocated, the same on dry streams.
struct Demand {
  int64_t items = 0, scratch_bytes = 0;  // scratch of one thread
  double seconds = 0, longest = 0;
};

template <class Args>
Demand CountWork(const Cpu& cpu, const Args& args, bool dry, Work* work) {
  Demand demand;
  ForEachRow(args, dry, [&](const ScanItem& item) {
    const Shape &q = item.problem->q.shape, &v = item.problem->v.shape;
    const double kv_heads = v[1];
    const ScanRow& row = item.problem->rows[item.b];
    const ScanWalk walk(*item.params, row);
    const int64_t bytes = ScanLayout(item).floats * static_cast<int64_t>(sizeof(float));
    const double seconds = Seconds(cpu, item, walk);
    demand.items += v[1];
    demand.scratch_bytes = std::max(demand.scratch_bytes, (bytes + kPage - 1) / kPage * kPage);
    demand.seconds += kv_heads * seconds;
    demand.longest = std::max(demand.longest, seconds);
    work->visible_pairs += static_cast<double>(q[1]) * row.visible_pairs;
    work->flops += kv_heads * Flops(item, walk, q[3], v[3]);
  });
  return demand;
}

template <class Args>
absl::Status Launch(const CpuBackend& backend, Stream& stream, const Args& args) {
  const Cpu& cpu = backend.cpu();
  const Demand demand = CountWork(cpu, args, stream.is_dry(), &stream.work());
  if (demand.items == 0) return absl::OkStatus();
  auto scratch = Take(stream, demand.scratch_bytes * cpu.threads);
  if (!scratch.ok()) return scratch.status();
  auto list = Take(stream, demand.items * static_cast<int64_t>(sizeof(ScanItem)));
  if (!list.ok()) return list.status();
  if (stream.is_dry()) {
    const double shared = cpu.ParallelSeconds(demand.seconds, demand.items);
    stream.work().seconds += kLaunchSeconds + std::max(shared, demand.longest);
    return absl::OkStatus();
  }

  ScanItem* items = static_cast<ScanItem*>((*list)->data());
  int64_t count = 0;
  ForEachRow(args, /*dry=*/false, [&](ScanItem item) {
    item.seconds = Seconds(cpu, item, ScanWalk(*item.params, item.problem->rows[item.b]));
    for (; item.kv_head < item.problem->k.shape[1]; ++item.kv_head) {
      std::construct_at(items + count++, item);
    }
  });
  // Longest first, so that no thread is left alone with a long one.
  std::sort(items, items + count,
            [](const ScanItem& a, const ScanItem& b) { return a.seconds > b.seconds; });
  const ScanKernels kernels = ScanKernelsOf(cpu.isa);
  char* base = static_cast<char*>((*scratch)->data());
  cpu.pool->ParallelFor(count, cpu.Parallel(demand.seconds), [&](int64_t i, int thread) {
    ScanKernel* kernel = items[i].grad == nullptr ? kernels.forward : kernels.backward;
    kernel(items[i], reinterpret_cast<float*>(base + thread * demand.scratch_bytes));
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status CpuScan(CpuBackend& backend, Stream& stream, const ScanArgs& args) {
  return Launch(backend, stream, args);
}

absl::Status CpuScanGrad(CpuBackend& backend, Stream& stream, const ScanGradArgs& args) {
  return Launch(backend, stream, args);
}

}  // namespace attnd
