#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/attend/attend_grad_kernels.h"
#include "kernels/cuda/attend/attend_grad_list.cuh"
#include "kernels/cuda/attend/attend_grad_plan.h"
#include "kernels/cuda/attend/attend_grad_rows.cuh"
#include "kernels/cuda/attend/attend_grad_spread.cuh"
#include "kernels/cuda/attend/attend_library.h"
#include "kernels/cuda/attend/attend_patterns.h"
#include "kernels/cuda/launch_parts.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda::attend_grad {
namespace {

GradKernels KernelsOf(GradType type) {
  switch (type) {
    case GradType::kF16:
      return GradKernelsF16();
    case GradType::kBF16:
      return GradKernelsBF16();
    case GradType::kF32:
      break;
  }
  return GradKernelsF32();
}

// Problems for one kernel.
template <class P>
struct GradList {
  ProblemList<P> list;
  LaunchShape shape;
  double of_block = 0;  // seconds of a block where as many run as the device can
  double longest = 0;   // seconds that some block takes, however many there are
  int64_t rounds = 1;

  // is_rare: as a rule the blocks find nothing to do.
  void Add(const P& problem, int64_t blocks, size_t shared_bytes, double seconds,
           bool is_rare = false) {
    list.Add(problem, blocks);
    if (blocks <= 0) return;
    shape.shared_bytes = std::max(shape.shared_bytes, shared_bytes);
    shape.most_seconds += seconds;
    if (is_rare) return;
    shape.seconds += seconds;
    of_block = std::max(of_block, seconds / static_cast<double>(blocks));
  }
  // Of the kernels that add up in rounds: problems with fewer of them have nothing to do in the
  // last.
  void AddRounds(const P& problem, int64_t blocks, size_t shared_bytes, double seconds,
                 int64_t of_problem, bool is_rare = false) {
    Add(problem, blocks, shared_bytes, seconds, is_rare);
    if (blocks > 0) rounds = std::max(rounds, of_problem);
  }
  DeviceStatus Launch(CudaDevice& device, Stream& stream, int threads, int lanes,
                      void (*kernel)(Problems<P>)) {
    if (list.empty()) return {};
    SetShape(CudaOf(device), threads, lanes);
    return LaunchOver(device, stream, shape, kernel, list);
  }
  DeviceStatus LaunchRounds(CudaDevice& device, Stream& stream, int threads, int lanes,
                            void (*kernel)(Problems<P>, int64_t)) {
    if (list.empty()) return {};
    SetShape(CudaOf(device), threads, lanes);
    return LaunchParts(stream, shape, rounds, [&](const LaunchShape& of_round, int64_t round) {
      return LaunchOver(device, stream, of_round, kernel, list, round);
    });
  }

 private:
  // `lanes`: blocks with which a processor is busy. Fewer on the device leave some of it idle.
  void SetShape(const Cuda& cuda, int threads, int lanes) {
    shape.threads = threads;
    longest = std::max(longest, of_block * cuda.processors * lanes);
    shape.seconds = std::max(shape.seconds, longest) + Cuda::kLaunchSeconds;
  }
};

// What own kernels compute.
enum class GradTiles {
  kAll,
  kDoubtful,  // those whose gradients are there, but not finite or of a large lse (FindGradSpread)
};

class GradLaunch {
 public:
  GradLaunch(CudaDevice& device, Stream& stream, GradTiles tiles)
      : device_(device), stream_(stream), tiles_(tiles) {}

  void Add(const GradPlan& plan);
  DeviceStatus Launch();

