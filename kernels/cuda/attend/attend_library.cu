#include "kernels/cuda/attend/attend_library.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/core/integer.h"
#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_queue.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda {
namespace {

// Estimates; no device has been measured. Multiply-adds of a sequence from which on a call has
// enough for a whole device: two FLOPs each take 4 us at 600 TFLOP/s, about as long as the host
// needs to ask for it.
constexpr double kLeastProducts = 1 << 30;
// A plan compiles a kernel, half a second for each pair of lengths: lengths that are multiples of
// this come back.
constexpr int64_t kLengths = 256;
// Slices of time that a call may take, which nothing can stop.
constexpr double kMostSlices = 8;
// Of the rate of tensor cores, as calls are predicted.
constexpr double kShare = 0.6;
// Beyond, what the library takes as float32 or int32 would not be exact.
constexpr int64_t kMostBefore = int64_t{1} << 24;
constexpr int64_t kMostElements = int64_t{1} << 31;
constexpr int64_t kMostColumns = 256, kMostGradientColumns = 128;
// Scratch of the calls of a gradient: float32 sums of dq of their heads, for the most part. A
// sequence of which one head takes more is left to own kernels.
constexpr int64_t kMostScratchBytes = int64_t{256} << 20;

// Multiply-adds of a head a visible pair.
int64_t ProductsOf(const LibraryProblem& problem) {
  const int64_t D = problem.forward->q.shape[3], Dv = problem.forward->v.shape[3];
  return problem.gradient == nullptr ? D + Dv : 3 * D + 2 * Dv;
}

// Of a plain problem. A gradient of lse would be one more number of each row.
bool IsPlainGradient(const AttendGradProblem& p, const AttendData& data) {
  const View* const views[] = {&p.dout, &p.dq, &p.dk, &p.dv};
  return !p.dlse.given() && p.forward.k.shape[1] == p.forward.q.shape[1] &&
         !KeepsWeights(data, data.D) && std::ranges::all_of(views, [&](const View* view) {
           return view->given() && view->dtype == p.forward.q.dtype;
         });
}

// What depends on the shapes of views alone: all that a plan knows for certain.
bool IsPlain(const AttendParams& params, const LibraryProblem& problem) {
  const AttendProblem& p = *problem.forward;
  bool has_terms = false;
  ForEachView(p.terms, [&](const View& view) { has_terms |= view.given(); });
  const DType dtype = p.q.dtype;
  const int64_t D = p.q.shape[3], Dv = p.v.shape[3];
  const bool is_gradient = problem.gradient != nullptr;
  const auto fits = [&](int64_t columns) {
    return columns > 0 && columns <= (is_gradient ? kMostGradientColumns : kMostColumns) &&
           columns % 8 == 0;
  };
  const AttendData data = NewAttendData(params, p);
  return params.weighting == Weighting::kSoftmax && params.softcap == 0 && params.scale > 0 &&
         std::isfinite(static_cast<float>(params.scale)) && !has_terms &&
         (dtype == DType::kF16 || dtype == DType::kBF16) && p.k.dtype == dtype &&
         p.v.dtype == dtype && p.out.dtype == dtype && fits(D) && fits(Dv) &&
         std::min(p.q.shape[2], p.k.shape[2]) >= kLengths &&
         static_cast<double>(p.q.shape[1] * ProductsOf(problem)) *
                 static_cast<double>(p.q.shape[2]) * static_cast<double>(p.k.shape[2]) >=
             kLeastProducts &&
         !KeepsWeights(data, Dv) && (!is_gradient || IsPlainGradient(*problem.gradient, data));
}

// Heads of N rows that are contiguous and aligned, in any order. False: they are not.
bool RowsOf(const View& view, int64_t b, int64_t N, DnnRows* rows) {
  const int64_t H = view.shape[1], D = view.shape[3], vector = Cudnn::kAlign / SizeOf(view.dtype);
  const std::byte* const data = view.As<std::byte>() + b * view.stride[0] * SizeOf(view.dtype);
  rows->row = view.stride[2];
  rows->head = H == 1 ? N * rows->row : view.stride[1];
  return view.stride[3] == 1 && rows->row >= D && rows->head > 0 && rows->row % vector == 0 &&
         rows->head % vector == 0 && (H - 1) * rows->head + N * rows->row < kMostElements &&
         reinterpret_cast<uintptr_t>(data) % Cudnn::kAlign == 0;
}

// Whether each row of it begins at a multiple of 16 bytes, so that own kernels can compute tiles of
// the gradient again (GradData::vectors).
bool IsAligned(const View& view) {
  const int64_t vector = Cudnn::kAlign / SizeOf(view.dtype);
  return reinterpret_cast<uintptr_t>(view.data) % Cudnn::kAlign == 0 &&
         std::all_of(view.stride.begin(), view.stride.begin() + 3,
                     [&](int64_t stride) { return stride % vector == 0; });
}

// Whether it is a band of which each query sees a key. NVIDIA's front end asks for no window where
// there are more queries than keys.
bool BandOf(const AttendSeq& seq, KeyBand* band) {
  if (seq.pattern == nullptr) {
    *band = {.before = seq.nq, .after = seq.nk};
    return true;
  }
  if (!seq.pattern->band.has_value()) return false;
  // No more than there are rows.
  band->before = std::min(seq.pattern->band->before, seq.nq);
  band->after = std::min(seq.pattern->band->after, seq.nk);
  if (band->before < seq.nq - 1 && seq.nq > seq.nk) return false;
  return band->after >= 0 && band->before > -kMostBefore && band->before < kMostBefore &&
         band->before + band->after >= 0 && seq.nq - 1 - band->before <= seq.nk - 1;
}

// What calls over the whole of a problem are planned with.
int64_t MostBytes(const LibraryProblem& problem) {
  const AttendProblem& p = *problem.forward;
  const int64_t bytes = Cudnn::MostWorkspaceBytes({.is_gradient = problem.gradient != nullptr,
                                                   .H = p.q.shape[1],
                                                   .Nq = p.q.shape[2],
                                                   .D = p.q.shape[3]});
  return std::min(bytes, kMostScratchBytes);
}

bool MayTake(CudaDevice& device, const AttendParams& params, const LibraryProblem& problem) {
  return device.cudnn() != nullptr &&
         (problem.gradient == nullptr || device.uses_cudnn_gradients()) && IsPlain(params, problem);
}

// The largest divisor of `heads` up to `most`.
int64_t DivisorOf(int64_t heads, double most) {
  auto divisor = std::clamp<int64_t>(static_cast<int64_t>(std::min(most, 1e9)), 1, heads);
  while (heads % divisor != 0) --divisor;
  return divisor;
}

}  // namespace

