// The delta rule (Yang et al. 2024, eq. 1) on a state X [rows, lanes], one token at a time: a token
// writes what its key does not yet read, so that all rows of a column must be there for every
// token.
#if defined(ATTND_CPU_SCAN_DELTA_TOKEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_DELTA_TOKEN_INL_H_
#undef ATTND_CPU_SCAN_DELTA_TOKEN_INL_H_
#else
#define ATTND_CPU_SCAN_DELTA_TOKEN_INL_H_
#endif

#include "kernels/cpu/scan/scan_recur-inl.h"

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

  // The tokens from t on.
  DeltaRecurrence From(int64_t t) const {
    DeltaRecurrence rest = *this;
    rest.tokens -= t;
    rest.weight += t * weight_step;
    for (Series* series : {&rest.left, &rest.right, &rest.key, &rest.value, &rest.error, &rest.read,
                           &rest.out, &rest.decay}) {
      if (series->data != nullptr) series->data += t * series->token;
    }
    return rest;
  }
};

namespace recur_internal {

// kV vectors of lanes, all rows, once from memory and back: what a token writes, what is read then,
// and what its successor's key reads. A token can write only when its key has read all rows, so
// that two tokens meet in one sweep over the state instead of each having two.
struct DeltaSweep {
  int64_t rows, stride;
  float* state;
  // The token, if it writes: its write, and what it reads or null.
  const float *key, *read, *factor, *write;
  float* out;
  // Its successor, if there is one.
  const float *next_key, *next_factor, *left, *right;
  int64_t updates, left_term, right_term;
  float* stored;  // out: X^T next_key
};

template <int kV, Decay kDecay, bool kWrites, bool kReadsNext>
HWY_NOINLINE void Sweep(const DeltaSweep& sweep) {
  const DF d;
  // Copied: the compiler cannot know that stores leave `sweep` alone.
  const DeltaSweep s = sweep;
  // Even and odd rows apart: one sum alone would wait for itself.
  VF write[kV], out[kV], stored[2][kV];
#pragma GCC unroll 8
  for (int j = 0; j < kV; ++j) {
    out[j] = stored[0][j] = stored[1][j] = hn::Zero(d);
    if constexpr (kWrites) write[j] = hn::LoadU(d, s.write + j * kLanes);
  }
  for (int64_t first = 0; first < s.rows; first += 2) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const int64_t row = first + odd;
      if (row == s.rows) break;
      float* const at = s.state + row * s.stride;
      VF x[kV];
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) x[j] = hn::LoadU(d, at + j * kLanes);
      if constexpr (kWrites) {
        const VF key = hn::Set(d, s.key[row]);
#pragma GCC unroll 8
        for (int j = 0; j < kV; ++j) x[j] = hn::MulAdd(key, write[j], x[j]);
        if (s.read != nullptr) {
          const VF read = hn::Set(d, s.read[row]);
#pragma GCC unroll 8
          for (int j = 0; j < kV; ++j) out[j] = hn::MulAdd(read, x[j], out[j]);
        }
        if constexpr (kDecay == Decay::kRowsLast) {
          const VF factor = hn::Set(d, s.factor[row]);
#pragma GCC unroll 8
          for (int j = 0; j < kV; ++j) x[j] = hn::Mul(factor, x[j]);
        }
      }
      if constexpr (kReadsNext) {
        if constexpr (kDecay == Decay::kRowsFirst) {
          const VF factor = hn::Set(d, s.next_factor[row]);
#pragma GCC unroll 8
          for (int j = 0; j < kV; ++j) x[j] = hn::Mul(factor, x[j]);
        }
        for (int64_t m = 0; m < s.updates; ++m) {
          const VF left = hn::Set(d, s.left[m * s.left_term + row]);
          const float* right = s.right + m * s.right_term;
#pragma GCC unroll 8
          for (int j = 0; j < kV; ++j) {
            x[j] = hn::MulAdd(left, hn::LoadU(d, right + j * kLanes), x[j]);
          }
        }
        const VF key = hn::Set(d, s.next_key[row]);
#pragma GCC unroll 8
        for (int j = 0; j < kV; ++j) stored[odd][j] = hn::MulAdd(key, x[j], stored[odd][j]);
      }
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) hn::StoreU(x[j], d, at + j * kLanes);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kV; ++j) {
    if constexpr (kReadsNext) {
      hn::StoreU(hn::Add(stored[0][j], stored[1][j]), d, s.stored + j * kLanes);
    }
    if (kWrites && s.read != nullptr) hn::StoreU(out[j], d, s.out + j * kLanes);
  }
}

