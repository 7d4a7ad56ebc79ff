#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/attend/attend_grad.cuh"
#include "kernels/cuda/attend/attend_grad_bias.cuh"
#include "kernels/cuda/attend/attend_grad_list.cuh"
#include "kernels/cuda/attend/attend_grad_plan.h"
#include "kernels/cuda/attend/device_pattern.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

using GradKernel = void (*)(Problems<GradData>);

template <int kUnits>
GradKernel QueriesOf(GradType type) {
  if (type == GradType::kF16) return GradQueries<simt::f16, kUnits>;
  if (type == GradType::kBF16) return GradQueries<simt::bf16, kUnits>;
  return GradQueries<float, kUnits>;
}
template <int kUnits>
GradKernel KeysOf(GradType type) {
  if (type == GradType::kF16) return GradKeys<simt::f16, kUnits>;
  if (type == GradType::kBF16) return GradKeys<simt::bf16, kUnits>;
  return GradKeys<float, kUnits>;
}
GradKernel BiasOf(GradType type) {
  if (type == GradType::kF16) return GradBiasTiles<simt::f16>;
  if (type == GradType::kBF16) return GradBiasTiles<simt::bf16>;
  return GradBiasTiles<float>;
}

// Problems for one kernel.
template <class P>
struct GradList {
  ProblemList<P> list;
  LaunchShape shape;

  void Add(const P& problem, int64_t blocks, size_t shared_bytes, double seconds) {
    list.Add(problem, blocks);
    if (blocks <= 0) return;
    shape.shared_bytes = std::max(shape.shared_bytes, shared_bytes);
    shape.seconds += seconds;
  }
  DeviceStatus Launch(CudaDevice& device, Stream& stream, int threads,
                      void (*kernel)(Problems<P>)) {
    if (list.empty()) return {};
    shape.threads = threads;
    shape.seconds += Cuda::kLaunchSeconds;
    return LaunchOver(device, stream, shape, kernel, list);
  }
};

// The sequences of a list of problems in device memory, and what keeps their patterns there.
class GradSeqs {
 public:
  DeviceStatus Load(Stream& stream, const AttendGradArgs& args) {
    std::vector<SeqData> seqs;
    std::vector<const PatternData*> heads;
    for (const AttendGradProblem& p : args.problems) {
      const AttendProblem& f = p.forward;
      const auto count = static_cast<size_t>(f.q.shape[0]);
      // Of a dry run only their numbers are known.
      first_.push_back(static_cast<int64_t>(seqs.size()));
      first_head_.push_back(static_cast<int64_t>(heads.size()));
      seqs.resize(seqs.size() + count);
      heads.resize(heads.size() + count * static_cast<size_t>(f.q.shape[1]));
      if (stream.is_dry()) continue;
      for (size_t b = 0; b < count; ++b) {
        const AttendSeq& seq = f.seqs[b];
        SeqData& data = seqs[first_.back() + b];
        data = {seq.nq, seq.nk, seq.offset, nullptr, nullptr};
        for (int64_t h = 0; h < (seq.head_patterns.empty() ? 1 : f.q.shape[1]); ++h) {
          const Pattern* pattern = seq.Of(h);
          if (pattern == nullptr) continue;
          held_.push_back(DevicePattern::Of(stream, *pattern));
          if (held_.back() == nullptr) return NoMemory(stream);
          if (seq.head_patterns.empty()) {
            data.pattern = held_.back()->data();
          } else {
            heads[first_head_.back() + b * f.q.shape[1] + h] = held_.back()->data();
          }
        }
      }
    }
    // Pointers to heads are known where the table is.
    const std::span<const std::byte> head_bytes[] = {BytesOf(heads)};
    heads_ = NewTable(stream, head_bytes);
    if (!heads_.status.ok()) return heads_.status;
    for (size_t n = 0; n < args.problems.size() && !stream.is_dry(); ++n) {
      const AttendProblem& f = args.problems[n].forward;
      for (int64_t b = 0; b < f.q.shape[0]; ++b) {
        if (f.seqs[b].head_patterns.empty()) continue;
        seqs[first_[n] + b].head_patterns =
            heads_.As<const PatternData*>() + first_head_[n] + b * f.q.shape[1];
      }
    }
    const std::span<const std::byte> seq_bytes[] = {BytesOf(seqs)};
    seqs_ = NewTable(stream, seq_bytes);
    return seqs_.status;
  }
  const SeqData* Of(size_t problem) const {
    return seqs_.buffer->data() == nullptr ? nullptr : seqs_.As<SeqData>() + first_[problem];
  }
  void Hold(Stream& stream) {
    for (auto& copy : held_) DevicePattern::Hold(stream, std::move(copy));
    held_.clear();
  }

