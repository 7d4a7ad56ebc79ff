// What the recurrence of scan computes, and the cases of it that need no order of tokens.
#if defined(ATTND_CPU_SCAN_RECURRENCE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_RECURRENCE_INL_H_
#undef ATTND_CPU_SCAN_RECURRENCE_INL_H_
#else
#define ATTND_CPU_SCAN_RECURRENCE_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/cpu/scan/scan_ahead-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"

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
// kRuns: see DecayRuns.
enum class Decay { kNone, kRowsFirst, kRowsLast, kLanesFirst, kLanesLast, kRuns };

// Decays that are one factor for all of X. To multiply X with each of them would cost half of what
// a token costs, so that a run of tokens is computed on X / c instead, c_t being the product of the
// decays from the run's start to token t: the caller divides what a token adds by c_t and
// multiplies what it reads with it. Run n, tokens up to end[n], begins with X *= step[n]; X *=
// step[count] at last.
struct DecayRuns {
  // Values and states up to this part of the largest float32 are safe from the division.
  static constexpr float kLeast = 1.0f / (1 << 16);

  int count = 0;
  int64_t end[kScanSumBlock];
  float step[kScanSumBlock + 1];
  float product[kScanSumBlock], inverse[kScanSumBlock];  // c_t, 1 / c_t of key t of the block

  // Of n >= 1 keys with decays a, each before what its token does; in reverse the last key comes
  // first and each decay after.
  void Find(const float* a, int64_t n, bool reverse) {
    float c = 1;
    count = 0;
    step[0] = 1;
    const auto decay = [&](float factor, int64_t tokens) {
      c *= factor;
      if (c >= kLeast) return;
      if (tokens > 0) end[count++] = tokens;
      step[count] = c;
      c = 1;
    };
    for (int64_t i = 0; i < n; ++i) {
      const int64_t t = reverse ? n - 1 - i : i;
      if (!reverse) decay(a[t], i);
      product[t] = c;
      inverse[t] = 1 / c;
      if (reverse && i + 1 < n) decay(a[t], i + 1);
    }
    end[count++] = n;
    step[count] = reverse ? c * a[0] : c;
  }
};

// For each token t in order, with X the state:
//   X *= decay_t (if First)     X += left_t,m right_t,m^T for m < updates
//   out_t,g = X^T read_t,g for g < reads      X -= after_left_t after_right_t^T (if given)
//   X *= decay_t (if Last)
// left, read, after_left: [rows]; right, out, after_right: [lanes]; decay: [rows] or [lanes].
struct Recurrence {
  int64_t tokens = 0, rows = 0, lanes = 0, updates = 0, reads = 0;
  MutableRows state;
  Series left, right, read, out, decay, after_left, after_right;
  const DecayRuns* runs = nullptr;  // kRuns
  Ahead* ahead = nullptr;           // what to fetch on the way, never null
};

// Tokens that only add, or only read, are products of matrices, with sums over `depth`. A panel of
// lanes at a time: its part of the state, or of what is added, stays in L1. Rows at a time: a block
// of the micro-kernel, which is tall where lanes are few.
template <class F>
HWY_INLINE void ForEachPanel(Ahead* ahead, int64_t lanes, int64_t rows, int64_t depth, const F& f) {
  // At D = Dv = 64 one product fetches all rows of the next block of keys.
  constexpr int64_t kMultiplyAddsPerLine = 512, kMostLines = 32;
  for (int64_t lane = 0; lane < lanes; lane += kPanel) {
    const int64_t width = std::min(kPanel, lanes - lane);
    const int64_t step = width < kPanel ? 2 * kRows : kRows;
    for (int64_t row = 0; row < rows; row += step) {
      ahead->Some(std::min(step * width * depth / kMultiplyAddsPerLine, kMostLines));
      f(lane, width, row, std::min(step, rows - row));
    }
  }
}

HWY_NOINLINE HWY_MAYBE_UNUSED static void AddAll(const Recurrence& r) {
  for (int64_t m = 0; m < r.updates; ++m) {
    const auto add = [&](int64_t lane, int64_t width, int64_t row, int64_t count) {
      Gemm<Start::kAddLast>(count, width, r.tokens, {r.left.At(m, 0) + row, 1, r.left.token},
                            {r.right.At(m, 0) + lane, r.right.token},
                            {r.state.data + row * r.state.stride + lane, r.state.stride});
    };
    ForEachPanel(r.ahead, r.lanes, r.rows, r.tokens, add);
  }
}
HWY_NOINLINE HWY_MAYBE_UNUSED static void ReadAll(const Recurrence& r) {
  for (int64_t g = 0; g < r.reads; ++g) {
    const auto read = [&](int64_t lane, int64_t width, int64_t t, int64_t count) {
      Gemm<Start::kZero>(count, width, r.rows, {r.read.At(g, t), r.read.token, 1},
                         {r.state.data + lane, r.state.stride},
                         {r.out.At(g, t) + lane, r.out.token});
    };
    ForEachPanel(r.ahead, r.lanes, r.tokens, r.rows, read);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