LibraryAttention::LibraryAttention(CudaDevice& device, Stream& stream, const AttendParams& params,
                                   std::span<const LibraryProblem> problems)
    : device_(device), stream_(stream), params_(params) {
  for (size_t n = 0; n < problems.size(); ++n) {
    const AttendProblem& p = *problems[n].forward;
    Part rest{n, p.seqs}, doubtful{n, p.seqs};
    const size_t before = seqs_.size();
    bool is_whole = true, has_doubtful = false;
    for (size_t b = 0; b < p.seqs.size(); ++b) {
      const bool is_taken = Take(problems[n], static_cast<int64_t>(b));
      const bool is_doubtful = is_taken && (problems[n].gradient != nullptr ||
                                            p.seqs[b].pattern != nullptr || p.lse_low.given());
      if (!is_doubtful) doubtful.seqs[b] = AttendSeq{};
      has_doubtful |= is_doubtful;
      if (is_taken) rest.seqs[b] = AttendSeq{};
      is_whole &= is_taken && p.seqs[b].nq == p.q.shape[2] &&
                  (problems[n].gradient == nullptr || p.seqs[b].nk == p.k.shape[2]);
    }
    if (seqs_.size() == before || !is_whole) rest_.push_back(std::move(rest));
    if (has_doubtful) doubtful_.push_back(std::move(doubtful));
  }
}

bool LibraryAttention::Take(const LibraryProblem& problem, int64_t b) {
  const AttendProblem& p = *problem.forward;
  const AttendGradProblem* const g = problem.gradient;
  const AttendSeq& seq = p.seqs[static_cast<size_t>(b)];
  LibrarySeq taken{.problem = problem, .b = b};
  if (!MayTake(device_, params_, problem) || seq.is_listed || seq.gathers ||
      !seq.head_patterns.empty() || seq.pair_count != nullptr || seq.nq == 0 || seq.nk == 0 ||
      seq.nq % kLengths != 0 || seq.nk % kLengths != 0 || !BandOf(seq, &taken.band) ||
      (seq.pattern != nullptr && g == nullptr && !device_.uses_cudnn_in_bands())) {
    return false;
  }
  const int64_t H = p.q.shape[1], Hkv = p.k.shape[1];
  DnnAttend attend{.is_gradient = g != nullptr,
                   .dtype = p.q.dtype,
                   .Nq = seq.nq,
                   .Nk = seq.nk,
                   .D = p.q.shape[3],
                   .Dv = p.v.shape[3],
                   .lse_head = H == 1 ? seq.nq : p.lse.stride[1],
                   .is_bounded_before = taken.band.before < seq.nq - 1,
                   .is_bounded_after = taken.band.after < seq.nk - 1};
  const double products = seq.visible_pairs * static_cast<double>(H * ProductsOf(problem));
  if (products < kLeastProducts || !RowsOf(p.q, b, seq.nq, &attend.q) ||
      !RowsOf(p.k, b, seq.nk, &attend.k) || !RowsOf(p.v, b, seq.nk, &attend.v) ||
      !RowsOf(p.out, b, seq.nq, &attend.out) || p.lse.stride[2] != 1 || attend.lse_head < seq.nq) {
    return false;
  }
  if (g != nullptr &&
      (!RowsOf(g->dout, b, seq.nq, &attend.dout) || !RowsOf(g->dq, b, seq.nq, &attend.dq) ||
       !RowsOf(g->dk, b, seq.nk, &attend.dk) || !RowsOf(g->dv, b, seq.nk, &attend.dv) ||
       !IsAligned(p.q) || !IsAligned(p.k) || !IsAligned(p.v) || !IsAligned(g->dout))) {
    return false;
  }
  const double seconds = 2 * products / kShare / CudaOf(device_).tensor_flops;
  const double most = static_cast<double>(Hkv) * kSliceSeconds / seconds;
  if (most * kMostSlices < 1) return false;
  const auto take_heads = [&](double most_heads) {
    taken.kv_heads = DivisorOf(Hkv, most_heads);
    attend.Hkv = taken.kv_heads;
    attend.H = taken.kv_heads * (H / Hkv);
  };
  take_heads(most);
  while (Cudnn::MostWorkspaceBytes(attend) > kMostScratchBytes) {
    if (taken.kv_heads == 1) return false;
    take_heads(static_cast<double>(taken.kv_heads - 1));
  }
  taken.seconds = seconds * static_cast<double>(taken.kv_heads) / static_cast<double>(Hkv);
  // A plan may be compiled for half a second. Own kernels find the stream stopped, too.
  if (stream_.stopped()) return false;
  taken.plan = device_.cudnn()->PlanOf(attend);
  if (taken.plan == nullptr) return false;
  seqs_.push_back(std::move(taken));
  return true;
}

