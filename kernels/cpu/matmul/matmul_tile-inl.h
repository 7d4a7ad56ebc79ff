// One tile of a product: operands where they lie or packed, the sum over k, the finish.
#if defined(ATTND_CPU_MATMUL_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_MATMUL_TILE_INL_H_
#undef ATTND_CPU_MATMUL_TILE_INL_H_
#else
#define ATTND_CPU_MATMUL_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/core/integer.h"
#include "kernels/cpu/matmul/matmul_tiling.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// A rectangle of a matrix in storage: element (r, c) at data + r * row + c * column.
struct Stored {
  const char* data;
  DType dtype;
  int64_t row, column;

  const char* At(int64_t r, int64_t c) const {
    return data + (r * row + c * column) * SizeOf(dtype);
  }
  const float* Floats() const { return reinterpret_cast<const float*>(data); }
};

// n elements `stride` apart.
HWY_MAYBE_UNUSED static void ReadStrided(DType dtype, const char* from, int64_t stride, int64_t n,
                                         float* to) {
  if (stride == 1) return Widen(dtype, from, n, to);
  for (int64_t i = 0; i < n; ++i) Widen(dtype, from + i * stride * SizeOf(dtype), 1, to + i);
}

// [M,K] of A as the micro-kernel reads it for `panels` panels of B: where it lies if that is
// float32 in rows, else copied to `scratch` in the order in which it lies.
HWY_MAYBE_UNUSED static Broadcast LeftOperand(const Stored& a, int64_t M, int64_t K, int64_t panels,
                                              float* scratch) {
  // Lines further apart than this, often a power of two, share few sets of a cache: what is read
  // more than once is copied.
  constexpr int64_t kNearRows = 512, kNearColumns = 128;
  const bool by_column = a.row == 1 && a.column != 1;
  const bool is_near =
      by_column ? a.column <= kNearColumns : a.column == 1 && (panels == 1 || a.row <= kNearRows);
  if (a.dtype == DType::kF32 && is_near) return {a.Floats(), a.row, a.column};
  const int64_t lines = by_column ? K : M, length = by_column ? M : K;
  const int64_t stride = length + MatMulTiling::kGap;
  for (int64_t i = 0; i < lines; ++i) {
    const char* from = by_column ? a.At(0, i) : a.At(i, 0);
    ReadStrided(a.dtype, from, by_column ? 1 : a.column, length, scratch + i * stride);
  }
  return by_column ? Broadcast{scratch, 1, stride} : Broadcast{scratch, stride, 1};
}

// Panels [N / kPanel][K][kPanel] of B [K,N] in float32; the last is filled up with zeros to whole
// vectors. Packed to `to`, or seen where they lie.
struct Panels {
  const float* data;
  int64_t row, panel;  // distances

  Rows operator[](int64_t p) const { return {data + p * panel, row}; }
};

// Rows of K contiguous elements, N of them, to one panel; 64 columns at a time stay in L1.
HWY_MAYBE_UNUSED static void PackTransposed(const Stored& b, int64_t K, int64_t N, float* to,
                                            float* wide) {
  constexpr int64_t kColumns = 64;
  for (int64_t k = 0; k < K; k += kColumns) {
    const int64_t count = std::min(kColumns, K - k);
    const float* from = reinterpret_cast<const float*>(b.At(k, 0));
    int64_t stride = b.column;
    if (b.dtype != DType::kF32) {
      for (int64_t n = 0; n < N; ++n) Widen(b.dtype, b.At(k, n), count, wide + n * kColumns);
      from = wide;
      stride = kColumns;
    }
    Transpose(from, stride, N, count, to + k * kPanel, kPanel);
  }
}

