// Attention through a state on the CPU.
//
// A work item is one (problem, sequence, kv head): it walks the sequence with the state S [D,Dv],
// z [D], which the query heads of its group share, one token after the other; while a block of
// tokens is processed, a piece of the state stays in registers. That costs the multiply-adds of the
// definition and no more, where a chunk's triangle of pairs would add half of them again (D 64).
// The delta rule, for whose tokens all of the state must be there, takes a few of them in one sweep
// over it (scan_delta_group-inl.h).
//
// Where queries read the state after all keys, tokens need no order, and a block of them is a
// product of matrices.
//
// Columns of the state need no other columns, and in the gradients of q and k features no other
// features: a head that is more than a thread's share of the list is cut there, and every number is
// made alike however it is cut. The backward of a cut head takes two launches, since all its jobs
// need the rows' normalisers; three with the delta rule, or where rows are normalised: the gradient
// of a normaliser is a sum over all features. That of a whole head reads its rows less often:
// causal in two walks, forward and back, with 6 products of the size of the state a token; else in
// three, keys, queries, keys, with 5. A cut head takes 6, or 8 where rows are normalised.
//
// Scratch of the forward is a fixed size a thread. The backward keeps O(N): 2 floats per query of a
// group, 3 where rows are normalised, and D / 16 more in slices; the delta rule 2 Dv + D per key;
// dlog_decay D per query, 1 where features share a decay, and (Dv + 1) D every 256 keys.
#include "kernels/core/integer.h"
#include "kernels/cpu/primitives.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/scan/scan_item.h"

namespace attnd {
namespace {

constexpr int64_t kPageFloats = 1024;  // scratch of two threads never shares a cache line

// Of the forward of an item: 2 D Dv FLOPs to add a key to the state and 2 D Dv to read it with a
// query; the delta rule reads it with the key first.
double Flops(const ScanItem& item, const ScanWalk& walk, double D, double Dv) {
  const double group = item.problem->q.shape[1] / item.problem->k.shape[1];
  const double keys = item.params->rule == ScanRule::kDelta ? 2 : 1;
  const double rows = keys * static_cast<double>(walk.used_keys) +
                      group * static_cast<double>(walk.end_query - walk.first_query);
  return 2 * D * Dv * rows;
}

// Predicted time of an item on one thread; if it is cut, what every slice repeats, and what slices
// share: features are those of whole rows, and what turns rows of dout is made by one slice.
struct Cost {
  double seconds = 0, repeated = 0, divided = 0;