 private:
  std::vector<int64_t> first_, first_head_;
  std::vector<std::shared_ptr<const DevicePattern>> held_;
  Table heads_, seqs_;
};

class GradLaunch {
 public:
  GradLaunch(CudaDevice& device, Stream& stream) : device_(device), stream_(stream) {}

  void Add(const GradPlan& plan);
  DeviceStatus Launch();

 private:
  // Seconds of products on tensor cores, which reach about half of their peak.
  double TensorSeconds(const GradPlan& plan, double flops) const {
    const double share = plan.type == GradType::kF32 ? 0.5 / 6 : 0.5;
    return flops / (device_.cuda().tensor_flops * share);
  }
  double MoveSeconds(double bytes) const { return bytes / device_.cuda().bytes_per_second; }
  void AddTiles(const GradPlan& plan);
  void AddLists(const GradPlan& plan);

  CudaDevice& device_;
  Stream& stream_;
  GradList<GradParts> zeros_, sums_;
  GradList<GradHeads> head_sums_;
  GradList<GradData> rows_, sizes_, list_queries_, list_keys_, list_bias_;
  GradList<GradData> queries_[kGradTypes][2], keys_[kGradTypes][2], bias_[kGradTypes];
};

void GradLaunch::Add(const GradPlan& plan) {
  const auto parts = [&](const std::vector<GradParts>& from, GradList<GradParts>* to) {
    for (const GradParts& p : from) {
      const double elements = static_cast<double>(p.blocks()) * GradParts::kElements;
      to->Add(p, p.blocks(), 0, MoveSeconds(elements * static_cast<double>(4 + 4 * p.count)));
    }
  };
  parts(plan.zeros, &zeros_);
  parts(plan.sums, &sums_);
  const double rows = static_cast<double>(plan.heads() * plan.Nq);
  rows_.Add(plan.data, plan.row_blocks(), simt::SharedBytes<float>(kGradThreads / 32),
            MoveSeconds(rows * static_cast<double>(plan.Dv) * 8));
  if (plan.type == GradType::kF16 && !plan.is_listed) {
    sizes_.Add(plan.data, plan.heads(), simt::SharedBytes<float>(kGradThreads), 0);
  }
  for (GradHeads sums : plan.head_sums) {
    sums.grad = plan.data;
    head_sums_.Add(sums, (sums.sums_b ? 1 : plan.B) * (sums.sums_h ? 1 : plan.H),
                   simt::SharedBytes<double>(kGradThreads), MoveSeconds(rows * 20));
  }
  if (plan.is_listed) {
    AddLists(plan);
  } else {
    AddTiles(plan);
  }
}

void GradLaunch::AddTiles(const GradPlan& plan) {
  const int type = static_cast<int>(plan.type);
  const GradData& p = plan.data;
  // The relative term is computed without tensor cores.
  const double relative = plan.problem.forward.terms.r.given()
                              ? plan.Flops(2, 0) / device_.cuda().flops * 4
                              : 0;
  queries_[type][plan.query_units].Add(
      p, plan.query_blocks(), plan.shared_bytes,
      TensorSeconds(plan, plan.Flops(p.query_parts + 1.0, p.query_parts)) + 2 * relative);
  keys_[type][plan.key_units].Add(
      p, plan.key_blocks(), plan.shared_bytes,
      TensorSeconds(plan, plan.Flops(p.key_parts + 1.0, p.key_parts + 1.0)) + relative);
  bias_[type].Add(p, plan.bias_blocks(), plan.shared_bytes,
                  TensorSeconds(plan, plan.Flops(1, 1)) + relative);
}

