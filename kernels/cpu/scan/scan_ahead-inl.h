// Rows that the next block of a scan will read or write, fetched to L2 while this one computes: a
// block is too short for the hardware prefetcher to foresee the next.
#if defined(ATTND_CPU_SCAN_AHEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_AHEAD_INL_H_
#undef ATTND_CPU_SCAN_AHEAD_INL_H_
#else
#define ATTND_CPU_SCAN_AHEAD_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/core/integer.h"
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
  // Lines at first, first + step, ..
  struct Lines {
    const std::byte* first;
    int64_t step;
  };

  // takes: whether Take is used. Its steps are equal, so that rows with gaps between them come one
  // line of each at a time; else they come one by one, which memory likes better.
  explicit Ahead(bool takes) : takes_(takes) {}

  // Drops the lines that are left.
  void Clear() { at_ = runs_ = run_ = 0; }

  void Add(const RowsOf& rows) {
    if (rows.count == 0 || !rows.view.given() || runs_ == kMost) return;
    const int64_t element = SizeOf(rows.view.dtype);
    const int64_t stride = rows.view.stride[2] * element, bytes = rows.view.shape[3] * element;
    const int64_t lines = CeilDiv(bytes, kLine);
    Run& run = list_[runs_++];
    if (stride == bytes) {
      run = {rows.Row(0), kLine, CeilDiv(rows.count * bytes, kLine), 0, 1};
    } else if (takes_) {
      run = {rows.Row(0), stride, rows.count, kLine, lines};
    } else {
      run = {rows.Row(0), kLine, lines, stride, rows.count};
    }
  }

  // The next `count` lines, for a loop that fetches one at a time. Some of them are of no use where
  // fewer are left; to fetch them is harmless.
  Lines Take(int64_t count) {
    if (run_ == runs_) return {reinterpret_cast<const std::byte*>(this), 0};
    const Run& run = list_[run_];
    const Lines lines = {run.first + at_ * run.step, run.step};
    Pass(std::min(count, run.lines - at_));
    return lines;
  }

  // Fetches the next lines: as many as a core can have in flight; more at once would stall it.
  void Some(int64_t count = 16) {
    while (count > 0 && run_ < runs_) {
      const Run& run = list_[run_];
      const int64_t lines = std::min(count, run.lines - at_);
      const std::byte* line = run.first + at_ * run.step;
      for (int64_t i = 0; i < lines; ++i, line += run.step) {
        __builtin_prefetch(line, /*rw=*/0, /*locality=*/2);
      }
      Pass(lines);
      count -= lines;
    }
  }
  void Rest() {
    while (run_ < runs_) Some();
  }

 private:
  // `lines` lines from `first` on, then as many from first + next, and so on: `times` times.
  struct Run {
    const std::byte* first;
    int64_t step, lines, next, times;
  };

  void Pass(int64_t lines) {
    Run& run = list_[run_];
    at_ += lines;
    if (at_ < run.lines) return;
    at_ = 0;
    run.first += run.next;
    if (--run.times == 0) ++run_;
  }

  // Query heads of a large group may be left out.
  static constexpr int kMost = 16;
  static constexpr int64_t kLine = 64;

  const bool takes_;
  Run list_[kMost];
  int runs_ = 0, run_ = 0;
  int64_t at_ = 0;  // line of the run
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