 private:
  // Seconds of products on tensor cores: a tenth of their peak, as an H200 measured it.
  double TensorSeconds(const GradPlan& plan, double flops) const {
    const double share = plan.type == GradType::kF32 ? 0.1 / 6 : 0.1;
    return flops / (CudaOf(device_).tensor_flops * share);
  }
  // Of what the library has computed, tiles that are not finite: what wide tiles leave to the other
  // kernels. Where wide tiles would not compute, all is computed again.
  bool Searches(const GradPlan& plan) const {
    return tiles_ == GradTiles::kDoubtful && plan.wide_queries && plan.wide_keys;
  }
  double MoveSeconds(double bytes) const { return bytes / CudaOf(device_).bytes_per_second; }
  void AddTiles(const GradPlan& plan);
  void AddWide(const GradPlan& plan, const GradData& p);
  void AddLists(const GradPlan& plan);
  template <class P>
  void Run(GradList<P>& list, int threads, void (*kernel)(Problems<P>)) {
    if (!status_.ok()) return;
    // nvcc takes an assignment for a result that is ignored.
    static_cast<void>(status_ = list.Launch(device_, stream_, threads, /*lanes=*/1, kernel));
  }
  void RunRounds(GradList<GradData>& list, int threads, int lanes,
                 void (*kernel)(Problems<GradData>, int64_t)) {
    if (!status_.ok()) return;
    static_cast<void>(status_ = list.LaunchRounds(device_, stream_, threads, lanes, kernel));
  }

