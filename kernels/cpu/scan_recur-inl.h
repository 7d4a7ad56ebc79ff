// The recurrence of scan on a state X [rows, lanes]: every token adds outer products and reads.
// Pieces of the state wait in registers while all tokens of a block pass by, so a token costs what
// its multiply-adds cost, and no token ever meets one that it does not see.
#if defined(ATTND_CPU_SCAN_RECUR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_RECUR_INL_H_
#undef ATTND_CPU_SCAN_RECUR_INL_H_
#else
#define ATTND_CPU_SCAN_RECUR_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/scan_ahead-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of term m and token t start at data + m * term + t * token. Tokens count in the order of
// the recurrence: one that runs backwards starts at its last row with a negative stride.
struct Series {
  float* data = nullptr;
  int64_t term = 0, token = 0;

  float* At(int64_t m, int64_t t) const { return data + m * term + t * token; }
};

// When and with what a token multiplies X: factors per row or per lane, before all else or at last.
enum class Decay { kNone, kRowsFirst, kRowsLast, kLanesFirst, kLanesLast };

// For each token t in order, with X the state:
//   X *= decay_t (if First)     X += left_t,m right_t,m^T for m < updates
//   out_t,g = X^T read_t,g for g < reads      X -= after_left_t after_right_t^T (if given)
//   X *= decay_t (if Last)
// left, read, after_left: [rows]; right, out, after_right: [lanes]; decay: [rows] or [lanes].
struct Recurrence {
  int64_t tokens = 0, rows = 0, lanes = 0, updates = 0, reads = 0;
  MutableRows state;
  Series left, right, read, out, decay, after_left, after_right;
  Ahead* ahead = nullptr;  // what to fetch on the way, never null
};

namespace recur_internal {

// One function per shape, never inlined: see gemm-inl.h. Everything of `r` is copied first: the
// compiler cannot know that stores to `out` leave it alone.
template <int kM, int kV, Decay kDecay>
HWY_NOINLINE void Piece(const Recurrence& r, int64_t row, int64_t lane) {
  const std::byte* const* lines = r.ahead->Lines();
  const DF d;
  const int64_t stride = r.state.stride, updates = r.updates, reads = r.reads;
  float* const state = r.state.data + row * stride + lane;
  VF x[kM][kV];
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) x[i][j] = hn::LoadU(d, state + i * stride + j * kLanes);
  }
  const bool is_first = row == 0;
  constexpr bool kByRow = kDecay == Decay::kRowsFirst || kDecay == Decay::kRowsLast;
  const auto multiply = [&](const float* factor) HWY_ATTR {
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) {
        const VF f = kByRow ? hn::Set(d, factor[i]) : hn::LoadU(d, factor + j * kLanes);
        x[i][j] = hn::Mul(f, x[i][j]);
      }
    }
  };
  const auto add = [&](const float* left, const float* right) HWY_ATTR {
    VF values[kV];
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) values[j] = hn::LoadU(d, right + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) {
      const VF element = hn::Set(d, left[i]);
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) x[i][j] = hn::MulAdd(element, values[j], x[i][j]);
    }
  };
  const auto subtract = [&](const float* left, const float* right) HWY_ATTR {
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) {
      const VF element = hn::Set(d, left[i]);
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) {
        x[i][j] = hn::NegMulAdd(element, hn::LoadU(d, right + j * kLanes), x[i][j]);
      }
    }
  };
  const auto read = [&](const float* weight, float* out) HWY_ATTR {
    VF sum[kV];
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) sum[j] = is_first ? hn::Zero(d) : hn::LoadU(d, out + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kM; ++i) {
      const VF element = hn::Set(d, weight[i]);
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) sum[j] = hn::MulAdd(element, x[i][j], sum[j]);
    }
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) hn::StoreU(sum[j], d, out + j * kLanes);
  };
  const Series r_left = r.left, r_right = r.right, r_read = r.read, r_out = r.out;
  const float *left = r_left.data + row, *right = r_right.data + lane, *weight = r_read.data + row;
  const float* factor = r.decay.data + (kByRow ? row : lane);
  const float *after_left = r.after_left.data, *after_right = r.after_right.data + lane;
  float* out = r_out.data + lane;
  const bool has_after = after_left != nullptr;
  const int64_t factor_step = r.decay.token, after_left_step = r.after_left.token,
                after_right_step = r.after_right.token;
  after_left += row;
  for (int64_t t = r.tokens; t > 0; --t) {
    __builtin_prefetch(*lines++, /*rw=*/0, /*locality=*/2);
    if constexpr (kDecay == Decay::kRowsFirst || kDecay == Decay::kLanesFirst) multiply(factor);
    for (int64_t m = 0; m < updates; ++m) add(left + m * r_left.term, right + m * r_right.term);
    for (int64_t g = 0; g < reads; ++g) read(weight + g * r_read.term, out + g * r_out.term);
    if (has_after) subtract(after_left, after_right);
    if constexpr (kDecay == Decay::kRowsLast || kDecay == Decay::kLanesLast) multiply(factor);
    left += r_left.token;
    right += r_right.token;
    weight += r_read.token;
    out += r_out.token;
    factor += factor_step;
    after_left += after_left_step;
    after_right += after_right_step;
  }
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) hn::StoreU(x[i][j], d, state + i * stride + j * kLanes);
  }
}