void GradLaunch::AddLists(const GradPlan& plan) {
  // Two products and two sums a pair, mostly from L2.
  const double seconds = plan.Flops(2, 2) / device_.cuda().flops * 8;
  if (plan.needs_queries) {
    list_queries_.Add(plan.data, plan.list_blocks(plan.H, plan.Nq), 0, seconds);
  }
  if (plan.needs_keys) {
    list_keys_.Add(plan.data, plan.list_blocks(plan.Hkv, plan.Nk), 0, seconds);
  }
  list_bias_.Add(plan.data, plan.bias_blocks(), 0, seconds);
}

DeviceStatus GradLaunch::Launch() {
  DeviceStatus status;
  const auto launch = [&](auto& list, int threads, auto kernel) {
    if (status.ok()) status = list.Launch(device_, stream_, threads, kernel);
  };
  launch(zeros_, GradParts::kThreads, GradSumParts);
  launch(rows_, kGradThreads, GradRows);
  launch(sizes_, kGradThreads, GradHeadSizes);
  for (int n = 0; n < kGradTypes; ++n) {
    const auto type = static_cast<GradType>(n);
    launch(queries_[n][0], kGradThreads, QueriesOf<kGradUnits[0]>(type));
    launch(queries_[n][1], kGradThreads, QueriesOf<kGradUnits[1]>(type));
    launch(keys_[n][0], kGradThreads, KeysOf<kGradUnits[0]>(type));
    launch(keys_[n][1], kGradThreads, KeysOf<kGradUnits[1]>(type));
    launch(bias_[n], kGradThreads, BiasOf(type));
  }
  launch(list_queries_, kListThreads, GradListQueries);
  launch(list_keys_, kListThreads, GradListKeys);
  launch(list_bias_, 32, GradListBias);
  launch(sums_, GradParts::kThreads, GradSumParts);
  launch(head_sums_, kGradThreads, GradHeadSums);
  return status;
}

bool DeclaresGathering(const GradPlan& plan) {
  if (plan.gathers) return true;
  for (const AttendSeq& seq : plan.problem.forward.seqs) {
    for (int64_t h = 0; h < (seq.head_patterns.empty() ? 1 : plan.H); ++h) {
      const Pattern* pattern = seq.Of(h);
      if (pattern != nullptr && !(pattern->query_rows.empty() && pattern->key_rows.empty())) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const AttendGradArgs& args) {
  std::vector<GradPlan> plans;
  plans.reserve(args.problems.size());
  GradMemory counted(nullptr);
  for (const AttendGradProblem& p : args.problems) {
    plans.emplace_back(p, args.params, stream.is_dry());
    if (!DeclaresGathering(plans.back())) {
      return {DeviceStatus::Code::kFailed,
              "attend: a row with a gather order must say that it gathers"};
    }
    plans.back().Place(&counted);
  }
  const std::shared_ptr<Buffer> scratch = Take(stream, counted.bytes());
  if (scratch == nullptr) return NoMemory(stream);
  GradSeqs seqs;
  if (DeviceStatus status = seqs.Load(stream, args); !status.ok()) return status;
  GradMemory memory(static_cast<std::byte*>(scratch->data()));
  GradLaunch launch(device, stream);
  for (size_t n = 0; n < plans.size(); ++n) {
    plans[n].data.a.seqs = seqs.Of(n);
    plans[n].Place(&memory);
    launch.Add(plans[n]);
  }
  const DeviceStatus status = launch.Launch();
  if (!stream.is_dry()) seqs.Hold(stream);
  return status;
}

}  // namespace attnd::cuda
