#include "kernels/cuda/attend/attend_patterns.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_queue.h"
#include "kernels/device/device.h"

namespace attnd::cuda {

namespace {

// On the host, for `tiles` of the patterns of a sequence. Seen on one core: 2 to 7 us a mask, 17 us
// for the constants of a tile.
double SecondsOf(const AttendSeq& seq, double tiles) {
  constexpr double kMaskSeconds = 5e-6, kTermByteSeconds = 1e-9;
  const double terms =
      kTermByteSeconds * static_cast<double>(DevicePattern::TermBytes(seq.term_bytes)) * tiles;
  // Of masks that are never stored the seconds are known.
  if (seq.mask_seconds > 0) return terms + seq.mask_seconds / seq.visible_tiles * tiles;
  // Where data decide: mostly all of a pattern are stored, at worst none.
  constexpr double kComputedShare = 0.02;
  return terms + (seq.is_counted ? 0 : kMaskSeconds * kComputedShare * tiles);
}

}  // namespace

AttendPatterns::AttendPatterns(Stream& stream, bool is_grad,
                               const std::shared_ptr<AttendKept>& kept)
    : stream_(stream),
      has_keys_(is_grad || kept != nullptr),
      computed_(kept != nullptr && kept->of_device != nullptr
                    ? std::static_pointer_cast<Computed>(kept->of_device)
                    : std::make_shared<Computed>()),
      is_planned_(is_grad && !computed_->planned.empty()) {
  if (kept != nullptr) kept->of_device = computed_;
}

void AttendPatterns::Plan(const AttendProblem& problem) {
  int64_t left = DevicePattern::MostBytes(stream_.device());
  for (const AttendSeq& seq : problem.seqs) {
    if (seq.nq == 0 || seq.patterns == 0) continue;
    constexpr int64_t kCopyBytes = 8 << 10;
    // Where data decide masks may be computed, and terms of any pattern; what others store is as
    // large as on the host.
    const bool stores_all = seq.is_counted && seq.term_bytes == 0;
    if (stores_all || seq.is_listed) {
      if (seq.pattern_bytes == 0) continue;
      copy_shares_ += Share((seq.pattern_bytes + seq.patterns * kCopyBytes) / 8 * 9);
      continue;
    }
    if (is_planned_) continue;
    // More than what is left is refused before it is computed.
    const int64_t most = DevicePattern::MostTiles(left, seq.term_bytes);
    const bool is_most = seq.pattern_tiles > static_cast<double>(most);
    const int64_t tiles = is_most ? most : static_cast<int64_t>(std::ceil(seq.pattern_tiles));
    const DevicePattern::Cost cost = DevicePattern::CostOf(tiles, seq.patterns, seq.term_bytes);
    const int64_t computed = is_most ? left : std::min(left, cost.device_bytes);
    left -= computed;
    // What each stores as it is: up to 8 masks a row of tiles, 1024 more and 256 terms.
    constexpr int64_t kRowBytes = 8 << 10, kMaskBytes = int64_t{1} << 20, kSlotBytes = 32;
    constexpr double kManyTiles = 1 << 20;
    const double of_one = seq.pattern_tiles / static_cast<double>(seq.patterns);
    const int64_t stored = std::min(
        DevicePattern::CostOf(static_cast<int64_t>(std::ceil(std::min(of_one, kManyTiles))), 1,
                              seq.term_bytes)
            .device_bytes,
        DivideUp(seq.nq, kTile) * kRowBytes + kMaskBytes +
            256 * DevicePattern::TermBytes(seq.term_bytes));
    const int64_t others = stored + kSlotBytes * (seq.nq + seq.nk) + kCopyBytes;
    // A size class may take an eighth more.
    computed_shares_ += Share(computed / 8 * 9) + Share(seq.patterns * (others / 8 * 9));
    computed_host_bytes_ = std::max(computed_host_bytes_, cost.host_bytes);
    computed_seconds_ += SecondsOf(seq, static_cast<double>(tiles));
  }
}

DeviceStatus AttendPatterns::CopyOf(const Pattern& pattern, const AttendSeq& seq, int64_t left,
                                    std::shared_ptr<const DevicePattern>* copy) {
  if (!IsComputed(pattern)) {
    *copy = DevicePattern::Of(stream_, pattern);
    if (*copy != nullptr) {
      std::shared_ptr<void>& counted = kept_[copy->get()];
      if (counted == nullptr) counted = stream_.workspace().Count((*copy)->bytes());
      return {};
    }
    return stream_.stopped()
               ? DeviceStatus(DeviceStatus::Code::kStopped, "run: stopped")
               : DeviceStatus(DeviceStatus::Code::kNoMemory, "cuda: no memory for a pattern");
  }
  // Of the lengths of the sequence alone: what it computes does not depend on others.
  const Covered covered = {&pattern, seq.nq, seq.nk};
  const auto known = computed_->copies.find(covered);
  if (known != computed_->copies.end()) {
    *copy = known->second;
    return {};
  }
  const auto tiles = stored_.extract(covered);
  DeviceStatus status;
  *copy = DevicePattern::Computed(stream_, pattern, &tiles.mapped(), seq.term_bytes, has_keys_,
                                  left, &status);
  if (*copy != nullptr) computed_->copies[covered] = *copy;
  return status;
}

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
  if (stream_.is_dry()) {
    Plan(problem);
    return {};
  }
  if (DeviceStatus status = CheckSize(problem); !status.ok()) return status;
  Budget budget = {DevicePattern::MostBytes(stream_.device()), {}};
  seqs_.resize(first + count, SeqData{});
  places_.resize(first + count);
  for (size_t b = 0; b < count; ++b) {
    const AttendSeq& seq = problem.seqs[b];
    SeqData& data = seqs_[first + b];
    data.nq = seq.nq;
    data.nk = seq.nk;
    data.offset = seq.offset;
    if (DeviceStatus status = AddPatterns(seq, H, &budget, &places_[first + b]); !status.ok()) {
      return status;
    }
    const Place& place = places_[first + b];
    if (place.copy >= 0 && place.head < 0) data.pattern = copies_.back()->data();
  }
  return {};
}

