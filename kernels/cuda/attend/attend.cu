// attend forward: kernels/device/attend.h.
#include <algorithm>
#include <vector>

#include "kernels/cuda/attend/attend_forward.h"
#include "kernels/cuda/attend/attend_library.h"
#include "kernels/cuda/attend/attend_list.cuh"
#include "kernels/cuda/attend/attend_merge.cuh"
#include "kernels/cuda/attend/attend_patterns.h"
#include "kernels/cuda/attend/attend_spread.cuh"
#include "kernels/cuda/attend/device_pattern.h"
#include "kernels/cuda/attend/list_lengths.h"
#include "kernels/cuda/launch_parts.h"
#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

// Blocks that a sequence is split into where it has fewer tiles of queries: some for each
// processor, of whichever device.
constexpr int64_t kBlocks = 256;
// Blocks from which on a block may take two tiles of queries: half as many still are enough.
constexpr int64_t kPairedBlocks = 2 * kBlocks;
// Keys and values of heads that run together: they share L2 with all else.
constexpr int64_t kTogetherBytes = int64_t{16} << 20;

struct SplitRule {
  int parts = 1;
  int64_t states = 0;  // that there is room for

  // From shapes and counts alone: known without a pattern.
  SplitRule(const AttendProblem& p, const AttendSeq& seq) {
    const int64_t rows = p.q.shape[1] * DivideUp(seq.nq, kTile);
    if (rows == 0 || (seq.is_counted && seq.visible_tiles <= 0)) return;
    const int64_t second = p.terms.k2.given() ? p.terms.k2.shape[2] : 0;
    const int64_t longest = DivideUp(seq.nk + second, kTile);
    parts = static_cast<int>(std::clamp<int64_t>(DivideUp(kBlocks, rows), 1,
                                                 std::max<int64_t>(1, longest / kLeastPart)));
    if (parts > 1) states = rows * parts;
  }
};

// Slots of a head, in tiles.
int64_t SlotTiles(const AttendProblem& p, const PatternData* pattern) {
  const bool gathers = pattern != nullptr && pattern->query_rows != nullptr;
  return DivideUp(gathers ? pattern->Nq : p.q.shape[2], kTile);
}

int64_t StateFloats(const ForwardData& data) { return int64_t{data.state_rows} * (data.p.Dv + 2); }

// What one call takes of a device.
struct Cost {
  double tensor_flops = 0, flops = 0, bytes = 0;

  void Add(const AttendArgs& args, const AttendProblem& p, bool has_terms) {
    const double D = static_cast<double>(p.q.shape[3]), Dv = static_cast<double>(p.v.shape[3]);
    const double H = static_cast<double>(p.q.shape[1]);
    // Products of float32 are three, at half of the rate.
    const double times = TypeOf(args, p) == DType::kF32 ? 6 : 1;
    for (const AttendSeq& seq : p.seqs) {
      const double count = static_cast<double>(seq.count);
      const double pairs =
          (seq.is_listed ? seq.visible_pairs : seq.visible_tiles * kTile * kTile) * H * count;
      if (seq.is_listed) {
        flops += pairs * 4 * (D + Dv);
        bytes += pairs * (D * SizeOf(p.k.dtype) + Dv * SizeOf(p.v.dtype)) / 4;
        continue;
      }
      tensor_flops += pairs * 2 * (D * (p.terms.r.given() ? 3 : 1) + Dv) * times;
      flops += pairs * (has_terms ? 120 : 16);
    }
    for (const View* view : {&p.q, &p.k, &p.v, &p.out, &p.terms.bias}) {
      if (view->given()) bytes += static_cast<double>(view->bytes());
    }
  }
  double Seconds(const Cuda& cuda) const {
    constexpr double kShare = 0.6;  // of the rate of tensor cores
    const double as_flops = tensor_flops / kShare / cuda.tensor_flops * cuda.flops;
    return cuda.Seconds(as_flops + flops, bytes);
  }

  // Of the tiles in shared memory. 16-bit ones need a 16-bit result: weights are rounded to it.
  static DType TypeOf(const AttendArgs& args, const AttendProblem& p) {
    const AttendTerms& t = p.terms;
    const DType dtype = p.q.dtype;
    const bool is_one = p.k.dtype == dtype && p.v.dtype == dtype && p.out.dtype == dtype &&
                        (!t.k2.given() || (t.k2.dtype == dtype && t.v2.dtype == dtype));
    if (!is_one || t.r.given()) return DType::kF32;
    // Weights may leave the range of float16.
    const Weighting w = args.params.weighting;
    const bool is_bounded = w == Weighting::kSoftmax || w == Weighting::kRelu6 ||
                            w == Weighting::kSigmoid || dtype == DType::kBF16;
    return is_bounded ? dtype : DType::kF32;
  }
};

