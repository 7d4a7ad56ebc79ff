// A pattern in the memory of a CUDA device.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/attend/pattern_data.h"
#include "kernels/device/memory.h"
#include "kernels/device/pattern.h"
#include "kernels/device/stream.h"

namespace attnd::cuda {

// Made once for a pattern and a device, in work of the stream that needs it first; released with
// the pattern. What the pattern computes (Run::kComputed) is stored here: equal masks once, tiles
// that show nothing not at all. That may take seconds of the host; it ends early where the stream
// is stopped.
class DevicePattern {
 public:
  // The copy of `pattern` that `stream` may use. Until the work that the stream has been asked for
  // when Hold is called has passed, the memory stays, whatever happens to the pattern. Null: there
  // is no memory, or the stream was stopped. REQUIRES: not dry.
  static std::shared_ptr<const DevicePattern> Of(Stream& stream, const Pattern& pattern);
  // Call it once all work that reads the copy has been asked for.
  static void Hold(Stream& stream, std::shared_ptr<const DevicePattern> copy);

  // In device memory.
  const PatternData* data() const { return data_; }
  // The same, to read on the host: its pointers are of the device.
  const PatternData& on_host() const { return on_host_; }
  // Most visible tiles of a row of query tiles, of key tiles.
  int64_t longest_by_query() const { return longest_[0]; }
  int64_t longest_by_key() const { return longest_[1]; }
  bool has_terms() const { return has_terms_; }  // constants or labels
  // Visible pairs of one head of tiles whose masks are computed, of queries and keys below nq, nk.
  int64_t ComputedPairs(const Pattern& pattern, int64_t nq, int64_t nk) const;

 private:
  static std::shared_ptr<const DevicePattern> New(Stream& stream, const Pattern& pattern);

  std::shared_ptr<Buffer> buffer_;
  std::shared_ptr<WorkProgress> made_by_;
  PatternData on_host_ = {};
  const PatternData* data_ = nullptr;
  int64_t longest_[2] = {0, 0};
  bool has_terms_ = false;
  int64_t computed_pairs_ = 0;  // without clipping
};

}  // namespace attnd::cuda
