// The recurrence of scan on a state X [rows, lanes]: every token adds outer products and reads.
// Pieces of the state stay in registers while all tokens of a block are processed, so a token costs
// its multiply-adds alone, and no pair of tokens is computed that is invisible.
#if defined(ATTND_CPU_SCAN_RECUR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_RECUR_INL_H_
#undef ATTND_CPU_SCAN_RECUR_INL_H_
#else
#define ATTND_CPU_SCAN_RECUR_INL_H_
#endif

#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/scan/scan_recurrence-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace recur_internal {

template <int kM, int kV>
HWY_INLINE void LoadPiece(const float* state, int64_t stride, VF (&x)[kM][kV]) {
  const DF d;
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) x[i][j] = hn::LoadU(d, state + i * stride + j * kLanes);
  }
}
template <int kM, int kV>
HWY_INLINE void StorePiece(const VF (&x)[kM][kV], int64_t stride, float* state) {
  const DF d;
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) hn::StoreU(x[i][j], d, state + i * stride + j * kLanes);
  }
}

template <int kM, int kV>
HWY_INLINE void ScalePiece(float factor, VF (&x)[kM][kV]) {
  if (factor == 1) return;
  const VF f = hn::Set(DF(), factor);
#pragma GCC unroll 8
  for (int i = 0; i < kM; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kV; ++j) x[i][j] = hn::Mul(f, x[i][j]);
  }
}

// One function per shape, never inlined: see gemm-inl.h. Everything of `r` is copied first: the
// compiler cannot know that stores to `out` leave it alone.
template <int kM, int kV, Decay kDecay>
HWY_NOINLINE void Piece(const Recurrence& r, int64_t row, int64_t lane) {
  Ahead::Lines lines = r.ahead->Take(r.tokens);
  const DF d;
  const int64_t stride = r.state.stride, updates = r.updates, reads = r.reads;
  float* const state = r.state.data + row * stride + lane;
  VF x[kM][kV];
  LoadPiece(state, stride, x);
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
  const DecayRuns* const runs = r.runs;
  const int64_t tokens = r.tokens;
  int64_t end = 0;
  int run = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    if constexpr (kDecay == Decay::kRuns) {
      if (t == end) {
        ScalePiece(runs->step[run], x);
        end = runs->end[run++];
      }
    }
    __builtin_prefetch(lines.first, /*rw=*/0, /*locality=*/2);
    lines.first += lines.step;
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
  if constexpr (kDecay == Decay::kRuns) ScalePiece(runs->step[runs->count], x);
  StorePiece(x, stride, state);
}

// Piece for one update and one read a token, two tokens at a time: the operations are the same. A
// token's read waits for its update and each row of it for the row before, so a row of one token
// goes with the row before of its read and with older rows of the other token: nothing waits for
// its neighbour. A core that is shared looks ahead too little to find that by itself.
template <int kM, int kV, Decay kDecay>
HWY_NOINLINE void PairPiece(const Recurrence& r, int64_t row, int64_t lane) {
  const DF d;
  Ahead::Lines lines = r.ahead->Take(r.tokens);
  const int64_t stride = r.state.stride;
  float* const state = r.state.data + row * stride + lane;
  VF x[kM][kV];
  LoadPiece(state, stride, x);
  constexpr bool kByRow = kDecay == Decay::kRowsFirst || kDecay == Decay::kRowsLast;
  constexpr bool kFirst = kDecay == Decay::kRowsFirst || kDecay == Decay::kLanesFirst;
  constexpr bool kLast = kDecay == Decay::kRowsLast || kDecay == Decay::kLanesLast;
  const bool is_first = row == 0;
  // Each of two tokens has pointers of its own: sums of a pointer, a step and a row would not fit
  // the registers.
  struct Token {
    const float *left, *right, *weight, *factor;
    float* out;
  };
  const Series r_left = r.left, r_right = r.right, r_read = r.read, r_out = r.out,
               r_decay = r.decay;
  const auto token = [&](int64_t t) -> Token {
    return {r_left.At(0, t) + row, r_right.At(0, t) + lane, r_read.At(0, t) + row,
            r_decay.At(0, t) + (kByRow ? row : lane), r_out.At(0, t) + lane};
  };
  Token at[2] = {token(0), token(1)};
  const auto next = [&](auto tokens) HWY_ATTR {
    constexpr int kT = decltype(tokens)::value;
    VF sum[kT][kV], value[kT][kV];
#pragma GCC unroll 8
    for (int t = 0; t < kT; ++t) {
      __builtin_prefetch(lines.first, /*rw=*/0, /*locality=*/2);
      lines.first += lines.step;
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) {
        sum[t][j] = is_first ? hn::Zero(d) : hn::LoadU(d, at[t].out + j * kLanes);
        value[t][j] = hn::LoadU(d, at[t].right + j * kLanes);
      }
    }
    const auto decay = [&](int t, int i) HWY_ATTR {
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) {
        const float* factor = at[t].factor;
        const VF f = kByRow ? hn::Set(d, factor[i]) : hn::LoadU(d, factor + j * kLanes);
        x[i][j] = hn::Mul(f, x[i][j]);
      }
    };