ForwardForm FormOf(DType dtype, int width, bool has_terms, bool has_relative) {
  if (dtype == DType::kF16) return ForwardOfF16(width, has_terms);
  if (dtype == DType::kBF16) return ForwardOfBF16(width, has_terms);
  return ForwardOfF32(width, has_terms, has_relative);
}
ForwardForm PlainFormOf(DType dtype, int width, bool in_pairs) {
  if (dtype == DType::kF16) return PlainOfF16(width, in_pairs);
  if (dtype == DType::kBF16) return PlainOfBF16(width, in_pairs);
  return PlainOfF32(width);
}

// Whether pieces of 16 bytes of its rows can be copied.
bool Copies(const View& view) {
  const int64_t per = 16 / SizeOf(view.dtype);
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.stride[0] % per == 0 &&
         view.stride[1] % per == 0 && view.stride[2] % per == 0;
}

// Whether ForwardPlain computes a problem without terms: rows in natural order that fill the width
// of their tiles of `type`, whole sequences.
bool IsPlain(const ForwardData& data, const AttendProblem& p, int width, DType type) {
  const bool is_exact = data.is_exact && type != DType::kF32;
  if (data.parts > 1 || is_exact || p.q.dtype != type || p.k.dtype != type || p.v.dtype != type ||
      data.p.D != width || data.p.Dv != width || !(data.p.scale > 0) || p.terms.k2.given()) {
    return false;
  }
  const auto is_natural = [](const AttendSeq& seq) { return !seq.is_listed && !seq.gathers; };
  return std::ranges::all_of(p.seqs, is_natural) && Copies(p.q) && Copies(p.k) && Copies(p.v);
}

// Whether blocks may take two tiles of queries each: those that follow one another see the same
// keys, for the most part.
bool FitsPairs(const AttendProblem& p) {
  return std::ranges::all_of(p.seqs, [](const AttendSeq& seq) {
    return seq.head_patterns.empty() && (seq.pattern == nullptr || seq.pattern->band.has_value());
  });
}

// What own kernels compute.
enum class Heads {
  kAll,
  kDoubtful,  // those whose results are there, but not finite or of a large lse (FindSpread)
};

