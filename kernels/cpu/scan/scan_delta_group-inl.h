// The delta rule without decays, several tokens at a time (the chunked form of Yang et al. 2024,
// eq. 8-11, with chunks so short that it costs no more than the recurrence). What the keys of a
// group read of the state before it is summed in one sweep over the state, the sweep that also
// writes what the group before has found: of that, little is left to the memory.
#if defined(ATTND_CPU_SCAN_DELTA_GROUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_DELTA_GROUP_INL_H_
#undef ATTND_CPU_SCAN_DELTA_GROUP_INL_H_
#else
#define ATTND_CPU_SCAN_DELTA_GROUP_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/scan/scan_delta_token-inl.h"
#include "kernels/cpu/scan/scan_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace recur_internal {

// Tokens of a group and vectors of lanes of a sweep: what it sums and writes fits the registers.
constexpr int kGroup = HWY_TARGET == HWY_AVX3 ? 4 : 2;
// Lines of the next block that are fetched before a sweep, for each token.
constexpr int64_t kLinesAToken = 16;
// A block's groups.
constexpr int64_t kGroups = kScanBlock / kGroup;

// What a token does besides what its key does.
enum class Other { kNone, kReads, kAdds };

// Rows of the tokens of a group: at data, data + token, ..
struct GroupSweep {
  int64_t rows, stride;
  float* state;
  // The group, if it writes; what it reads or adds. Writes lie side by side.
  const float *key, *other, *write;
  // The next group, if there is one.
  const float* next_key;
  int64_t key_token, other_token;
  float* out;          // kReads
  const float* right;  // kAdds
  int64_t lane_token;  // of the one that is given
  float* stored;       // out: X^T next_key
};

template <int kV, Other kOther, bool kWrites, bool kReadsNext>
HWY_NOINLINE void SweepGroup(const GroupSweep& sweep) {
  const DF d;
  // Copied: the compiler cannot know that stores leave `sweep` alone.
  const GroupSweep s = sweep;
  constexpr bool kReads = kWrites && kOther == Other::kReads;
  constexpr bool kAdds = kWrites && kOther == Other::kAdds;
  VF write[kGroup][kV], lanes[kGroup][kV], stored[kGroup][kV];
#pragma GCC unroll 8
  for (int t = 0; t < kGroup; ++t) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) {
      if constexpr (kWrites) write[t][j] = hn::LoadU(d, s.write + (t * kV + j) * kLanes);
      if constexpr (kReads) lanes[t][j] = hn::Zero(d);
      if constexpr (kAdds) lanes[t][j] = hn::LoadU(d, s.right + t * s.lane_token + j * kLanes);
      stored[t][j] = hn::Zero(d);
    }
  }
  const float *key = s.key, *other = s.other, *next_key = s.next_key;
  float* at = s.state;
  for (int64_t row = 0; row < s.rows; ++row) {
    VF x[kV];
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) x[j] = hn::LoadU(d, at + j * kLanes);
#pragma GCC unroll 8
    for (int t = 0; kWrites && t < kGroup; ++t) {
      const VF of_key = hn::Set(d, key[t * s.key_token]);
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) x[j] = hn::MulAdd(of_key, write[t][j], x[j]);
      if constexpr (kReads || kAdds) {
        const VF of_other = hn::Set(d, other[t * s.other_token]);
#pragma GCC unroll 8
        for (int j = 0; j < kV; ++j) {
          if constexpr (kReads) lanes[t][j] = hn::MulAdd(of_other, x[j], lanes[t][j]);
          if constexpr (kAdds) x[j] = hn::MulAdd(of_other, lanes[t][j], x[j]);
        }
      }
    }
#pragma GCC unroll 8
    for (int t = 0; kReadsNext && t < kGroup; ++t) {
      const VF of_key = hn::Set(d, next_key[t * s.key_token]);
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) stored[t][j] = hn::MulAdd(of_key, x[j], stored[t][j]);
    }
#pragma GCC unroll 8
    for (int j = 0; kWrites && j < kV; ++j) hn::StoreU(x[j], d, at + j * kLanes);
    at += s.stride;
    if constexpr (kWrites) ++key;
    if constexpr (kReads || kAdds) ++other;
    if constexpr (kReadsNext) ++next_key;
  }
#pragma GCC unroll 8
  for (int t = 0; t < kGroup; ++t) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) {
      if constexpr (kReads) hn::StoreU(lanes[t][j], d, s.out + t * s.lane_token + j * kLanes);
      if constexpr (kReadsNext) hn::StoreU(stored[t][j], d, s.stored + (t * kV + j) * kLanes);
    }
  }
}

// Of all groups of a block.
struct GroupDots {
  // [t][s]: key_t . key_s for s < t; key_t . left_s for s <= t, where queries are added.
  float keys[kGroups][kGroup][kGroup], lefts[kGroups][kGroup][kGroup];
};

