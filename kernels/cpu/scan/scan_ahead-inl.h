// Rows that the next block of a scan will read or write, fetched to L2 while this one computes: a
// block is too short for the hardware prefetcher to foresee the next.
#if defined(ATTND_CPU_SCAN_AHEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_AHEAD_INL_H_
#undef ATTND_CPU_SCAN_AHEAD_INL_H_
#else
#define ATTND_CPU_SCAN_AHEAD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/core/view.h"
#include "kernels/cpu/scan/scan_item.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// Rows [n, n + count) of head h of sequence b.
struct RowsOf {
  const View& view;
  int64_t b, h, n, count;

  std::byte* Row(int64_t i) const {
    return view.As<std::byte>() + SizeOf(view.dtype) * (b * view.stride[0] + h * view.stride[1] +
                                                        (n + i) * view.stride[2]);
  }
  float& Float(int64_t i) const {  // element i of a [B,H,N] float32 tensor
    return *reinterpret_cast<float*>(Row(i));
  }
};

class Ahead {
 public:
  // Drops the lines that are left.
  void Clear() { at_ = runs_ = run_ = 0; }

  void Add(const RowsOf& rows) {
    if (rows.count == 0 || !rows.view.given() || runs_ == kMost) return;
    Run& run = list_[runs_++];
    run.row = rows.Row(0);
    run.stride = rows.view.stride[2] * SizeOf(rows.view.dtype);
    run.row_bytes = rows.view.shape[3] * SizeOf(rows.view.dtype);
    run.rows = rows.count;
  }

  // The next lines: as many as a core can have in flight; more would stall it.
  void Some() {
    for (int64_t i = 0; i < kLines && run_ < runs_; ++i) __builtin_prefetch(Next(), 0, 2);
  }
  void Rest() {
    while (run_ < runs_) Some();
  }

  // kScanBlock lines, for a loop over as many tokens that fetches one at a time. Where none are
  // left they repeat one that is in the cache.
  const std::byte* const* Lines() {
    for (const std::byte*& line : lines_) {
      line = run_ < runs_ ? Next() : reinterpret_cast<const std::byte*>(lines_);
    }
    return lines_;
  }

 private:
  struct Run {
    const std::byte* row;
    int64_t stride, row_bytes, rows;
  };

  const std::byte* Next() {
    Run& run = list_[run_];
    const std::byte* line = run.row + at_;
    at_ += kLineBytes;
    if (at_ >= run.row_bytes) {
      at_ = 0;
      run.row += run.stride;
      if (--run.rows == 0) ++run_;
    }
    return line;
  }

  // Query heads of a large group may be left out.
  static constexpr int kMost = 16;
  static constexpr int64_t kLineBytes = 64, kLines = 16;

  Run list_[kMost];
  int runs_ = 0, run_ = 0;
  int64_t at_ = 0;  // byte of the row
  const std::byte* lines_[kScanBlock];
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