// Rows as they lie, cut into panels: whole rows at a time, which memory serves fastest.
HWY_MAYBE_UNUSED static void PackRows(const Stored& b, int64_t K, int64_t N, float* to) {
  const DF d;
  for (int64_t k = 0; k < K; ++k) {
    const char* row = b.At(k, 0);
    float* at = to + k * kPanel;
    int64_t n = 0;
    for (; n + kPanel <= N; n += kPanel, at += K * kPanel) {
      if (b.dtype == DType::kF32 && b.column == 1) {
        const float* from = reinterpret_cast<const float*>(row) + n;
#pragma GCC unroll 4
        for (int64_t x = 0; x < kPanel; x += kLanes) hn::StoreU(hn::LoadU(d, from + x), d, at + x);
      } else {
        ReadStrided(b.dtype, b.At(k, n), b.column, kPanel, at);
      }
    }
    if (n == N) continue;
    ReadStrided(b.dtype, b.At(k, n), b.column, N - n, at);
    std::fill(at + N - n, at + RoundUp(N - n, kLanes), 0.0f);
  }
}

HWY_MAYBE_UNUSED static Panels RightOperand(const Stored& b, int64_t M, int64_t K, int64_t N,
                                            float* to) {
  // Rows further apart than this would be read in pieces of a panel, again for every row of A.
  const bool is_near = b.row <= 2 * kPanel || M <= 16;
  if (b.dtype == DType::kF32 && b.column == 1 && N % kLanes == 0 && is_near) {
    return {b.Floats(), b.row, kPanel};
  }
  const Panels packed = {to, kPanel, kPanel * K};
  if (b.row != 1 || b.column == 1) {
    PackRows(b, K, N, to);
    return packed;
  }
  float* const wide = to + RoundUp(N, kPanel) * K;
  for (int64_t n = 0; n < N; n += kPanel) {
    const int64_t count = std::min(kPanel, N - n);
    float* const panel = to + n * K;
    PackTransposed({b.At(0, n), b.dtype, b.row, b.column}, K, count, panel, wide);
    const int64_t rest = RoundUp(count, kLanes) - count;
    for (int64_t k = 0; k < K && rest > 0; ++k) {
      std::fill_n(panel + k * kPanel + count, rest, 0.0f);
    }
  }
  return packed;
}

// Fetches the operands of the next step into L2 while this one is summed: the hardware prefetcher
// does not foresee the rows of another block.
class OperandsAhead {
 public:
  // A rectangle, in lines along the axis in which it is contiguous.
  void Add(const Stored& from, int64_t rows, int64_t columns) {
    const bool by_column = from.row == 1 && from.column != 1;
    const int64_t size = SizeOf(from.dtype);
    parts_[count_++] = {from.data, (by_column ? from.column : from.row) * size,
                        by_column ? columns : rows, (by_column ? rows : columns) * size};
  }
  // How many lines are left.
  int64_t lines() const {
    int64_t lines = 0;
    for (int i = 0; i < count_; ++i) lines += parts_[i].rows * CeilDiv(parts_[i].bytes, 64);
    return lines;
  }
  void Fetch(int64_t lines) {
    for (; lines > 0 && part_ < count_; --lines) {
      const Part& part = parts_[part_];
      __builtin_prefetch(part.data + row_ * part.stride + byte_, 0, /*second cache*/ 2);
      byte_ += 64;
      if (byte_ < part.bytes) continue;
      byte_ = 0;
      if (++row_ < part.rows) continue;
      row_ = 0;
      ++part_;
    }
  }

 private:
  struct Part {
    const char* data;
    int64_t stride, rows, bytes;
  };
  Part parts_[2];
  int count_ = 0, part_ = 0;
  int64_t row_ = 0, byte_ = 0;
};