DeviceStatus RunOwnKernels(CudaDevice& device, Stream& stream, const AttendArgs& args,
                           Heads heads_of = Heads::kAll) {
  const Cuda& cuda = CudaOf(device);
  AttendPatterns patterns(stream, /*is_grad=*/false, args.kept);
  for (const AttendProblem& p : args.problems) {
    if (DeviceStatus status = patterns.Add(p); !status.ok()) return status;
  }
  // [1]: of problems with terms. Each has kernels by what it is itself: others of its list would
  // change its bits.
  Cost cost[2], plain_cost, pair_cost, list_cost;
  ProblemList<ForwardData> tiled[2], plain, paired, merged, searched;
  ProblemList<ListData> listed;
  int64_t longest_list = 0, carry_bytes = 0;
  std::vector<int64_t> first_carry_byte;  // -1: no row carries anything
  std::vector<SeqSplit> splits;
  std::vector<ForwardData> forward;
  std::vector<bool> have_terms;
  bool has_relative = false;
  int64_t state_bytes = 0, split_bytes = 0, needed_bytes = 0;
  std::vector<int64_t> first_state_byte, first_needed_byte;
  // Host side first: how sequences are split.
  for (size_t n = 0; n < args.problems.size(); ++n) {
    const AttendProblem& p = args.problems[n];
    ForwardData data = {};
    data.p = NewAttendData(args.params, p);
    data.is_exact = KeepsWeights(data.p, data.p.Dv);
    data.parts = 1;
    data.ranks = DivideUp(data.p.Nq, kTile);
    data.state_rows = static_cast<int>(std::clamp<int64_t>(data.p.Nq, 1, kTile));
    have_terms.push_back(data.p.has_terms || patterns.has_terms(n));
    has_relative |= p.terms.r.given();
    int64_t states = 0;
    const size_t first = splits.size();
    if (!stream.is_dry()) splits.resize(first + p.seqs.size(), SeqSplit{1, 0, 0});
    for (size_t b = 0; b < p.seqs.size(); ++b) {
      const AttendSeq& seq = p.seqs[b];
      if (seq.is_listed) continue;
      const SplitRule rule(p, seq);
      if (stream.is_dry()) {
        data.parts = std::max(data.parts, rule.parts);
        states += rule.states * seq.count;
        continue;
      }
      SeqSplit& split = splits[first + b];
      split = {rule.parts, states, 0};
      bool fits = true;
      for (int64_t h = 0; h < data.p.H; ++h) {
        const PatternData* pattern = patterns.OnHost(n, static_cast<int64_t>(b), h);
        split.tiles = std::max(split.tiles, SlotTiles(p, pattern));
        int64_t ranks = SlotTiles(p, pattern);
        if (pattern != nullptr && pattern->query_rows != nullptr) {
          fits = fits && std::min(pattern->Nq, kTile) <= data.state_rows;
          ranks += DivideUp(data.p.Nq, kTile);
        }
        data.ranks = std::max(data.ranks, ranks);
        if (seq.head_patterns.empty()) break;
      }
      const int64_t rows = data.p.H * DivideUp(seq.nq, kTile);
      // Gather orders may have more tiles, of which there was no telling.
      if (split.tiles * data.p.H > rows) {
        split.parts = static_cast<int>(
            std::max<int64_t>(1, rule.states / std::max<int64_t>(1, split.tiles * data.p.H)));
      }
      if (!fits) split.parts = 1;
      data.parts = std::max(data.parts, split.parts);
      states += rule.states;
    }
    first_state_byte.push_back(state_bytes);
    state_bytes += ShareOf<float>(states * StateFloats(data));
    split_bytes += data.p.B * ShareOf<SeqSplit>(1);
    first_needed_byte.push_back(needed_bytes);
    if (heads_of == Heads::kDoubtful) needed_bytes += data.p.B * ShareOf<int4>(data.p.H);
    const int64_t longest = LongestListOfQueries(p, stream.is_dry());
    longest_list = std::max(longest_list, longest);
    first_carry_byte.push_back(longest > kListKeys ? carry_bytes : -1);
    if (longest > kListKeys) {
      const int64_t rows = data.p.H * data.p.Nq;
      carry_bytes += data.p.B * ShareOf<float>(rows * ListData::FloatsOf(data.p.Dv));
    }
    forward.push_back(data);
  }
  if (forward.empty()) return {};
  if (DeviceStatus status = patterns.Upload(); !status.ok()) return status;
  const std::span<const std::byte> pieces[] = {BytesOf(splits)};
  const Table split_table = NewTable(stream, split_bytes, pieces);
  if (!split_table.status.ok()) return split_table.status;
  const std::shared_ptr<Buffer> states = TakeShared(stream, state_bytes);
  const std::shared_ptr<Buffer> needed = TakeShared(stream, needed_bytes);
  const std::shared_ptr<Buffer> carries = TakeShared(stream, carry_bytes);
  if (states == nullptr || needed == nullptr || carries == nullptr) return NoMemory(stream);
  if (stream.is_dry()) {
    stream.work().host_bytes += static_cast<int64_t>(2 * forward.size() * sizeof(ForwardData));
  }

  const AttendProblem& one = args.problems[0];
  const int64_t widest = std::max(one.q.shape[3], one.v.shape[3]);
  const int width = has_relative || widest > 128 ? 0 : widest > 64 ? 128 : 64;
  const DType type = Cost::TypeOf(args, one);
  const bool may_pair = type != DType::kF32;
  std::vector<bool> are_plain, fit_pairs;
  int64_t fitting = 0;  // blocks of one tile
  for (size_t n = 0; n < forward.size(); ++n) {
    const ForwardData& data = forward[n];
    const AttendProblem& p = args.problems[n];
    are_plain.push_back(width != 0 && !have_terms[n] && IsPlain(data, p, width, type));
    fit_pairs.push_back(are_plain[n] && may_pair && FitsPairs(p));
    if (fit_pairs[n]) fitting += data.p.B * data.p.H * data.ranks;
  }
  int64_t first_split = 0;
  double result_bytes = 0;
  for (size_t n = 0; n < forward.size(); ++n) {
    const AttendProblem& p = args.problems[n];
    ForwardData& data = forward[n];
    if (!stream.is_dry()) {
      data.p.seqs = patterns.Seqs(n);
      data.splits = split_table.As<SeqSplit>() + first_split;
      data.states =
          reinterpret_cast<float*>(static_cast<std::byte*>(states->data()) + first_state_byte[n]);
    }
    if (heads_of == Heads::kDoubtful) {
      if (!stream.is_dry()) {
        data.needed =
            reinterpret_cast<int4*>(static_cast<std::byte*>(needed->data()) + first_needed_byte[n]);
      }
      result_bytes += static_cast<double>(p.out.bytes());
      searched.Add(data, data.p.B * data.p.H * kSpreadParts);
    }
    first_split += data.p.B;
    const bool is_listed = !p.seqs.empty() && p.seqs[0].is_listed;
    if (is_listed) {
      list_cost.Add(args, p, true);
      const int64_t rows = DivideUp(data.p.Nq, int64_t{kListRows});
      ListData list = {data.p, nullptr};
      if (!stream.is_dry() && first_carry_byte[n] >= 0) {
        list.carries = reinterpret_cast<float*>(static_cast<std::byte*>(carries->data()) +
                                                first_carry_byte[n]);
      }
      listed.Add(list, data.p.B * data.p.H * rows);
      continue;
    }
    const bool is_plain = are_plain[n], in_pairs = fit_pairs[n] && fitting >= kPairedBlocks;
    (in_pairs   ? pair_cost
     : is_plain ? plain_cost
                : cost[have_terms[n]])
        .Add(args, p, have_terms[n]);
    data.value_parts =
        width == 0 ? static_cast<int>(std::max<int64_t>(1, DivideUp(data.p.Dv, 128))) : 1;
    const int64_t head_bytes =
        data.p.Nk * (data.p.D * SizeOf(p.k.dtype) + data.p.Dv * SizeOf(p.v.dtype));
    const int64_t heads = data.p.B * data.p.H;
    data.heads_together =
        std::clamp<int64_t>(kTogetherBytes * data.p.group / std::max<int64_t>(1, head_bytes), 1,
                            std::max<int64_t>(1, heads));
    if (in_pairs) data.ranks = DivideUp(data.ranks, 2);
    const int64_t blocks = data.p.Nq == 0 ? 0 : heads * data.ranks;
    (in_pairs   ? paired
     : is_plain ? plain
                : tiled[have_terms[n]])
        .Add(data, blocks * data.parts * data.value_parts);
    if (data.parts > 1) merged.Add(data, blocks);
  }
  const LaunchShape search = {.threads = kSpreadThreads, .seconds = cuda.Seconds(0, result_bytes)};
  if (DeviceStatus status = LaunchOver(device, stream, search, FindSpread, searched);
      !status.ok()) {
    return status;
  }
  struct Kernel {
    ProblemList<ForwardData>& list;
    ForwardForm form;
    const Cost& cost;
  };
  const Kernel kernels[] = {{tiled[0], FormOf(type, width, false, has_relative), cost[0]},
                            {tiled[1], FormOf(type, width, true, has_relative), cost[1]},
                            {plain, PlainFormOf(type, width, /*in_pairs=*/false), plain_cost},
                            {paired, PlainFormOf(type, width, /*in_pairs=*/true), pair_cost}};
  for (const Kernel& kernel : kernels) {
    const LaunchShape shape = {.threads = kAttendThreads,
                               .shared_bytes = kernel.form.shared_bytes,
                               .seconds = kernel.cost.Seconds(cuda)};
    if (DeviceStatus status = LaunchOver(device, stream, shape, kernel.form.kernel, kernel.list);
        !status.ok()) {
      return status;
    }
  }
  const double merge_seconds = cuda.Seconds(0, 2 * static_cast<double>(state_bytes));
  if (DeviceStatus status =
          LaunchOver(device, stream, {.threads = kAttendThreads, .seconds = merge_seconds},
                     MergeForward, merged);
      !status.ok()) {
    return status;
  }
  if (listed.empty()) return {};
  const double list_seconds =
      std::max(list_cost.Seconds(cuda), kListKeySeconds * static_cast<double>(longest_list));
  return LaunchParts(stream, {.threads = kListThreads, .seconds = list_seconds},
                     std::max<int64_t>(1, DivideUp(longest_list, kListKeys)),
                     [&](const LaunchShape& of_round, int64_t round) {
                       return LaunchOver(device, stream, of_round, AttendListed, listed, round);
                     });
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const AttendArgs& args) {
  const std::vector<LibraryProblem> of_library = LibraryProblemsOf(args);
  if (stream.is_dry()) {
    DeviceStatus status = LibraryAttention::Plan(device, stream, args.params, of_library);
    const bool may_spread = LibraryAttention::MayDoubt(device, args.params, of_library);
    return status.ok()
               ? RunOwnKernels(device, stream, args, may_spread ? Heads::kDoubtful : Heads::kAll)
               : status;
  }
  LibraryAttention library(device, stream, args.params, of_library);
  if (library.empty()) return RunOwnKernels(device, stream, args);
  const auto own = [&](std::vector<AttendProblem> of, Heads heads) {
    return RunOwnKernels(device, stream,
                         {.params = args.params, .problems = std::move(of), .kept = args.kept},
                         heads);
  };
  DeviceStatus status = own(library.Rest(args.problems), Heads::kAll);
  bool has_failed = false;
  if (status.ok()) status = library.Run(&has_failed);
  if (!status.ok()) return status;
  if (has_failed) return RunOwnKernels(device, stream, args);
  return own(library.Doubtful(args.problems), Heads::kDoubtful);
}

}  // namespace attnd::cuda