// Tiles end in zeros up to whole vectors. False: one is not finite, and would make NaN of a write
// of 0, where one token after the other writes nothing.
HWY_INLINE bool FindDots(const DeltaRecurrence& r, int64_t groups, GroupDots* dots) {
  float all = 0;  // 0 times each
  const auto dot = [&](const float* a, const float* b) HWY_ATTR {
    const float sum = Dot(a, b, r.rows);
    all += 0 * sum;
    return sum;
  };
  for (int64_t n = 0; n < groups; ++n) {
    for (int t = 0; t < kGroup; ++t) {
      for (int s = 0; s <= t; ++s) {
        const float *key = r.key.At(0, n * kGroup + t), *other = r.key.At(0, n * kGroup + s);
        if (s < t) dots->keys[n][t][s] = dot(key, other);
        if (r.updates > 0) dots->lefts[n][t][s] = dot(key, r.left.At(0, n * kGroup + s));
      }
    }
  }
  return all == 0;
}

// The errors of group n, kV vectors from `lane` on, and what its tokens write. stored: what their
// keys read of the state before the group; it and `write`: [kGroup][kV * kLanes].
template <int kV, Other kOther>
HWY_INLINE void FindErrors(const DeltaRecurrence& r, const GroupDots& dots, int64_t n, int64_t lane,
                           const float* stored, float* write) {
  const DF d;
  const int64_t first = n * kGroup;
  for (int t = 0; t < kGroup; ++t) {
    const VF weight = hn::Set(d, r.weight[(first + t) * r.weight_step]);
    for (int j = 0; j < kV; ++j) {
      const int64_t at = lane + j * kLanes;
      VF error =
          r.value.data == nullptr ? hn::Zero(d) : hn::LoadU(d, r.value.At(0, first + t) + at);
      error = hn::Sub(error, hn::LoadU(d, stored + (t * kV + j) * kLanes));
      for (int s = 0; s <= t && kOther == Other::kAdds; ++s) {
        error = hn::NegMulAdd(hn::Set(d, dots.lefts[n][t][s]),
                              hn::LoadU(d, r.right.At(0, first + s) + at), error);
      }
      for (int s = 0; s < t; ++s) {
        error = hn::NegMulAdd(hn::Set(d, dots.keys[n][t][s]),
                              hn::LoadU(d, write + (s * kV + j) * kLanes), error);
      }
      hn::StoreU(error, d, r.error.At(0, first + t) + at);
      hn::StoreU(hn::Mul(weight, error), d, write + (t * kV + j) * kLanes);
    }
  }
}

// `columns` of kV vectors from `lane` on, in turn: the errors of one wait for the last sums of its
// sweep, while that of the other goes on.
constexpr int kColumns = 2;
template <int kV, Other kOther>
HWY_NOINLINE void RunColumns(const DeltaRecurrence& r, const GroupDots& dots, int64_t groups,
                             int64_t lane, int columns) {
  constexpr int64_t kWidth = kV * kLanes;
  HWY_ALIGN float write[kColumns][kGroup * kWidth], stored[kColumns][kGroup * kWidth];
  GroupSweep sweep = {.rows = r.rows,
                      .stride = r.state.stride,
                      .key_token = r.key.token,
                      .other_token = kOther == Other::kReads ? r.read.token : r.left.token,
                      .lane_token = kOther == Other::kReads ? r.out.token : r.right.token};
  const auto run = [&](int64_t n, const auto& sweep_column) HWY_ATTR {
    if (n < groups) sweep.next_key = r.key.At(0, n * kGroup);
    for (int c = 0; c < columns; ++c) {
      const int64_t at = lane + c * kWidth;
      sweep.state = r.state.data + at;
      sweep.write = write[c];
      sweep.stored = stored[c];
      sweep_column(c, at);
    }
  };
  run(0, [&](int, int64_t) { SweepGroup<kV, kOther, false, true>(sweep); });
  for (int64_t n = 0; n < groups; ++n) {
    const int64_t first = n * kGroup;
    sweep.key = r.key.At(0, first);
    if constexpr (kOther == Other::kReads) sweep.other = r.read.At(0, first);
    if constexpr (kOther == Other::kAdds) sweep.other = r.left.At(0, first);
    run(n + 1, [&](int c, int64_t at) HWY_ATTR {
      r.ahead->Some(kGroup * kLinesAToken);
      FindErrors<kV, kOther>(r, dots, n, at, stored[c], write[c]);
      if constexpr (kOther == Other::kReads) sweep.out = r.out.At(0, first) + at;
      if constexpr (kOther == Other::kAdds) sweep.right = r.right.At(0, first) + at;
      if (n + 1 == groups) {
        SweepGroup<kV, kOther, true, false>(sweep);
      } else {
        SweepGroup<kV, kOther, true, true>(sweep);
      }
    });
  }
}

template <Other kOther>
HWY_NOINLINE int64_t RecurGroupsWith(const DeltaRecurrence& r, int64_t groups) {
  GroupDots dots;
  if (!FindDots(r, groups, &dots)) return 0;
  constexpr int64_t kWidth = 2 * kLanes;
  int64_t lane = 0;
  while (lane + kWidth <= r.lanes) {
    const int columns = static_cast<int>(std::min<int64_t>((r.lanes - lane) / kWidth, kColumns));
    RunColumns<2, kOther>(r, dots, groups, lane, columns);
    lane += columns * kWidth;
  }
  if constexpr (kLanes == 16) {
    if (lane < r.lanes) RunColumns<1, kOther>(r, dots, groups, lane, 1);
  }
  return groups;
}

}  // namespace recur_internal

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