  double OfSlice(int64_t slices) const {
    return slices == 1 ? seconds : repeated + divided / static_cast<double>(slices);
  }
};

// Tiles are computed at padded widths, and a decay is one more product, a quarter of one where
// features share it; besides, each element of q, k, v and out is converted, mapped and moved. A
// backward has three recurrences and passes over such elements that take as long as three of the
// forward, in slices five; where rows are normalised, slices have four recurrences and six passes.
// Of the delta rule it has 11 products with the state for the forward's 3, not all of them in
// groups of tokens, and six passes. Fitted with tests/bench/scan_bench.
Cost CostOf(const Cpu& cpu, const ScanItem& item, const ScanWalk& walk) {
  constexpr double kSecondsPerItem = 1e-6;
  const View &q = item.problem->q, &v = item.problem->v;
  const double D = static_cast<double>(ScanWidth::Of(q.shape[3]));
  const double Dv = static_cast<double>(ScanWidth::Of(v.shape[3]));
  const double keys = static_cast<double>(walk.used_keys);
  const double group = q.shape[1] / v.shape[1];
  const double rows = keys + group * static_cast<double>(walk.end_query - walk.first_query);
  const bool backward = item.grad != nullptr, delta = item.params->rule == ScanRule::kDelta;
  const bool has_decays = item.problem->log_decay.given();
  const bool shares_decay = has_decays && item.problem->log_decay.shape[3] == 1;
  // Token by token, the state of the delta rule goes through L1 for each.
  const bool by_token = delta && (backward || has_decays || group > 1);
  const double efficiency = !delta ? 0.85 : by_token ? 0.5 : 0.7;
  const double seconds_per_element = delta ? 0.5e-9 : 0.3e-9;
  const bool has_dots = backward && ScanKept::HasDots(item);
  const double passes = !backward ? 1 : delta ? 6 : 3;
  const double cut_passes = !backward ? 1 : delta ? 6 : has_dots ? 6 : 5;
  const double products = !backward ? 1 : delta ? 11.0 / 3 : item.params->causal ? 3 : 2.5;
  const double cut_products = backward && !delta ? (has_dots ? 4 : 3) : products;
  const double of_decay = !has_decays ? 0 : shares_decay && !delta ? 0.5 : 2;
  const double decays = of_decay * D * Dv * keys;
  const double forward = Flops(item, walk, D, Dv), pass = seconds_per_element * rows * (D + Dv);
  const auto seconds_of = [&](double times) {
    return (forward * times + decays * (backward ? 3 : 1)) / (efficiency * cpu.thread_flops);
  };
  // Of the sum rule, jobs in slices read most rows of queries and keys again.
  const double repeated = cut_passes * (backward && !delta ? 0.6 : 0.5);
  return {.seconds = kSecondsPerItem + pass * passes + seconds_of(products),
          .repeated = kSecondsPerItem + pass * repeated,
          .divided = pass * (cut_passes - repeated) + seconds_of(cut_products)};
}

const ScanProblem& Forward(const ScanProblem& problem) { return problem; }
const ScanProblem& Forward(const ScanGradProblem& problem) { return problem.forward; }
const ScanGradProblem* Gradient(const ScanProblem&) { return nullptr; }
const ScanGradProblem* Gradient(const ScanGradProblem& problem) { return &problem; }

// Calls f(item) for the first kv head of every sequence of the problems that write something, on a
// dry stream once for sequences that are alike. All kv heads of a sequence do the same work.
template <class Args, class F>
void ForEachSeq(const Args& args, const F& f) {
  for (const auto& problem : args.problems) {
    if (!Writes(problem)) continue;
    ScanItem item = {
        .params = &args.params, .problem = &Forward(problem), .grad = Gradient(problem)};
    item.job = item.grad == nullptr ? ScanJob::kForward : ScanJob::kBackward;
    const auto seqs = static_cast<int64_t>(item.problem->seqs.size());
    for (item.b = 0; item.b < seqs; ++item.b) f(item);
  }
}

// What a list takes: counted before anything is allocated, the same on dry streams.
struct Demand {
  int64_t heads = 0, jobs = 0;
  int64_t scratch = 0;  // floats of one thread
  int64_t kept = 0;     // floats of heads in slices together
  double seconds = 0, longest = 0;
  bool in_slices = false;
};

// Jobs of a head in slices, at most: rows; errors or dots, columns and features in slices.
int64_t MostJobs(int64_t slices) { return 1 + 3 * slices; }

// A head with more work than a thread's share is cut, if that makes up for what slices repeat.
// Numbers do not depend on it (ScanJob).
int64_t Slices(const Cpu& cpu, const ScanItem& item, const Cost& cost, double total) {
  constexpr double kGain = 1.25;
  if (!cpu.Parallel(total)) return 1;
  const auto shares = static_cast<int64_t>(std::ceil(cost.seconds * cpu.threads / total - 0.01));
  const int64_t vectors = ScanWidth::Of(item.problem->v.shape[3]) / ScanWidth::kVector;
  const int64_t slices = std::clamp<int64_t>(shares, 1, vectors);
  return kGain * cost.OfSlice(slices) <= cost.seconds ? slices : 1;
}

// What a backward of so many slices keeps.
int64_t KeptFloats(ScanItem item, int64_t slices) {
  if (slices > 1) item.job = ScanJob::kRows;
  return RoundUp(ScanKept(item).floats(), kPageFloats);
}

template <class Args>
Demand CountWork(const Cpu& cpu, const Args& args) {
  Demand demand;
  ForEachSeq(args, [&](const ScanItem& item) {
    const Shape& v = item.problem->v.shape;
    const ScanWalk walk = WalkOf(item);
    const ScanSeq& seq = item.problem->seqs[item.b];
    const double kv_heads = static_cast<double>(v[1] * seq.count);
    demand.heads += v[1] * seq.count;
    demand.seconds += kv_heads * CostOf(cpu, item, walk).seconds;
  });
  ForEachSeq(args, [&](const ScanItem& item) {
    const int64_t kv_heads = item.problem->k.shape[1] * item.problem->seqs[item.b].count;
    const Cost cost = CostOf(cpu, item, WalkOf(item));
    const int64_t slices = Slices(cpu, item, cost, demand.seconds);
    int64_t scratch = ScanLayout(item).floats();
    const int64_t kept = item.grad == nullptr ? 0 : KeptFloats(item, slices);
    if (slices == 1) {
      scratch += kept;
      demand.jobs += kv_heads;
    } else {
      demand.kept += kv_heads * kept;
      demand.jobs += kv_heads * (item.grad == nullptr ? slices : MostJobs(slices));
      demand.in_slices = true;
    }
    demand.longest = std::max(demand.longest, cost.OfSlice(slices));
    demand.scratch = std::max(demand.scratch, RoundUp(scratch, kPageFloats));
  });
  return demand;
}

// The jobs of one launch after the other.
class JobList {
 public:
  explicit JobList(ScanItem* items) : items_(items) {}

