#include "kernels/cuda/attend/attend_patterns.h"

#include <utility>

#include "kernels/cuda/cuda_queue.h"

namespace attnd::cuda {

DeviceStatus AttendPatterns::Add(const AttendProblem& problem) {
  const int64_t H = problem.q.shape[1];
  const size_t first = seqs_.size(), count = problem.seqs.size();
  first_.push_back(first);
  has_terms_.push_back(false);
  // Whether heads will have patterns of their own a plan does not know; without queries none has.
  for (const AttendSeq& seq : problem.seqs) {
    const int64_t heads = seq.nq > 0 ? H : 0;
    shares_ += seq.count * Share(static_cast<int64_t>(sizeof(SeqData)) +
                                 heads * static_cast<int64_t>(sizeof(const PatternData*)));
  }
  if (stream_.is_dry()) return {};
  seqs_.resize(first + count, SeqData{});
  places_.resize(first + count);
  for (size_t b = 0; b < count; ++b) {
    const AttendSeq& seq = problem.seqs[b];
    SeqData& data = seqs_[first + b];
    data.nq = seq.nq;
    data.nk = seq.nk;
    data.offset = seq.offset;
    const bool counts = seq.pair_count != nullptr && seq.pair_count->Claim();
    const bool has_own = !seq.head_patterns.empty();
    if (seq.nq == 0 || (!has_own && seq.pattern == nullptr)) continue;
    Place& place = places_[first + b];
    place.copy = static_cast<int64_t>(copies_.size());
    if (has_own) place.head = static_cast<int64_t>(by_head_.size());
    for (int64_t h = 0; h < (has_own ? H : 1); ++h) {
      const Pattern* pattern = seq.Of(h);
      const auto& copy =
          copies_.emplace_back(pattern == nullptr ? nullptr : DevicePattern::Of(stream_, *pattern));
      if (has_own) by_head_.push_back(copy == nullptr ? nullptr : copy->data());
      if (pattern == nullptr) continue;
      if (copy == nullptr) {
        if (stream_.stopped()) return {DeviceStatus::Code::kStopped, "run: stopped"};
        return {DeviceStatus::Code::kNoMemory, "cuda: no memory for a pattern"};
      }
      has_terms_.back() = has_terms_.back() || copy->has_terms();
      if (counts) {
        const int64_t pairs = copy->ComputedPairs(*pattern, seq.nq, seq.nk);
        seq.pair_count->Add(has_own ? pairs : pairs * H);
      }
      if (!has_own) data.pattern = copy->data();
    }
  }
  return {};
}

DeviceStatus AttendPatterns::Upload() {
  // The table of heads lies behind that of sequences, which points to it.
  table_.buffer = TakeShared(stream_, shares_);
  if (table_.buffer == nullptr) return NoMemory(stream_);
  if (stream_.is_dry()) {
    stream_.work().host_bytes += 12 * shares_;  // vectors that grew, and the owners of the patterns
    return {};
  }
  const auto* heads =
      reinterpret_cast<const PatternData* const*>(table_.As<SeqData>() + seqs_.size());
  for (size_t s = 0; s < seqs_.size(); ++s) {
    if (places_[s].head >= 0) seqs_[s].head_patterns = heads + places_[s].head;
  }
  CudaQueue& queue = QueueOf(stream_);
  const std::span<const std::byte> pieces[] = {BytesOf(seqs_), BytesOf(by_head_)};
  const cudaError_t error =
      queue.staging().Send(table_.buffer->data(), pieces, [] { return true; });
  queue.cuda_progress().Add(0);
  return error == cudaSuccess ? DeviceStatus()
                              : DeviceStatus(DeviceStatus::Code::kFailed, "cuda: copy of a table");
}

AttendPatterns::~AttendPatterns() {
  if (stream_.is_dry()) return;
  for (auto& copy : copies_) DevicePattern::Hold(stream_, std::move(copy));
}

const DevicePattern* AttendPatterns::Of(size_t n, int64_t b, int64_t h) const {
  if (places_.empty()) return nullptr;
  const Place& place = places_[first_[n] + static_cast<size_t>(b)];
  if (place.copy < 0) return nullptr;
  return copies_[static_cast<size_t>(place.copy + (place.head < 0 ? 0 : h))].get();
}

const PatternData* AttendPatterns::OnHost(size_t n, int64_t b, int64_t h) const {
  const DevicePattern* pattern = Of(n, b, h);
  return pattern == nullptr ? nullptr : &pattern->on_host();
}

}  // namespace attnd::cuda