  CudaDevice& device_;
  Stream& stream_;
  const GradTiles tiles_;
  DeviceStatus status_;
  GradList<GradParts> zeros_, group_sums_, sums_;
  GradList<GradHeads> head_sums_;
  GradList<GradData> rows_, sizes_, spread_, list_queries_, list_keys_, list_bias_;
  GradList<GradData> queries_[kGradTypes][2][2], keys_[kGradTypes][2][2], bias_[kGradTypes];
  GradList<GradData> wide_queries_[kGradTypes][2], wide_keys_[kGradTypes][2];
};

void GradLaunch::Add(const GradPlan& plan) {
  const auto parts = [&](const std::vector<GradParts>& from, GradList<GradParts>* to) {
    for (GradParts p : from) {
      if (!Searches(plan)) p.careful = nullptr;
      const double elements = static_cast<double>(p.blocks()) * GradParts::kElements;
      const int64_t added = p.count * (p.sums_b ? p.B : 1) * (p.sums_h ? p.H : 1);
      to->Add(p, p.blocks(), 0, MoveSeconds(elements * static_cast<double>(4 + 4 * added)));
    }
  };
  parts(plan.zeros, &zeros_);
  parts(plan.group_sums, &group_sums_);
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
  GradData p = plan.data;
  p.searches = Searches(plan);
  // The products of the relative term, and a sum over its pairs, which goes without tensor cores.
  const bool is_relative = plan.problem.forward.terms.r.given();
  const double products = is_relative ? TensorSeconds(plan, plan.Flops(2, 0)) : 0;
  const double relative = is_relative ? plan.Flops(2, 0) / CudaOf(device_).flops * 4 : 0;
  if (p.searches) {
    const double bytes = static_cast<double>(plan.problem.dq.bytes() + plan.problem.dk.bytes() +
                                             plan.problem.dv.bytes());
    GradData found = p;
    found.dq = GradientPlane(plan.problem.dq);
    found.dk = GradientPlane(plan.problem.dk), found.dv = GradientPlane(plan.problem.dv);
    spread_.Add(found, plan.wide_query_blocks() + plan.wide_key_blocks(), 0, MoveSeconds(bytes));
  }
  AddWide(plan, p);
  const double query_seconds =
      TensorSeconds(plan, plan.Flops(p.query_parts + 1.0, p.query_parts)) + products + 2 * relative;
  const double key_seconds =
      TensorSeconds(plan, plan.Flops(p.key_parts + 1.0, p.key_parts + 1.0)) + products;
  queries_[type][plan.query_units][p.a.has_terms].AddRounds(
      p, plan.query_blocks(), plan.shared_bytes, query_seconds, p.query_rounds, plan.wide_queries);
  keys_[type][plan.key_units][p.a.has_terms].AddRounds(p, plan.key_blocks(), plan.shared_bytes,
                                                       key_seconds, p.key_rounds, plan.wide_keys);
  bias_[type].AddRounds(p, plan.bias_blocks(), plan.shared_bytes,
                        TensorSeconds(plan, plan.Flops(1, 1)) + products, p.bias_shares.rounds());
}

void GradLaunch::AddWide(const GradPlan& plan, const GradData& p) {
  const int type = static_cast<int>(plan.type);
  // A plan counts them: the library may fail.
  const bool is_rare = p.searches && !stream_.is_dry();
  wide_queries_[type][plan.wide_columns].AddRounds(
      p, plan.wide_query_blocks(), plan.wide_query_bytes, TensorSeconds(plan, plan.Flops(2, 1)),
      p.query_rounds, is_rare);
  wide_keys_[type][plan.wide_columns].AddRounds(p, plan.wide_key_blocks(), plan.wide_key_bytes,
                                                TensorSeconds(plan, plan.Flops(2, 2)), p.key_rounds,
                                                is_rare);
}

void GradLaunch::AddLists(const GradPlan& plan) {
  // Two products and two sums a pair, mostly from L2.
  const double seconds = plan.Flops(2, 2) / CudaOf(device_).flops * 8;
  const auto add = [&](GradList<GradData>* to, int64_t blocks, int64_t longest, double likely) {
    to->AddRounds(plan.data, blocks, 0, seconds,
                  std::max<int64_t>(1, DivideUp(longest, kListPairs)));
    to->longest = std::max(to->longest, kListPairSeconds * likely);
  };
  if (plan.needs_queries) {
    add(&list_queries_, plan.list_blocks(plan.H, plan.Nq), plan.longest_query_list,
        static_cast<double>(plan.longest_query_list));
  }
  if (plan.needs_keys) {
    // A plan does not know which keys are listed.
    const auto longest = static_cast<double>(plan.longest_key_list);
    add(&list_keys_, plan.list_blocks(plan.Hkv, plan.Nk), plan.longest_key_list,
        stream_.is_dry() ? longest / static_cast<double>(std::max<int64_t>(1, plan.Nk)) : longest);
  }
  list_bias_.AddRounds(plan.data, plan.bias_blocks(), 0, seconds, plan.data.bias_shares.rounds());
}

DeviceStatus GradLaunch::Launch() {
  Run(zeros_, GradParts::kThreads, GradSumParts);
  Run(rows_, kGradThreads, GradRows);
  Run(sizes_, kGradThreads, GradHeadSizes);
  Run(spread_, kGradThreads, FindGradSpread);
  for (int n = 0; n < kGradTypes; ++n) {
    const GradKernels kernels = KernelsOf(static_cast<GradType>(n));
    for (int columns = 0; columns < 2; ++columns) {
      RunRounds(wide_queries_[n][columns], kGradThreads, 1, kernels.wide_queries[columns]);
      RunRounds(wide_keys_[n][columns], kGradThreads, 1, kernels.wide_keys[columns]);
    }
    for (int units = 0; units < 2; ++units) {
      for (int terms = 0; terms < 2; ++terms) {
        RunRounds(queries_[n][units][terms], kGradThreads, 1, kernels.queries[units][terms]);
        RunRounds(keys_[n][units][terms], kGradThreads, 1, kernels.keys[units][terms]);
      }
    }
    RunRounds(bias_[n], kGradThreads, 1, kernels.bias);
  }
  RunRounds(list_queries_, kListThreads, kListBlocks, GradListQueries);
  RunRounds(list_keys_, kListThreads, kListBlocks, GradListKeys);
  RunRounds(list_bias_, 32, kListBlocks * kListWarps, GradListBias);
  Run(group_sums_, GradParts::kThreads, GradSumParts);
  Run(sums_, GradParts::kThreads, GradSumParts);
  Run(head_sums_, kGradThreads, GradHeadSums);
  return status_;
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

// Of the patterns of problem `n`.
GradPlan::LongestRows LongestRowsOf(const GradPlan& plan, const AttendPatterns& patterns,
                                    size_t n) {
  GradPlan::LongestRows longest = {0, 0};
  const AttendProblem& problem = plan.problem.forward;
  for (size_t b = 0; b < problem.seqs.size(); ++b) {
    const AttendSeq& seq = problem.seqs[b];
    const int64_t query_tiles = GradPlan::CeilDiv64(seq.nq),
                  key_tiles = GradPlan::CeilDiv64(seq.nk);
    for (int64_t h = 0; h < (seq.head_patterns.empty() ? 1 : plan.H); ++h) {
      const DevicePattern* pattern = patterns.Of(n, static_cast<int64_t>(b), h);
      int64_t of_query = key_tiles, of_keys = query_tiles;
      if (plan.gathers) {
        of_keys = pattern == nullptr ? query_tiles * DivideUp(key_tiles, plan.data.key_shares)
                                     : pattern->MostOfKeyShare(plan.data.key_shares);
      } else if (pattern != nullptr) {
        // It may have more rows than the sequence.
        of_query = std::min(of_query, pattern->most_of_query());
        of_keys = std::min(of_keys, pattern->most_of_key());
      }
      longest.of_query = std::max(longest.of_query, of_query);
      longest.of_keys = std::max(longest.of_keys, of_keys);
    }
  }
  return longest;
}

DeviceStatus RunOwnKernels(CudaDevice& device, Stream& stream, const AttendGradArgs& args,
                           GradTiles tiles = GradTiles::kAll) {
  if (args.problems.empty()) return {};
  std::vector<GradPlan> plans;
  plans.reserve(args.problems.size());
  for (const AttendGradProblem& p : args.problems) {
    plans.emplace_back(p, args.params, stream.is_dry(), stream.alike().most);
    if (!DeclaresGathering(plans.back())) {
      return {DeviceStatus::Code::kFailed,
              "attend: a row with a gather order must say that it gathers"};
    }
  }
  AttendPatterns patterns(stream, /*is_grad=*/true, args.kept);
  for (const AttendGradProblem& p : args.problems) {
    if (DeviceStatus status = patterns.Add(p.forward); !status.ok()) return status;
  }
  if (DeviceStatus status = patterns.Upload(); !status.ok()) return status;
  GradMemory counted(nullptr);
  for (size_t n = 0; n < plans.size(); ++n) {
    plans[n].SetRounds(stream.is_dry() ? plans[n].LongestOfShapes()
                                       : LongestRowsOf(plans[n], patterns, n));
    plans[n].Place(&counted);
  }
  const std::shared_ptr<Buffer> scratch = TakeShared(stream, counted.bytes());
  if (scratch == nullptr) return NoMemory(stream);
  GradMemory memory(static_cast<std::byte*>(scratch->data()));
  GradLaunch launch(device, stream, tiles);
  for (size_t n = 0; n < plans.size(); ++n) {
    if (!stream.is_dry()) plans[n].data.a.seqs = patterns.Seqs(n);
    plans[n].Place(&memory);
    launch.Add(plans[n]);
  }
  DeviceStatus status = launch.Launch();
  return status;
}

// By the library what it takes.
DeviceStatus RunWithLibrary(CudaDevice& device, Stream& stream, const AttendGradArgs& args) {
  const std::vector<LibraryProblem> problems = LibraryProblemsOf(args);
  const auto own = [&](std::vector<AttendGradProblem> of, GradTiles tiles) {
    return RunOwnKernels(device, stream,
                         {.params = args.params, .problems = std::move(of), .kept = args.kept},
                         tiles);
  };
  if (stream.is_dry()) {
    DeviceStatus status = LibraryAttention::Plan(device, stream, args.params, problems);
    const bool may_doubt = LibraryAttention::MayDoubt(device, args.params, problems);
    return status.ok() ? RunOwnKernels(device, stream, args,
                                       may_doubt ? GradTiles::kDoubtful : GradTiles::kAll)
                       : status;
  }
  LibraryAttention library(device, stream, args.params, problems);
  if (library.empty()) return RunOwnKernels(device, stream, args);
  DeviceStatus status = own(library.Rest(args.problems), GradTiles::kAll);
  bool has_failed = false;
  if (status.ok()) status = library.Run(&has_failed);
  if (!status.ok()) return status;
  if (has_failed) return RunOwnKernels(device, stream, args);
  return own(library.Doubtful(args.problems), GradTiles::kDoubtful);
}

}  // namespace
}  // namespace attnd::cuda::attend_grad

namespace attnd::cuda {

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const AttendGradArgs& args) {
  return args.is_deterministic ? attend_grad::RunOwnKernels(device, stream, args)
                               : attend_grad::RunWithLibrary(device, stream, args);
}

}  // namespace attnd::cuda
