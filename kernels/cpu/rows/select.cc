// Bisects the value of the M-th lowest rank by counting, until few ranks are left between the
// bounds (more bisections cost as much as to compare those). Every pass is a load, a comparison and
// a sum for each vector.
#include "kernels/cpu/rows/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/core/run_control.h"
#include "kernels/cpu/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows/select.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr hn::ScalableTag<int32_t> kInts;
constexpr int64_t kIntLanes = HWY_LANES(int32_t);
constexpr int64_t kStretch = 1 << 14;  // ranks between check points

void Ranks(const float* keys, int64_t n, bool descending, int32_t* ranks) {
  const auto flip = hn::Set(kInts, descending ? -1 : 0), magnitude = hn::Set(kInts, INT32_MAX);
  const auto infinity = hn::Set(kInts, std::bit_cast<int32_t>(HUGE_VALF));
  const auto negative_zero = hn::Set(kInts, INT32_MIN);
  const auto* bits = reinterpret_cast<const int32_t*>(keys);
  int64_t i = 0;
  for (; i + kIntLanes <= n; i += kIntLanes) {
    auto x = hn::LoadU(kInts, bits + i);
    const auto is_nan = hn::Gt(hn::And(x, magnitude), infinity);
    x = hn::IfThenZeroElse(hn::Eq(x, negative_zero), x);
    // Of negative numbers the larger magnitude is the lower one.
    x = hn::Xor(x, hn::And(hn::BroadcastSignBit(x), magnitude));
    hn::StoreU(hn::IfThenElse(is_nan, magnitude, hn::Xor(x, flip)), kInts, ranks + i);
  }
  for (; i < n; ++i) ranks[i] = RankOf(keys[i], descending);
}

// How many ranks are at most `most`; -1: the run was stopped.
int64_t CountUpTo(const int32_t* ranks, int64_t n, int32_t most) {
  const auto bound = hn::Set(kInts, most);
  int64_t count = 0, i = 0;
  while (i + kIntLanes <= n) {
    if (CheckPoint()) return -1;
    const int64_t end = std::min(n, i + kStretch);
    auto above = hn::Zero(kInts);  // minus the number of ranks above the bound
    const int64_t begin = i;
    for (; i + kIntLanes <= end; i += kIntLanes) {
      above = hn::Add(above, hn::VecFromMask(kInts, hn::Gt(hn::LoadU(kInts, ranks + i), bound)));
    }
    count += i - begin + hn::GetLane(hn::SumOfLanes(kInts, above));
  }
  for (; i < n; ++i) count += ranks[i] <= most ? 1 : 0;
  return count;
}

// Writes the indices of the ranks up to `most`, in order, and returns how many they are; -1: the
// run was stopped. A vector is written behind each that is found.
int64_t IndicesUpTo(const int32_t* ranks, int64_t n, int32_t most, int32_t* indices) {
  const auto bound = hn::Set(kInts, most);
  int64_t count = 0, i = 0;
  for (; i + kIntLanes <= n; i += kIntLanes) {
    if (i % kStretch == 0 && CheckPoint()) return -1;
    const auto is_within = hn::Not(hn::Gt(hn::LoadU(kInts, ranks + i), bound));
    const auto index = hn::Iota(kInts, static_cast<int32_t>(i));
    hn::StoreU(hn::Compress(index, is_within), kInts, indices + count);
    count += static_cast<int64_t>(hn::CountTrue(kInts, is_within));
  }
  for (; i < n; ++i) {
    if (ranks[i] <= most) indices[count++] = static_cast<int32_t>(i);
  }
  return count;
}

std::pair<int32_t, int32_t> Extremes(const int32_t* ranks, int64_t n) {
  auto low = hn::Set(kInts, INT32_MAX), high = hn::Set(kInts, INT32_MIN);
  int64_t i = 0;
  for (; i + kIntLanes <= n; i += kIntLanes) {
    if (i % kStretch == 0 && CheckPoint()) break;
    const auto x = hn::LoadU(kInts, ranks + i);
    low = hn::Min(low, x);
    high = hn::Max(high, x);
  }
  int32_t least = hn::GetLane(hn::MinOfLanes(kInts, low));
  int32_t most = hn::GetLane(hn::MaxOfLanes(kInts, high));
  for (; i < n; ++i) {
    least = std::min(least, ranks[i]);
    most = std::max(most, ranks[i]);
  }
  return {least, most};
}