  // All slices of a job, whose width is `width`.
  void Add(ScanItem item, int64_t width, int64_t slices) {
    const int64_t step = RoundUp(CeilDiv(width, slices), ScanWidth::kVector);
    item.seconds /= static_cast<double>(slices);
    for (item.begin = 0; item.begin < width; item.begin += step) {
      item.end = std::min(item.begin + step, width);
      std::construct_at(items_ + count_++, item);
    }
  }
  // Longest first, so that no thread ends with a long one alone.
  std::span<ScanItem> Take() {
    const std::span<ScanItem> jobs(items_, static_cast<size_t>(count_));
    std::stable_sort(jobs.begin(), jobs.end(),
                     [](const ScanItem& a, const ScanItem& b) { return a.seconds > b.seconds; });
    items_ += count_;
    count_ = 0;
    return jobs;
  }

 private:
  ScanItem* items_;
  int64_t count_ = 0;
};

// Jobs of a backward in slices need what those before them have written.
constexpr int kStages = 3;
int StageOf(const ScanItem& item) {
  const bool delta = item.params->rule == ScanRule::kDelta, has_dots = ScanKept::HasDots(item);
  switch (item.job) {
    case ScanJob::kDots:
      return 1;
    case ScanJob::kColumns:
      return has_dots ? 2 : 1;
    case ScanJob::kFeatures:
      return delta || has_dots ? 2 : 1;
    default:
      return 0;
  }
}

// A backward's jobs of one stage.
void AddStage(const ScanItem& head, int stage, int64_t slices, JobList* list) {
  for (const ScanJob job :
       {ScanJob::kRows, ScanJob::kErrors, ScanJob::kDots, ScanJob::kColumns, ScanJob::kFeatures}) {
    ScanItem item = head;
    item.job = job;
    if (StageOf(item) != stage || !IsNeeded(item)) continue;
    const ScanGradProblem& grad = *item.grad;
    // Sums over all columns or features are not cut: one job makes them.
    const bool whole =
        job == ScanJob::kRows || (job == ScanJob::kColumns && grad.dbeta.given()) ||
        (job == ScanJob::kFeatures && grad.dlog_decay.given() && grad.dlog_decay.shape[3] == 1);
    const bool of_features = job == ScanJob::kFeatures || job == ScanJob::kDots;
    const View& of = of_features ? head.problem->k : head.problem->v;
    list->Add(item, of.shape[3], whole ? 1 : slices);
  }
}

template <class Args>
DeviceStatus RunScan(CpuDevice& device, Stream& stream, const Args& args) {
  const Cpu& cpu = device.cpu();
  const Demand demand = CountWork(cpu, args);
  if (demand.heads == 0) return DeviceStatus();
  constexpr int64_t kFloat = sizeof(float);
  auto scratch = Take(stream, kFloat * (demand.scratch * cpu.threads + demand.kept));
  if (scratch == nullptr) return NoMemory(stream);
  auto jobs = Take(stream, demand.jobs * static_cast<int64_t>(sizeof(ScanItem)));
  if (jobs == nullptr) return NoMemory(stream);
  const double shared = demand.in_slices ? demand.seconds / cpu.threads
                                         : cpu.ParallelSeconds(demand.seconds, demand.heads);
  if (Predicted(stream, Cpu::kLaunchSeconds + std::max(shared, demand.longest))) {
    return DeviceStatus();
  }

  float* base = static_cast<float*>(scratch->data());
  JobList list(static_cast<ScanItem*>(jobs->data()));
  ScanKernel *forward = ScanForwardOf(cpu.isa), *backward = ScanBackwardOf(cpu.isa);
  for (int stage = 0; stage < (demand.in_slices ? kStages : 1); ++stage) {
    float* kept = base + demand.scratch * cpu.threads;
    ForEachSeq(args, [&](ScanItem item) {
      const Cost cost = CostOf(cpu, item, WalkOf(item));
      const int64_t slices = Slices(cpu, item, cost, demand.seconds);
      item.seconds = cost.seconds;
      const int64_t Dv = item.problem->v.shape[3];
      for (; item.kv_head < item.problem->k.shape[1]; ++item.kv_head) {
        if (item.grad == nullptr || slices == 1) {
          if (stage == 0) list.Add(item, Dv, slices);
          continue;
        }
        item.kept = kept;
        kept += KeptFloats(item, slices);
        AddStage(item, stage, slices, &list);
      }
    });
    const std::span<ScanItem> work = list.Take();
    if (work.empty()) continue;
    cpu.ForEach(stream, static_cast<int64_t>(work.size()), demand.seconds,
                [&](int64_t i, int thread) {
                  float* own = base + thread * demand.scratch;
                  ScanItem item = work[static_cast<size_t>(i)];
                  if (item.kept == nullptr) item.kept = own + ScanLayout(item).floats();
                  (item.grad == nullptr ? forward : backward)(item, own);
                });
  }
  return DeviceStatus();
}

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const ScanArgs& args) {
  return RunScan(device, stream, args);
}

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const ScanGradArgs& args) {
  return RunScan(device, stream, args);
}

}  // namespace attnd