// One step of a sum: C [M,N] becomes A B (`first`), or A B is added to it.
HWY_MAYBE_UNUSED static void StepTile(bool first, int64_t M, int64_t N, int64_t K, Broadcast a,
                                      const Panels& b, MutableRows c, OperandsAhead ahead) {
  const int64_t blocks = CeilDiv(M, kRows) * CeilDiv(N, kPanel);
  const int64_t lines = (ahead.lines() + blocks - 1) / std::max<int64_t>(blocks, 1);
  for (int64_t n = 0; n < N; n += kPanel) {
    const int64_t columns = RoundUp(std::min(kPanel, N - n), kLanes);
    const Rows panel = b[n / kPanel];
    // Narrow panels run over more rows at a time.
    const int64_t step = lines > 0 && columns == kPanel ? kRows : M;
    for (int64_t m = 0; m < M; m += step) {
      const int64_t rows = std::min(step, M - m);
      const Broadcast left = {a.data + m * a.row, a.row, a.column};
      const MutableRows to = {c.data + m * c.stride + n, c.stride};
      if (first) {
        Gemm<Start::kZero>(rows, columns, K, left, panel, to);
      } else {
        Gemm<Start::kAddLast>(rows, columns, K, left, panel, to);
      }
      ahead.Fetch(lines);
    }
  }
}

// to[n] += sum_k a[k] B[k][n] for kThinRows or fewer rows of B, in the order of the micro-kernel.
HWY_MAYBE_UNUSED static void AddRows(int64_t K, int64_t N, const float* a, const float* b,
                                     int64_t stride, float* to) {
  const DF d;
  const auto add = [&](const float* column, VF sum) HWY_ATTR {
    if (K == MatMulTiling::kThinRows) {
#pragma GCC unroll 8
      for (int64_t k = 0; k < MatMulTiling::kThinRows; ++k) {
        sum = hn::MulAdd(hn::Set(d, a[k]), hn::LoadU(d, column + k * stride), sum);
      }
      return sum;
    }
    for (int64_t k = 0; k < K; ++k) {
      sum = hn::MulAdd(hn::Set(d, a[k]), hn::LoadU(d, column + k * stride), sum);
    }
    return sum;
  };
  int64_t n = 0;
  for (; n + kLanes <= N; n += kLanes) hn::StoreU(add(b + n, hn::LoadU(d, to + n)), d, to + n);
  if (n == N) return;
  float rest_b[MatMulTiling::kThinRows * kLanes] = {}, rest[kLanes] = {};
  for (int64_t k = 0; k < K; ++k) {
    std::copy(b + k * stride + n, b + k * stride + N, rest_b + k * kLanes);
  }
  std::copy(to + n, to + N, rest);
  stride = kLanes;
  hn::StoreU(add(rest_b, hn::LoadU(d, rest)), d, rest);
  std::copy(rest, rest + N - n, to + n);
}

// As StepTile for a few rows: B is read once, in long pieces of rows, with the same bits as result.
// `sums` M rows of N, `wide` kThinRows rows of N.
HWY_MAYBE_UNUSED static void StepThin(bool first, int64_t M, int64_t N, int64_t K, Broadcast a,
                                      const Stored& b, MutableRows c, float* sums, float* wide) {
  std::fill_n(sums, M * N, 0.0f);
  for (int64_t k = 0; k < K; k += MatMulTiling::kThinRows) {
    const int64_t count = std::min(MatMulTiling::kThinRows, K - k);
    const float* rows = reinterpret_cast<const float*>(b.At(k, 0));
    int64_t stride = b.row;
    if (b.dtype != DType::kF32) {
      for (int64_t i = 0; i < count; ++i) Widen(b.dtype, b.At(k + i, 0), N, wide + i * N);
      rows = wide;
      stride = N;
    }
    for (int64_t m = 0; m < M; ++m) {
      float factors[MatMulTiling::kThinRows];
      for (int64_t i = 0; i < count; ++i) factors[i] = a.data[m * a.row + (k + i) * a.column];
      AddRows(count, N, factors, rows, stride, sums + m * N);
    }
  }
  for (int64_t m = 0; m < M; ++m) {
    float* to = c.data + m * c.stride;
    const float* sum = sums + m * N;
    for (int64_t n = 0; n < N; ++n) to[n] = first ? sum[n] : to[n] + sum[n];
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
