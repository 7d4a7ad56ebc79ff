// Masks and terms of the tiles of a pattern, on their way to device memory.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/attend/device_pattern.h"
#include "kernels/cuda/attend/pattern_data.h"
#include "kernels/cuda/attend/stored_tiles.h"
#include "kernels/device/memory.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

// Copies them by the thousand, so that the host keeps no more. Of tiles that are equal the first
// few thousand are stored once. Single-threaded.
class DeviceTiles final : public TileStore {
 public:
  // Of the device, to be kept with a pattern; of the workspace of the stream, for one launch.
  enum class Memory { kDevice, kWorkspace };

  // They take at most `most_bytes`.
  DeviceTiles(Stream& stream, Memory memory, int64_t most_bytes)
      : stream_(stream), memory_(memory), most_bytes_(most_bytes) {}

  // Of what `buffers` will hold; null: as Take.
  void* Allocate(int64_t bytes);

  // Adds what the pattern stores, under its numbers; `more` masks may follow. False: no memory, or
  // more than most_bytes (is_too_large).
  bool Take(const Pattern& pattern, int64_t more);
  int32_t AddMask(const TileMask& mask) override;
  int32_t AddTerms(const TileTerms& terms) override;
  // After the last one. False: a copy failed.
  bool Flush();

  const uint64_t* masks() const { return masks_; }
  const std::vector<TermsData>& terms() const { return terms_; }
  const std::vector<std::shared_ptr<Buffer>>& buffers() const { return buffers_; }
  int64_t bytes() const { return bytes_; }
  bool is_too_large() const { return is_too_large_; }

  // Of so many masks, and as many terms if these have bytes, of so many patterns; host_bytes: what
  // is known of the first ones.
  static DevicePattern::Cost CostOf(int64_t tiles, int64_t patterns, int64_t term_bytes);

 private:
  static constexpr int64_t kTermsABlock = 64;

  // Terms come in blocks.
  int64_t TermsABlock() const { return memory_ == Memory::kWorkspace ? kTermsABlock : 1; }
  bool Append(const TileMask& mask);
  bool Append(const TileTerms& terms);
  template <class T>
  bool Store(const std::vector<T>& by_key, const T** stored);

  Stream& stream_;
  const Memory memory_;
  const int64_t most_bytes_;
  int64_t bytes_ = 0;
  bool is_too_large_ = false;
  std::vector<std::shared_ptr<Buffer>> buffers_;
  uint64_t* masks_ = nullptr;
  int64_t mask_count_ = 0, copied_masks_ = 0;
  std::vector<uint64_t> pending_;  // masks that are not copied yet
  std::vector<TermsData> terms_;
  std::byte* block_ = nullptr;  // of memory for terms
  int64_t block_left_ = 0;
  // The first ones, and their numbers by hash.
  std::vector<std::pair<int32_t, TileMask>> known_masks_;
  std::vector<std::pair<int32_t, TileTerms>> known_terms_;
  std::unordered_multimap<size_t, int32_t> mask_places_, term_places_;
};

}  // namespace attnd::cuda
