// The delta rule (Yang et al. 2024, eq. 1) on a state X [rows, lanes]: a token writes what its key
// does not yet read, so that all rows of a column must be there for every token.
#if defined(ATTND_CPU_SCAN_DELTA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_DELTA_INL_H_
#undef ATTND_CPU_SCAN_DELTA_INL_H_
#else
#define ATTND_CPU_SCAN_DELTA_INL_H_
#endif

#include "kernels/cpu/scan_recur-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// With X the state:
//   X *= decay_t (if kRowsFirst)      X += left_t,m right_t,m^T for m < updates
//   error_t = value_t - X^T key_t     X += weight_t key_t error_t^T
//   out_t,g = X^T read_t,g for g < reads      X *= decay_t (if kRowsLast)
// value not given: 0.
struct DeltaRecurrence {
  int64_t tokens = 0, rows = 0, lanes = 0, updates = 0, reads = 0;
  MutableRows state;
  Series left, right, key, value, error, read, out, decay;
  const float* weight = nullptr;
  int64_t weight_step = 1;
  Ahead* ahead = nullptr;  // what to fetch on the way, never null
};

namespace recur_internal {

// kV vectors of lanes, all rows: the piece of the state stays in L1 from token to token.
template <int kV, Decay kDecay>
HWY_NOINLINE void DeltaColumn(const DeltaRecurrence& r, int64_t lane) {
  const DF d;
  const auto at = [&](int64_t row) { return r.state.data + row * r.state.stride + lane; };
  for (int64_t t = 0; t < r.tokens; ++t) {
    r.ahead->Some();
    const float* key = r.key.At(0, t);
    [[maybe_unused]] const float* factor = r.decay.At(0, t);
    for (int64_t m = 0; m < r.updates; ++m) {
      const float *left = r.left.At(m, t), *right = r.right.At(m, t) + lane;
      for (int64_t row = 0; row < r.rows; ++row) {
#pragma GCC unroll 8
        for (int j = 0; j < kV; ++j) {
          float* x = at(row) + j * kLanes;
          const VF value = hn::LoadU(d, right + j * kLanes);
          hn::StoreU(hn::MulAdd(hn::Set(d, left[row]), value, hn::LoadU(d, x)), d, x);
        }
      }
    }
    const auto state = [&](int64_t row, int j) HWY_ATTR {
      const VF x = hn::LoadU(d, at(row) + j * kLanes);
      if constexpr (kDecay != Decay::kRowsFirst) return x;
      return hn::Mul(hn::Set(d, factor[row]), x);
    };
    // Even and odd rows apart: one sum alone would wait for itself.
    VF even[kV], odd[kV];
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) even[j] = odd[j] = hn::Zero(d);
    int64_t row = 0;
    for (; row + 2 <= r.rows; row += 2) {
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) {
        even[j] = hn::MulAdd(hn::Set(d, key[row]), state(row, j), even[j]);
        odd[j] = hn::MulAdd(hn::Set(d, key[row + 1]), state(row + 1, j), odd[j]);
      }
    }
    if (row < r.rows) {
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) {
        even[j] = hn::MulAdd(hn::Set(d, key[row]), state(row, j), even[j]);
      }
    }
    VF update[kV], out[kV];
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) {
      const VF stored = hn::Add(even[j], odd[j]);
      const VF value = r.value.data == nullptr ? hn::Zero(d)
                                               : hn::LoadU(d, r.value.At(0, t) + lane + j * kLanes);
      const VF error = hn::Sub(value, stored);
      hn::StoreU(error, d, r.error.At(0, t) + lane + j * kLanes);
      update[j] = hn::Mul(hn::Set(d, r.weight[t * r.weight_step]), error);
      out[j] = hn::Zero(d);
    }
    const float* read = r.reads > 0 ? r.read.At(0, t) : key;
    for (row = 0; row < r.rows; ++row) {
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) {
        VF x = hn::MulAdd(hn::Set(d, key[row]), update[j], state(row, j));
        out[j] = hn::MulAdd(hn::Set(d, read[row]), x, out[j]);
        if constexpr (kDecay == Decay::kRowsLast) x = hn::Mul(hn::Set(d, factor[row]), x);
        hn::StoreU(x, d, at(row) + j * kLanes);
      }
    }
    for (int64_t g = 0; g < r.reads; ++g) {
      if (g > 0) {
        const float* weight = r.read.At(g, t);
#pragma GCC unroll 8
        for (int j = 0; j < kV; ++j) out[j] = hn::Zero(d);
        for (row = 0; row < r.rows; ++row) {
#pragma GCC unroll 8
          for (int j = 0; j < kV; ++j) {
            const VF x = hn::LoadU(d, at(row) + j * kLanes);
            out[j] = hn::MulAdd(hn::Set(d, weight[row]), x, out[j]);
          }
        }
      }
      float* to = r.out.At(g, t) + lane;
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) hn::StoreU(out[j], d, to + j * kLanes);
    }
  }
}

template <Decay kDecay>
HWY_NOINLINE void RecurDeltaWith(const DeltaRecurrence& r) {
  int64_t lane = 0;
  for (; lane + 4 * kLanes <= r.lanes; lane += 4 * kLanes) DeltaColumn<4, kDecay>(r, lane);
  for (; lane + 2 * kLanes <= r.lanes; lane += 2 * kLanes) DeltaColumn<2, kDecay>(r, lane);
  if constexpr (kLanes == 16) {
    for (; lane < r.lanes; lane += kLanes) DeltaColumn<1, kDecay>(r, lane);
  }
}

}  // namespace recur_internal

// REQUIRES: lanes is a multiple of 16; decay is kNone, kRowsFirst or kRowsLast.
HWY_NOINLINE HWY_MAYBE_UNUSED static void RecurDelta(Decay decay, const DeltaRecurrence& r) {
  if (decay == Decay::kNone) return recur_internal::RecurDeltaWith<Decay::kNone>(r);
  if (decay == Decay::kRowsFirst) return recur_internal::RecurDeltaWith<Decay::kRowsFirst>(r);
  recur_internal::RecurDeltaWith<Decay::kRowsLast>(r);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
