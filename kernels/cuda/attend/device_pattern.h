// A pattern in the memory of a CUDA device.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/attend/pattern_data.h"
#include "kernels/device/memory.h"
#include "kernels/device/pattern.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

class DeviceTiles;
class StoredTiles;

// What a pattern computes (Run::kComputed) is stored here: equal masks mostly once, tiles that show
// nothing not at all. Of one that computes nothing there is one copy for a device, made in work of
// the stream that needs it first and released with the pattern, whose cache is bounded: each launch
// that reads it counts its memory as workspace. Of one that computes, which keeps less on the host
// than its tiles take here, a launch makes a copy of its own in its workspace, for the gradient
// that may follow it, too (AttendKept).
class DevicePattern {
 public:
  // The copy of a pattern that computes nothing, which `stream` may use. Until the work that the
  // stream has been asked for when Hold is called has passed, the memory stays, whatever happens to
  // the pattern. Null: there is no memory. REQUIRES: not dry.
  static std::shared_ptr<const DevicePattern> Of(Stream& stream, const Pattern& pattern);
  // Call it once all work that reads the copy has been asked for.
  static void Hold(Stream& stream, std::shared_ptr<const DevicePattern> copy);

  // Of a tile of terms with elements of so many bytes.
  static int64_t TermBytes(int64_t element_bytes) { return kTile * kTile * element_bytes; }
  // What copies of so many patterns take of computed tiles, all together; term_bytes:
  // AttendSeq::term_bytes.
  struct Cost {
    int64_t device_bytes, host_bytes;
  };
  static Cost CostOf(int64_t tiles, int64_t patterns, int64_t term_bytes);
  // The most tiles of one pattern that take so much of a device.
  static int64_t MostTiles(int64_t device_bytes, int64_t term_bytes);
  // The most that patterns of one problem that compute may take of a device: a sixteenth of it.
  static int64_t MostBytes(const Device& device);
  // `counted`: what it would take, as far as it was counted.
  static DeviceStatus TooLarge(const Device& device, int64_t counted);
  // What counts towards it before anything is computed; term_bytes: AttendSeq::term_bytes.
  static int64_t LeastBytes(const StoredTiles& tiles, int64_t term_bytes);
  // A copy of a pattern that computes, of its `tiles` (which it fills in), in the workspace of
  // `stream`. Without `has_keys` it has no by_key, which gradients alone read. May take seconds of
  // the host; ends early where the run is stopped. Null, and *status: there is no memory, it would
  // take more than `most_bytes`, or it was stopped. REQUIRES: not dry.
  static std::shared_ptr<const DevicePattern> Computed(Stream& stream, const Pattern& pattern,
                                                       StoredTiles* tiles, int64_t term_bytes,
                                                       bool has_keys, int64_t most_bytes,
                                                       DeviceStatus* status);

  // In device memory.
  const PatternData* data() const { return data_; }
  // The same, to read on the host: its pointers are of the device.
  const PatternData& on_host() const { return on_host_; }
  // Visible tiles of a row of tiles of queries, of keys, at most.
  int64_t most_of_query() const { return most_of_query_; }
  int64_t most_of_key() const { return most_of_key_; }
  // Of every shares-th row of tiles of keys together, at most, or more; shares <= kMostKeyShares.
  static constexpr int kMostKeyShares = 8;
  int64_t MostOfKeyShare(int shares) const;
  bool has_terms() const { return has_terms_; }  // constants or labels
  // Visible pairs of one head of tiles whose masks are computed.
  int64_t computed_pairs() const { return computed_pairs_; }
  // What counts towards MostBytes.
  int64_t computed_bytes() const { return computed_bytes_; }
  int64_t bytes() const;  // of device memory

 private:
  // `tiles` keeps the memory of masks and terms.
  bool Make(Stream& stream, const Pattern& pattern, const TileRows& by_query_rows,
            const TileRows& by_key_rows, DeviceTiles* tiles);

  std::vector<std::shared_ptr<Buffer>> buffers_;
  std::shared_ptr<WorkProgress> made_by_;
  PatternData on_host_ = {};
  const PatternData* data_ = nullptr;
  int64_t most_of_query_ = 0, most_of_key_ = 0;
  std::array<int64_t, kMostKeyShares> of_key_shares_ = {};
  bool has_terms_ = false;
  int64_t computed_pairs_ = 0, computed_bytes_ = 0;
};

}  // namespace attnd::cuda
