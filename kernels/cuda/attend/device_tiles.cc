#include "kernels/cuda/attend/device_tiles.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/device/device.h"

namespace attnd::cuda {
namespace {

constexpr size_t kPairs = kTile * kTile;
constexpr size_t kKnownMasks = 4096, kKnownTerms = 256, kPendingMasks = 4096;
constexpr int64_t kMaskBytes = sizeof(TileMask);

// Bit k of word q from bit q of word k (Hacker's Delight, section 7-3).
void Transpose(const TileMask& mask, uint64_t* words) {
  std::copy(mask.begin(), mask.end(), words);
  uint64_t keep = 0x00000000ffffffffull;
  for (int64_t step = 32; step > 0; step /= 2, keep ^= keep << step) {
    for (int64_t k = 0; k < kTile; k = (k + step + 1) & ~step) {
      const uint64_t swapped = ((words[k] >> step) ^ words[k + step]) & keep;
      words[k] ^= swapped << step;
      words[k + step] ^= swapped;
    }
  }
}

template <class T>
void TransposeTile(const std::vector<T>& by_key, T* by_query) {
  for (int64_t k = 0; k < kTile; ++k) {
    for (int64_t q = 0; q < kTile; ++q) by_query[q * kTile + k] = by_key[k * kTile + q];
  }
}

template <class T>
size_t HashOf(const T* values, size_t count) {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(values), count * sizeof(T)});
}

size_t HashOf(const TileTerms& terms) {
  return 3 * HashOf(terms.bias.data(), terms.bias.size()) +
         HashOf(terms.labels.data(), terms.labels.size());
}

// The number of `value` among those that are known; -1: it is new, and known as `next` from now on.
template <class T>
int32_t Find(const T& value, size_t hash, int32_t next, size_t most,
             std::vector<std::pair<int32_t, T>>* known,
             std::unordered_multimap<size_t, int32_t>* places) {
  const auto [begin, end] = places->equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    const auto& [number, other] = (*known)[at->second];
    if (other == value) return number;
  }
  if (known->size() < most) {
    places->emplace(hash, static_cast<int32_t>(known->size()));
    known->emplace_back(next, value);
  }
  return -1;
}

}  // namespace

DevicePattern::Cost DeviceTiles::CostOf(int64_t tiles, int64_t patterns, int64_t term_bytes) {
  constexpr int64_t kPlace = 64;  // of a hash table
  const int64_t known = std::min<int64_t>(tiles, kKnownMasks);
  const int64_t terms = term_bytes > 0 ? tiles : 0;
  const int64_t known_terms = std::min<int64_t>(terms, kKnownTerms);
  // Known ones in a vector that grew, pending ones beside them.
  return {.device_bytes =
              tiles * kMaskBytes + (terms + (terms > 0 ? patterns * kTermsABlock : 0)) *
                                       (term_bytes + static_cast<int64_t>(sizeof(TermsData))),
          .host_bytes = known * (4 * kMaskBytes + kPlace) + known_terms * (term_bytes + kPlace) +
                        terms * 3 * static_cast<int64_t>(sizeof(TermsData))};
}

void* DeviceTiles::Allocate(int64_t bytes) {
  is_too_large_ = bytes > most_bytes_ - bytes_;
  if (is_too_large_) return nullptr;
  bytes_ += bytes;
  std::shared_ptr<Buffer> buffer = memory_ == Memory::kWorkspace
                                       ? stream_.workspace().Allocate(bytes)
                                       : stream_.device().memory().Allocate(bytes, stream_.queue());
  if (buffer == nullptr) return nullptr;
  return buffers_.emplace_back(std::move(buffer))->data();
}

bool DeviceTiles::Take(const Pattern& pattern, int64_t more) {
  const int64_t count = static_cast<int64_t>(pattern.masks.size()) + more;
  if (count > 0) masks_ = static_cast<uint64_t*>(Allocate(count * kMaskBytes));
  if (count > 0 && masks_ == nullptr) return false;
  return std::ranges::all_of(pattern.masks, [&](const auto& mask) { return Append(mask); }) &&
         std::ranges::all_of(pattern.terms, [&](const auto& terms) { return Append(terms); });
}

bool DeviceTiles::Append(const TileMask& mask) {
  pending_.resize(pending_.size() + kTile);
  Transpose(mask, pending_.data() + pending_.size() - kTile);
  ++mask_count_;
  return pending_.size() < kPendingMasks * kTile || Flush();
}

bool DeviceTiles::Flush() {
  if (pending_.empty()) return true;
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(pending_))};
  const bool is_copied =
      stream_.device().Upload(stream_, masks_ + copied_masks_ * kTile, pieces, nullptr).ok();
  copied_masks_ = mask_count_;
  pending_.clear();
  return is_copied;
}

template <class T>
bool DeviceTiles::Store(const std::vector<T>& by_key, const T** stored) {
  if (by_key.empty()) return true;
  constexpr int64_t kBytes = kPairs * sizeof(T);
  if (block_left_ < kBytes) {
    const int64_t bytes = TermsABlock() * kBytes;
    block_ = static_cast<std::byte*>(Allocate(bytes));
    block_left_ = block_ == nullptr ? 0 : bytes;
    if (block_ == nullptr) return false;
  }
  std::vector<T> by_query(kPairs);
  TransposeTile(by_key, by_query.data());
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span<const T>(by_query))};
  *stored = reinterpret_cast<const T*>(block_);
  const bool is_copied = stream_.device().Upload(stream_, block_, pieces, nullptr).ok();
  block_ += kBytes;
  block_left_ -= kBytes;
  return is_copied;
}

bool DeviceTiles::Append(const TileTerms& terms) {
  TermsData& data = terms_.emplace_back(TermsData{});
  return Store(terms.bias, &data.bias) && Store(terms.labels, &data.labels);
}

int32_t DeviceTiles::AddMask(const TileMask& mask) {
  const auto next = static_cast<int32_t>(mask_count_);
  const int32_t known =
      Find(mask, HashOf(mask.data(), mask.size()), next, kKnownMasks, &known_masks_, &mask_places_);
  if (known >= 0) return known;
  return Append(mask) ? next : kFailed;
}

int32_t DeviceTiles::AddTerms(const TileTerms& terms) {
  const auto next = static_cast<int32_t>(terms_.size());
  const int32_t known = Find(terms, HashOf(terms), next, kKnownTerms, &known_terms_, &term_places_);
  if (known >= 0) return known;
  return Append(terms) ? next : kFailed;
}

}  // namespace attnd::cuda
