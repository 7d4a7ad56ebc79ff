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

  // Drops the lines that are left.
  void Clear() { at_ = runs_ = run_ = 0; }

  void Add(const RowsOf& rows) {
    if (rows.count == 0 || !rows.view.given() || runs_ == kMost) return;
    const int64_t element = SizeOf(rows.view.dtype);
    const int64_t stride = rows.view.stride[2] * element, bytes = rows.view.shape[3] * element;
    // Rows without gaps line by line, others one line of each at a time: steps are equal.
    list_[runs_++] = stride == bytes
                         ? Run{rows.Row(0), kLineBytes, CeilDiv(rows.count * bytes, kLineBytes), 1}
                         : Run{rows.Row(0), stride, rows.count, CeilDiv(bytes, kLineBytes)};
  }

  // The next `count` lines, for a loop that fetches one at a time. Some of them are of no use where
  // fewer are left; to fetch them is harmless.
  Lines Take(int64_t count) {
    if (run_ == runs_) return {reinterpret_cast<const std::byte*>(this), 0};
    Run& run = list_[run_];
    const Lines lines = {run.first + at_ * run.step, run.step};
    at_ += count;
    if (at_ >= run.lines) {
      at_ = 0;
      run.first += kLineBytes;
      if (--run.columns == 0) ++run_;
    }
    return lines;
  }

  // Fetches the next lines: as many as a core can have in flight; more at once would stall it.
  void Some(int64_t count = 16) {
    if (run_ == runs_) return;
    const Lines lines = Take(count);
    for (int64_t i = 0; i < count; ++i) {
      __builtin_prefetch(lines.first + i * lines.step, /*rw=*/0, /*locality=*/2);
    }
  }
  void Rest() {
    while (run_ < runs_) Some();
  }

 private:
  // `lines` lines from `first`, then as many one line further, and so on: `columns` times.
  struct Run {
    const std::byte* first;
    int64_t step, lines, columns;
  };

  // Query heads of a large group may be left out.
  static constexpr int kMost = 16;
  static constexpr int64_t kLineBytes = 64;

  Run list_[kMost];
  int runs_ = 0, run_ = 0;
  int64_t at_ = 0;  // line of the run
};

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