bool LibraryAttention::MayDoubt(CudaDevice& device, const AttendParams& params,
                                std::span<const LibraryProblem> problems) {
  return std::ranges::any_of(problems, [&](const LibraryProblem& problem) {
    return (problem.gradient != nullptr || problem.forward->lse_low.given() ||
            device.uses_cudnn_in_bands()) &&
           MayTake(device, params, problem);
  });
}

DeviceStatus LibraryAttention::Plan(CudaDevice& device, Stream& stream, const AttendParams& params,
                                    std::span<const LibraryProblem> problems) {
  int64_t bytes = 0;
  for (const LibraryProblem& problem : problems) {
    if (MayTake(device, params, problem)) bytes = std::max(bytes, MostBytes(problem));
  }
  if (bytes == 0) return {};
  const auto workspace = TakeShared(stream, Share(bytes + Cudnn::kWorkspaceAlign));
  return workspace == nullptr ? NoMemory(stream) : DeviceStatus();
}

DeviceStatus LibraryAttention::Run(bool* has_failed) {
  *has_failed = false;
  if (seqs_.empty()) return {};
  // What one call needs, as they run one after another.
  int64_t bytes = 0;
  for (const LibrarySeq& seq : seqs_) bytes = std::max(bytes, Cudnn::WorkspaceBytes(*seq.plan));
  const auto buffer = TakeShared(stream_, Share(bytes + Cudnn::kWorkspaceAlign));
  if (buffer == nullptr) return NoMemory(stream_);
  void* const workspace = reinterpret_cast<void*>(
      RoundUp(reinterpret_cast<intptr_t>(buffer->data()), Cudnn::kWorkspaceAlign));
  for (const LibrarySeq& seq : seqs_) {
    DeviceStatus status = Call(seq, workspace, has_failed);
    if (!status.ok() || *has_failed) return status;
  }
  return {};
}

DeviceStatus LibraryAttention::Call(const LibrarySeq& seq, void* workspace, bool* has_failed) {
  const AttendProblem& p = *seq.problem.forward;
  const AttendGradProblem* const g = seq.problem.gradient;
  const int64_t Hkv = p.k.shape[1], group = p.q.shape[1] / Hkv;
  for (int64_t head = 0; head < Hkv; head += seq.kv_heads) {
    if (stream_.stopped()) return {DeviceStatus::Code::kStopped, "run: stopped"};
    const auto at = [&](const View& view, int64_t h) {
      return view.As<std::byte>() +
             (seq.b * view.stride[0] + h * view.stride[1]) * SizeOf(view.dtype);
    };
    DnnCall call{.q = at(p.q, head * group),
                 .k = at(p.k, head),
                 .v = at(p.v, head),
                 .out = at(p.out, head * group),
                 .lse = at(p.lse, head * group),
                 .scale = static_cast<float>(params_.scale),
                 .before = seq.band.before,
                 .after = seq.band.after};
    if (g != nullptr) {
      call.dout = at(g->dout, head), call.dq = at(g->dq, head);
      call.dk = at(g->dk, head), call.dv = at(g->dv, head);
    }
    CudaQueue& queue = QueueOf(stream_);
    *has_failed = !device_.cudnn()->Attend(*seq.plan, call, workspace, queue.stream());
    if (*has_failed) {
      // Of the device itself, which own kernels would meet again?
      const std::string failure = device_.failure();
      if (failure.empty()) return {};
      return {DeviceStatus::Code::kFailed, "attend: " + failure};
    }
    queue.cuda_progress().Add(seq.seconds);
  }
  return {};
}

}  // namespace attnd::cuda