DeviceStatus AttendPatterns::TooLarge(int64_t left) const {
  const Device& device = stream_.device();
  return DevicePattern::TooLarge(device, DevicePattern::MostBytes(device) - left);
}

DeviceStatus AttendPatterns::CheckSize(const AttendProblem& problem) {
  int64_t left = DevicePattern::MostBytes(stream_.device());
  std::set<Covered> counted;
  for (const AttendSeq& seq : problem.seqs) {
    const int64_t heads = seq.nq == 0 ? 0 : std::max<int64_t>(1, std::ssize(seq.head_patterns));
    for (int64_t h = 0; h < heads; ++h) {
      const Pattern* pattern = seq.Of(h);
      if (pattern == nullptr || !IsComputed(*pattern)) continue;
      const Covered covered = {pattern, seq.nq, seq.nk};
      if (!counted.insert(covered).second) continue;
      const auto copy = computed_->copies.find(covered);
      if (copy != computed_->copies.end()) {
        left -= copy->second->computed_bytes();
      } else {
        const auto& [_, tiles] = *stored_.try_emplace(covered, *pattern, seq.nq, seq.nk).first;
        left -= DevicePattern::LeastBytes(tiles, seq.term_bytes);
      }
      if (stream_.stopped()) return {DeviceStatus::Code::kStopped, "run: stopped"};
      if (left < 0) return TooLarge(left);
    }
  }
  return {};
}

DeviceStatus AttendPatterns::AddPatterns(const AttendSeq& seq, int64_t H, Budget* budget,
                                         Place* place) {
  const bool counts = seq.pair_count != nullptr && seq.pair_count->Claim();
  const bool has_own = !seq.head_patterns.empty();
  if (seq.nq == 0 || (!has_own && seq.pattern == nullptr)) return {};
  place->copy = static_cast<int64_t>(copies_.size());
  if (has_own) place->head = static_cast<int64_t>(by_head_.size());
  for (int64_t h = 0; h < (has_own ? H : 1); ++h) {
    const Pattern* pattern = seq.Of(h);
    if (has_own) by_head_.push_back(nullptr);
    const auto& copy = copies_.emplace_back();
    if (pattern == nullptr) continue;
    if (DeviceStatus status = CopyOf(*pattern, seq, budget->left, &copies_.back()); !status.ok()) {
      return status;
    }
    // Heads and sequences share what is equal.
    if (budget->counted.insert(copy.get()).second) budget->left -= copy->computed_bytes();
    if (budget->left < 0) return TooLarge(budget->left);
    if (has_own) by_head_.back() = copy->data();
    has_terms_.back() = has_terms_.back() || copy->has_terms();
    if (counts) seq.pair_count->Add(copy->computed_pairs() * (has_own ? 1 : H));
  }
  return {};
}

DeviceStatus AttendPatterns::Upload() {
  // The table of heads lies behind that of sequences, which points to it.
  table_.buffer = TakeShared(stream_, shares_);
  if (table_.buffer == nullptr) return NoMemory(stream_);
  if (stream_.is_dry()) {
    // Vectors that grew, and the owners of the patterns.
    stream_.work().host_bytes += 12 * shares_ + computed_host_bytes_;
    stream_.work().seconds += computed_seconds_;
    if (copy_shares_ > 0) planned_ = TakeShared(stream_, copy_shares_);
    if (computed_shares_ > 0) computed_->planned.push_back(TakeShared(stream_, computed_shares_));
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
  return StatusOf(error, "copy of a table");
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