// Rows in ascending order whatever the shape of a piece: what is read does not depend on it.
template <int kV, Decay kDecay>
HWY_INLINE void Column(const Recurrence& r, int64_t lane) {
  // Half of the registers hold the state; the rest the values of a token.
  constexpr int kM = (HWY_TARGET == HWY_AVX3 ? 16 : 8) / (kV == 1 ? 2 : kV);
  int64_t row = 0;
  for (; row + kM <= r.rows; row += kM) Piece<kM, kV, kDecay>(r, row, lane);
  for (; row < r.rows; ++row) Piece<1, kV, kDecay>(r, row, lane);
}

}  // namespace recur_internal

// REQUIRES: lanes is a multiple of 16, tokens <= kScanBlock.
template <Decay kDecay>
HWY_NOINLINE void RecurWith(const Recurrence& r) {
  using recur_internal::Column;
  int64_t lane = 0;
  for (; lane + 4 * kLanes <= r.lanes; lane += 4 * kLanes) Column<4, kDecay>(r, lane);
  for (; lane + 2 * kLanes <= r.lanes; lane += 2 * kLanes) Column<2, kDecay>(r, lane);
  if constexpr (kLanes == 16) {
    for (; lane < r.lanes; lane += kLanes) Column<1, kDecay>(r, lane);
  }
}

// Tokens that only add, or only read, need no order.
HWY_NOINLINE HWY_MAYBE_UNUSED static void AddAll(const Recurrence& r) {
  constexpr int64_t kStep = kRows;
  for (int64_t m = 0; m < r.updates; ++m) {
    const Rows right = {r.right.At(m, 0), r.right.token};
    for (int64_t row = 0; row < r.rows; row += kStep) {
      r.ahead->Some();
      const Broadcast left = {r.left.At(m, 0) + row, 1, r.left.token};
      const MutableRows state = {r.state.data + row * r.state.stride, r.state.stride};
      Gemm<Start::kAddLast>(std::min(kStep, r.rows - row), r.lanes, r.tokens, left, right, state);
    }
  }
}
HWY_NOINLINE HWY_MAYBE_UNUSED static void ReadAll(const Recurrence& r) {
  constexpr int64_t kStep = kRows;
  const Rows state = {r.state.data, r.state.stride};
  for (int64_t g = 0; g < r.reads; ++g) {
    for (int64_t t = 0; t < r.tokens; t += kStep) {
      r.ahead->Some();
      const Broadcast weight = {r.read.At(g, t), r.read.token, 1};
      const MutableRows out = {r.out.At(g, t), r.out.token};
      Gemm<Start::kZero>(std::min(kStep, r.tokens - t), r.lanes, r.rows, weight, state, out);
    }
  }
}

HWY_NOINLINE HWY_MAYBE_UNUSED static void Recur(Decay decay, const Recurrence& r) {
  if (r.tokens == 0) return;
  if (decay == Decay::kNone && r.after_left.data == nullptr) {
    if (r.reads == 0) return AddAll(r);
    if (r.updates == 0) return ReadAll(r);
  }
  switch (decay) {
    case Decay::kNone:
      return RecurWith<Decay::kNone>(r);
    case Decay::kRowsFirst:
      return RecurWith<Decay::kRowsFirst>(r);
    case Decay::kRowsLast:
      return RecurWith<Decay::kRowsLast>(r);
    case Decay::kLanesFirst:
      return RecurWith<Decay::kLanesFirst>(r);
    case Decay::kLanesLast:
      return RecurWith<Decay::kLanesLast>(r);
  }
}

// The delta rule (Yang et al. 2024, eq. 1), where a token writes what its key does not yet read:
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
