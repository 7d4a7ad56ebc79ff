// The patterns and sequences of one call of attend in device memory, for both directions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/cuda/attend/attend_params.h"
#include "kernels/cuda/attend/device_pattern.h"
#include "kernels/cuda/attend/stored_tiles.h"
#include "kernels/cuda/launch.h"
#include "kernels/device/attend.h"

namespace attnd::cuda {

// First Add all problems, then Upload. When it ends everything that reads them has been asked for.
// On a dry stream only the memory counts.
class AttendPatterns {
 public:
  // Copies of computed patterns stay in `kept` (null: they end with this), so that the gradient
  // computes them no second time.
  AttendPatterns(Stream& stream, bool is_grad, const std::shared_ptr<AttendKept>& kept);
  ~AttendPatterns();
  AttendPatterns(const AttendPatterns&) = delete;
  AttendPatterns& operator=(const AttendPatterns&) = delete;

  // Also counts the pairs of computed masks (AttendSeq::pair_count).
  DeviceStatus Add(const AttendProblem& problem);
  DeviceStatus Upload();

  // Of problem `n` in the order of Add, in device memory. Not on a dry stream.
  const SeqData* Seqs(size_t n) const { return table_.As<SeqData>() + first_[n]; }
  // The pattern of a head; null: there is none, as on a dry stream. Pointers are of the device.
  const PatternData* OnHost(size_t n, int64_t b, int64_t h) const;
  const DevicePattern* Of(size_t n, int64_t b, int64_t h) const;
  // Whether a pattern of the problem has constants or labels.
  bool has_terms(size_t n) const { return has_terms_[n]; }

 private:
  // Of a sequence: where its pattern, or the first of those of its heads, stands.
  struct Place {
    int64_t copy = -1;  // in copies_; -1: it has no pattern
    int64_t head = -1;  // in by_head_; -1: all heads have one pattern
  };

  // On a dry stream: what copies of patterns may take.
  void Plan(const AttendProblem& problem);
  // What computed tiles of a problem may still take, and the copies that have taken their part.
  struct Budget {
    int64_t left;
    std::set<const DevicePattern*> counted;
  };
  // What a copy of a computed pattern depends on: it, and the queries and keys that it covers.
  using Covered = std::tuple<const Pattern*, int64_t, int64_t>;
  struct Computed {
    std::map<Covered, std::shared_ptr<const DevicePattern>> copies;
    std::vector<std::shared_ptr<Buffer>> planned;  // on a dry stream: what they may take
  };
  DeviceStatus TooLarge(int64_t left) const;
  // Before anything is computed: counts the tiles of all patterns, in stored_.
  DeviceStatus CheckSize(const AttendProblem& problem);
  DeviceStatus AddPatterns(const AttendSeq& seq, int64_t H, Budget* budget, Place* place);
  DeviceStatus CopyOf(const Pattern& pattern, const AttendSeq& seq, int64_t left,
                      std::shared_ptr<const DevicePattern>* copy);

  Stream& stream_;
  const bool has_keys_;
  std::shared_ptr<Computed> computed_;
  const bool is_planned_;  // the forward of a dry stream has planned computed_
  // Host memory follows from the sequences and patterns that there are, never from the number of
  // heads alone: a few bytes ask for 65536 heads of thousands of packed sequences.
  std::vector<size_t> first_;  // sequence of each problem
  std::vector<bool> has_terms_;
  std::vector<SeqData> seqs_;
  std::vector<Place> places_;  // of each sequence
  std::vector<const PatternData*> by_head_;
  std::vector<std::shared_ptr<const DevicePattern>> copies_;
  std::map<Covered, StoredTiles> stored_;  // of computed patterns, until they are copied
  // Of copies that stay with their patterns: what counts their memory while this lives.
  std::map<const DevicePattern*, std::shared_ptr<void>> kept_;
  int64_t shares_ = 0;  // of the table
  Table table_;
  // Of a dry stream.
  int64_t copy_shares_ = 0, computed_shares_ = 0, computed_host_bytes_ = 0;
  double computed_seconds_ = 0;
  std::shared_ptr<Buffer> planned_;
};

}  // namespace attnd::cuda
