#include "kernels/cuda/attend/attend_patterns.h"

#include <utility>

#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_queue.h"

namespace attnd::cuda {

DeviceStatus AttendPatterns::Add(const AttendProblem& problem) {
  const int64_t B = problem.q.shape[0], H = problem.q.shape[1];
  const size_t first = seqs_.size(), head_first = by_head_.size();
  first_.push_back(first);
  head_first_.push_back(head_first);
  heads_.push_back(H);
  has_terms_.push_back(false);
  shares_ += B * Share(static_cast<int64_t>(sizeof(SeqData) + H * sizeof(const PatternData*)));
  seqs_.resize(first + static_cast<size_t>(B), SeqData{});
  by_head_.resize(head_first + static_cast<size_t>(B * H), nullptr);
  if (stream_.is_dry()) return {};
  has_head_patterns_.resize(seqs_.size(), false);
  copies_.resize(by_head_.size());
  for (size_t b = 0; b < static_cast<size_t>(B); ++b) {
    const AttendSeq& seq = problem.seqs[b];
    SeqData& data = seqs_[first + b];
    data.nq = seq.nq;
    data.nk = seq.nk;
    data.offset = seq.offset;
    const bool counts = seq.pair_count != nullptr && seq.pair_count->Claim();
    const bool has_own = !seq.head_patterns.empty();
    has_head_patterns_[first + b] = has_own;
    for (int64_t h = 0; h < (has_own ? H : 1); ++h) {
      const Pattern* pattern = seq.Of(h);
      if (pattern == nullptr) continue;
      const size_t at = head_first + b * static_cast<size_t>(H) + static_cast<size_t>(h);
      copies_[at] = DevicePattern::Of(stream_, *pattern);
      if (copies_[at] == nullptr) {
        if (stream_.stopped()) return {DeviceStatus::Code::kStopped, "run: stopped"};
        return {DeviceStatus::Code::kNoMemory, "cuda: no memory for a pattern"};
      }
      has_terms_.back() = has_terms_.back() || copies_[at]->has_terms();
      if (counts) {
        const int64_t pairs = copies_[at]->ComputedPairs(*pattern, seq.nq, seq.nk);
        seq.pair_count->Add(has_own ? pairs : pairs * H);
      }
      if (has_own) {
        by_head_[at] = copies_[at]->data();
      } else {
        data.pattern = copies_[at]->data();
      }
    }
  }
  return {};
}

DeviceStatus AttendPatterns::Upload() {
  // The table of heads lies behind that of sequences, which points to it.
  std::vector<SeqData>& seqs = seqs_;
  table_.buffer = TakeShared(stream_, shares_);
  if (table_.buffer == nullptr) return NoMemory(stream_);
  if (stream_.is_dry()) {
    stream_.work().host_bytes += 4 * shares_;  // vectors that grew, and the owners of the patterns
    return {};
  }
  const auto* heads =
      reinterpret_cast<const PatternData* const*>(table_.As<SeqData>() + seqs.size());
  for (size_t n = 0; n < first_.size(); ++n) {
    const size_t end = n + 1 < first_.size() ? first_[n + 1] : seqs.size();
    for (size_t s = first_[n]; s < end; ++s) {
      if (!has_head_patterns_[s]) continue;
      seqs[s].head_patterns =
          heads + head_first_[n] + (s - first_[n]) * static_cast<size_t>(heads_[n]);
    }
  }
  CudaQueue& queue = QueueOf(stream_);
  const std::span<const std::byte> pieces[] = {BytesOf(seqs), BytesOf(by_head_)};
  const cudaError_t error =
      queue.staging().Send(table_.buffer->data(), pieces, [] { return true; });
  queue.cuda_progress().Add(0);
  return StatusOf(error, "copy of a table");
}

AttendPatterns::~AttendPatterns() {
  if (stream_.is_dry()) return;
  for (auto& copy : copies_) DevicePattern::Hold(stream_, std::move(copy));
}

const DevicePattern* AttendPatterns::Of(size_t n, int64_t b, int64_t h) const {
  if (copies_.empty()) return nullptr;
  const size_t seq = first_[n] + static_cast<size_t>(b);
  const int64_t head = has_head_patterns_[seq] ? h : 0;
  return copies_[head_first_[n] + static_cast<size_t>(b * heads_[n] + head)].get();
}

const PatternData* AttendPatterns::OnHost(size_t n, int64_t b, int64_t h) const {
  const DevicePattern* pattern = Of(n, b, h);
  return pattern == nullptr ? nullptr : &pattern->on_host();
}

}  // namespace attnd::cuda