// A rank in [low, high) between them. Floats of one size are spread evenly, their ranks are not.
int32_t Middle(int64_t low, int64_t high, bool by_value) {
  const int64_t middle = low + (high - low) / 2;
  if (!by_value) return static_cast<int32_t>(middle);
  const auto value = [](int64_t rank) {
    const auto x = static_cast<int32_t>(rank);
    return std::bit_cast<float>(x ^ (x >> 31 & INT32_MAX));
  };
  const float mean = value(low) / 2 + value(high) / 2;
  if (!std::isfinite(mean)) return static_cast<int32_t>(middle);
  return static_cast<int32_t>(std::clamp<int64_t>(RankOf(mean, false), low, high - 1));
}

// The bounds of a bisection: `within` of the ranks are in (below, bound], the `taken` up to `below`
// are among the lowest.
struct Bounds {
  int64_t below, bound, taken, within;
};

// The first M of the ranks up to the bound, where all within the bounds are equal.
bool TakeFirst(const Selection& s, const Bounds& bounds) {
  int64_t m = 0, equal = s.M - bounds.taken;
  for (int64_t i = 0; m < s.M; ++i) {
    if (i % kStretch == 0 && CheckPoint()) return false;
    if (s.ranks[i] > bounds.bound || (s.ranks[i] == bounds.bound && equal-- <= 0)) continue;
    s.order[m++] = static_cast<int32_t>(i);
  }
  return true;
}

// The M lowest of the ranks up to the bound, of which few are compared.
bool TakeLowest(const Selection& s, const Bounds& bounds) {
  const int64_t count = IndicesUpTo(s.ranks, s.N, static_cast<int32_t>(bounds.bound), s.scratch);
  if (count < s.M) return false;
  const auto key_of = [&](int32_t i) { return int64_t{s.ranks[i]} << 32 | i; };
  int64_t few[kSelectionFew + 1], size = 0, last = INT64_MAX;
  if (count > s.M) {
    for (int64_t c = 0; c < count; ++c) {
      few[size] = key_of(s.scratch[c]);
      size += s.ranks[s.scratch[c]] > bounds.below ? 1 : 0;
    }
    std::nth_element(few, few + (s.M - bounds.taken - 1), few + size);
    last = few[s.M - bounds.taken - 1];
  }
  for (int64_t c = 0, m = 0; m < s.M; ++c) {
    s.order[m] = s.scratch[c];
    m += key_of(s.scratch[c]) <= last ? 1 : 0;
  }
  return true;
}

bool Take(const Selection& s) {
  constexpr int kByValue = 16;  // bisections, then the number of bits bounds them
  const auto [least, most] = Extremes(s.ranks, s.N);
  Bounds b = {.below = int64_t{least} - 1, .bound = most, .taken = 0, .within = s.N};
  for (int round = 0; b.within > kSelectionFew && b.bound - b.below > 1 && b.taken + b.within > s.M;
       ++round) {
    const int32_t middle = Middle(b.below + 1, b.bound, s.of_floats && round < kByValue);
    const int64_t count = CountUpTo(s.ranks, s.N, middle);
    if (count < 0) return false;
    if (count >= s.M) {
      b.bound = middle;
      b.within = count - b.taken;
    } else {
      b.below = middle;
      b.within -= count - b.taken;
      b.taken = count;
    }
  }
  return b.bound - b.below == 1 ? TakeFirst(s, b) : TakeLowest(s, b);
}

void Select(const Selection& s) {
  if (s.M > 0 && !Take(s)) std::fill(s.order, s.order + s.M, 0);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

int32_t RankOf(float key, bool descending) {
  // By bits alone: the pool's threads take denormals for 0.
  int32_t x = std::bit_cast<int32_t>(key);
  if ((x & INT32_MAX) > std::bit_cast<int32_t>(HUGE_VALF)) return INT32_MAX;
  if (x == INT32_MIN) x = 0;
  x ^= x >> 31 & INT32_MAX;
  return descending ? ~x : x;
}

int32_t RankOf(int32_t key, bool descending) { return descending ? ~key : key; }

void RanksOf(Isa isa, const float* keys, int64_t n, bool descending, int32_t* ranks) {
  Choose(isa, HWY_CHOOSE_SSE4(Ranks), HWY_CHOOSE_AVX2(Ranks), HWY_CHOOSE_AVX3(Ranks))(
      keys, n, descending, ranks);
}

void SelectLowest(Isa isa, const Selection& selection) {
  Choose(isa, HWY_CHOOSE_SSE4(Select), HWY_CHOOSE_AVX2(Select), HWY_CHOOSE_AVX3(Select))(selection);
}

}  // namespace attnd
#endif