template <int kV, Decay kDecay>
HWY_NOINLINE void DeltaColumn(const DeltaRecurrence& r, int64_t lane) {
  const DF d;
  HWY_ALIGN float write[kV * kLanes], stored[kV * kLanes];
  DeltaSweep sweep = {.rows = r.rows,
                      .stride = r.state.stride,
                      .state = r.state.data + lane,
                      .write = write,
                      .updates = r.updates,
                      .left_term = r.left.term,
                      .right_term = r.right.term,
                      .stored = stored};
  const auto next = [&](int64_t t) {
    sweep.next_key = r.key.At(0, t);
    sweep.next_factor = r.decay.At(0, t);
    if (r.updates == 0) return;
    sweep.left = r.left.At(0, t);
    sweep.right = r.right.At(0, t) + lane;
  };
  next(0);
  Sweep<kV, kDecay, false, true>(sweep);
  for (int64_t t = 0; t < r.tokens; ++t) {
    r.ahead->Some();
    const VF weight = hn::Set(d, r.weight[t * r.weight_step]);
    for (int j = 0; j < kV; ++j) {
      const int64_t at = lane + j * kLanes;
      const VF value = r.value.data == nullptr ? hn::Zero(d) : hn::LoadU(d, r.value.At(0, t) + at);
      const VF error = hn::Sub(value, hn::LoadU(d, stored + j * kLanes));
      hn::StoreU(error, d, r.error.At(0, t) + at);
      hn::StoreU(hn::Mul(weight, error), d, write + j * kLanes);
    }
    sweep.key = sweep.next_key;
    sweep.factor = sweep.next_factor;
    if (r.reads > 0) {
      sweep.read = r.read.At(0, t);
      sweep.out = r.out.At(0, t) + lane;
    }
    const bool has_next = t + 1 < r.tokens;
    if (has_next) next(t + 1);
    if (has_next && r.reads <= 1) {
      Sweep<kV, kDecay, true, true>(sweep);
      continue;
    }
    // Other heads read the state between the two.
    Sweep<kV, kDecay, true, false>(sweep);
    for (int64_t g = 1; g < r.reads; ++g) {
      Gemm<Start::kZero>(1, kV * kLanes, r.rows, {r.read.At(g, t), 0, 1},
                         {sweep.state, sweep.stride}, {r.out.At(g, t) + lane, 0});
    }
    if (has_next) Sweep<kV, kDecay, false, true>(sweep);
  }
}

template <Decay kDecay>
HWY_NOINLINE void RecurDeltaWith(const DeltaRecurrence& r) {
  int64_t lane = 0;
  // What a sweep sums stays in registers.
  if constexpr (HWY_TARGET == HWY_AVX3) {
    for (; lane + 4 * kLanes <= r.lanes; lane += 4 * kLanes) DeltaColumn<4, kDecay>(r, lane);
  }
  for (; lane + 2 * kLanes <= r.lanes; lane += 2 * kLanes) DeltaColumn<2, kDecay>(r, lane);
  if constexpr (kLanes == 16) {
    for (; lane < r.lanes; lane += kLanes) DeltaColumn<1, kDecay>(r, lane);
  }
}

}  // namespace recur_internal

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
