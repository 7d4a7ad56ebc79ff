// Bisects the value of the M-th lowest rank by counting, until few ranks are left between the
// bounds; those are compared. Every pass is a load, a comparison and a sum for each vector.
#include "kernels/cpu/rows/select.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>
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

// Bit l: lane l of the mask.
template <class M>
uint64_t LanesOf(M mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(kInts, mask, bytes);
  uint64_t lanes;
  std::memcpy(&lanes, bytes, sizeof(lanes));
  return lanes;
}

// Calls visit(i) for the ranks in (above, most], in order, until it returns false.
template <class Visit>
void ForEachWithin(const int32_t* ranks, int64_t n, int64_t above, int32_t most,
                   const Visit& visit) {
  const auto bound = hn::Set(kInts, most);
  int64_t i = 0;
  for (; i + kIntLanes <= n; i += kIntLanes) {
    if (i % kStretch == 0 && CheckPoint()) return;
    const auto is_above = hn::Gt(hn::LoadU(kInts, ranks + i), bound);
    uint64_t within = ~LanesOf(is_above) & ((uint64_t{1} << kIntLanes) - 1);
    for (; within != 0; within &= within - 1) {
      const int64_t j = i + std::countr_zero(within);
      if (ranks[j] > above && !visit(j)) return;
    }
  }
  for (; i < n; ++i) {
    if (ranks[i] <= most && ranks[i] > above && !visit(i)) return;
  }
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

void Select(const Selection& s) {
  // So many ranks are compared; more bisections cost as much.
  constexpr int64_t kFew = 128;
  constexpr int kByValue = 16;  // bisections, then the number of bits bounds them
  if (s.M == 0) return;
  const auto [least, most] = Extremes(s.ranks, s.N);
  // `within` of the ranks are in (below, bound], those up to `below` are taken.
  int64_t below = int64_t{least} - 1, bound = most, taken = 0, within = s.N;
  for (int round = 0; within > kFew && bound - below > 1 && taken + within > s.M; ++round) {
    const int32_t middle = Middle(below + 1, bound, s.of_floats && round < kByValue);
    const int64_t count = CountUpTo(s.ranks, s.N, middle);
    if (count < 0) return std::fill(s.order, s.order + s.M, 0);
    if (count >= s.M) {
      bound = middle;
      within = count - taken;
    } else {
      below = middle;
      within -= count - taken;
      taken = count;
    }
  }
  // The last rank and index that are taken.
  int64_t last_rank = bound, last_index = s.N;
  if (bound - below > 1 && taken + within > s.M) {
    std::pair<int32_t, int64_t> few[kFew];
    int64_t count = 0;
    ForEachWithin(s.ranks, s.N, below, static_cast<int32_t>(bound), [&](int64_t i) {
      few[count++] = {s.ranks[i], i};
      return count < kFew;
    });
    if (CheckPoint() || count < s.M - taken) return std::fill(s.order, s.order + s.M, 0);
    std::nth_element(few, few + (s.M - taken - 1), few + count);
    std::tie(last_rank, last_index) = few[s.M - taken - 1];
  }
  // Where one value is left between the bounds, the first of its ranks are taken.
  int64_t m = 0, equal = bound - below == 1 ? s.M - taken : s.N;
  ForEachWithin(s.ranks, s.N, INT64_MIN, static_cast<int32_t>(last_rank), [&](int64_t i) {
    if (s.ranks[i] == last_rank && (i > last_index || equal-- <= 0)) return true;
    s.order[m++] = static_cast<int32_t>(i);
    return m < s.M;
  });
  std::fill(s.order + m, s.order + s.M, 0);
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
