// Latencies as counts in buckets, so that percentiles of any number of them take constant memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <vector>

namespace attnd::bench {

// Of values >= 0 in any unit. Buckets are log-linear: exact below 128, above 64 to each power of
// two, so that what is read back is high by less than 1/64 (1.6 %), never low. 30 KB.
class LatencyHistogram {
 public:
  void Add(int64_t value) {
    ++counts_[IndexOf(std::max<int64_t>(value, 0))];
    ++count_;
    max_ = std::max(max_, value);
  }

  int64_t count() const { return count_; }
  int64_t max() const { return max_; }  // exact

  // The smallest bucket's end that at least `percent` of the values do not exceed, at most max().
  // 0 of none. REQUIRES: 0 <= percent <= 100.
  int64_t Percentile(double percent) const {
    assert(percent >= 0 && percent <= 100);
    const double wanted = percent / 100 * static_cast<double>(count_);
    int64_t seen = 0;
    for (int i = 0; i < kBuckets; ++i) {
      seen += counts_[i];
      if (seen > 0 && static_cast<double>(seen) >= wanted) return std::min(LastOf(i), max_);
    }
    return max_;
  }

 private:
  static constexpr int kLinearBits = 6;  // 64 buckets to a power of two
  static constexpr int kLinear = 1 << kLinearBits;
  static constexpr int kBuckets = (64 - kLinearBits) * kLinear;

  // A value of b bits is shifted right until it has kLinearBits + 1.
  static int IndexOf(int64_t value) {
    const int shift = std::max(
        0, static_cast<int>(std::bit_width(static_cast<uint64_t>(value))) - (kLinearBits + 1));
    return shift * kLinear + static_cast<int>(value >> shift);
  }
  static int64_t LastOf(int index) {
    const int shift = std::max(0, index / kLinear - 1);
    const int64_t first = static_cast<int64_t>(index - shift * kLinear) << shift;
    return first + ((int64_t{1} << shift) - 1);
  }

  std::vector<int64_t> counts_ = std::vector<int64_t>(kBuckets);
  int64_t count_ = 0, max_ = 0;
};

}  // namespace attnd::bench