#pragma GCC unroll 16
    for (int step = 0; step < kM + 2 * kT - 1; ++step) {
#pragma GCC unroll 8
      for (int t = 0; t < kT; ++t) {
        const int i = step - 2 * t;
        if (i >= 0 && i < kM) {
          if constexpr (kFirst) decay(t, i);
          const VF element = hn::Set(d, at[t].left[i]);
#pragma GCC unroll 8
          for (int j = 0; j < kV; ++j) x[i][j] = hn::MulAdd(element, value[t][j], x[i][j]);
        }
        if (i >= 1 && i <= kM) {
          const VF element = hn::Set(d, at[t].weight[i - 1]);
#pragma GCC unroll 8
          for (int j = 0; j < kV; ++j) sum[t][j] = hn::MulAdd(element, x[i - 1][j], sum[t][j]);
          if constexpr (kLast) decay(t, i - 1);
        }
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kT; ++t) {
#pragma GCC unroll 8
      for (int j = 0; j < kV; ++j) hn::StoreU(sum[t][j], d, at[t].out + j * kLanes);
      at[t].left += 2 * r_left.token;
      at[t].right += 2 * r_right.token;
      at[t].weight += 2 * r_read.token;
      at[t].factor += 2 * r_decay.token;
      at[t].out += 2 * r_out.token;
    }
  };
  const DecayRuns* const runs = r.runs;
  const int64_t tokens = r.tokens;
  int64_t t = 0, end = tokens;
  for (int run = 0; t < tokens; ++run) {
    if constexpr (kDecay == Decay::kRuns) {
      ScalePiece(runs->step[run], x);
      end = runs->end[run];
    }
    for (; t + 2 <= end; t += 2) next(std::integral_constant<int, 2>());
    if (t == end) continue;
    next(std::integral_constant<int, 1>());
    std::swap(at[0], at[1]);  // the second of the two comes next
    ++t;
  }
  if constexpr (kDecay == Decay::kRuns) ScalePiece(runs->step[runs->count], x);
  StorePiece(x, stride, state);
}

// Rows in ascending order whatever the shape of a piece: what is read does not depend on it.
template <int kV, Decay kDecay>
HWY_INLINE void PairColumn(const Recurrence& r, int64_t lane) {
  constexpr int kM = (HWY_TARGET == HWY_AVX3 ? 16 : 8) / 2;
  int64_t row = 0;
  for (; row + kM <= r.rows; row += kM) PairPiece<kM, kV, kDecay>(r, row, lane);
  for (; row < r.rows; ++row) PairPiece<1, kV, kDecay>(r, row, lane);
}
template <int kV, Decay kDecay>
HWY_INLINE void Column(const Recurrence& r, int64_t lane) {
  // Half of the registers hold the state; the rest the values of a token.
  constexpr int kM = (HWY_TARGET == HWY_AVX3 ? 16 : 8) / (kV == 1 ? 2 : kV);
  int64_t row = 0;
  for (; row + kM <= r.rows; row += kM) Piece<kM, kV, kDecay>(r, row, lane);
  for (; row < r.rows; ++row) Piece<1, kV, kDecay>(r, row, lane);
}

}  // namespace recur_internal

// REQUIRES: lanes is a multiple of 16.
template <Decay kDecay>
HWY_NOINLINE void RecurWith(const Recurrence& r) {
  using recur_internal::Column, recur_internal::PairColumn;
  int64_t lane = 0;
  if (r.updates == 1 && r.reads == 1 && r.after_left.data == nullptr) {
    for (; lane + 2 * kLanes <= r.lanes; lane += 2 * kLanes) PairColumn<2, kDecay>(r, lane);
  }
  for (; lane + 4 * kLanes <= r.lanes; lane += 4 * kLanes) Column<4, kDecay>(r, lane);
  for (; lane + 2 * kLanes <= r.lanes; lane += 2 * kLanes) Column<2, kDecay>(r, lane);
  if constexpr (kLanes == 16) {
    for (; lane < r.lanes; lane += kLanes) Column<1, kDecay>(r, lane);
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
    case Decay::kRuns:
      return RecurWith<Decay::kRuns>(r);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
