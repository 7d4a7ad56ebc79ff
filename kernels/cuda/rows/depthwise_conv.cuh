// Convolution along the rows with one weight a head and tap. A thread sums eight rows of its
// columns, so that each element of x that it reads serves up to eight taps. With 33 taps (66
// operations for 8 bytes of float32) it is bound by memory: 35 fused multiply-adds and some 15
// other instructions an element are 0.7 of the time that its bytes take. The gradient of the
// weights keeps eight taps a thread and slides along 16 rows; its shares of a block's rows are
// added in double. Bound by instructions: x and dout come from cache once for every eight taps.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows/quads.h"
#include "kernels/device/depthwise_conv.h"

namespace attnd::cuda {

constexpr int kConvThreads = 256;
constexpr int kConvRows = 8;       // of out, of a thread
constexpr int kConvTaps = 8;       // of the gradient, of a thread
constexpr int kConvGradRows = 16;  // of dout, of a thread

struct ConvOver {
  View x, weight, out;  // out: of the gradient dout
  int64_t left;
  bool flipped, by_quads;
  uint8_t group_log2;  // threads side by side along the columns
  int64_t row_blocks, column_blocks;
  // Of the gradient.
  int64_t taps;
  float* shares;  // [B][H][row_blocks][taps]
};

// Where an element of row 0 of matrix `matrix` lies.
SIMT_FN int64_t MatrixAt(const View& view, int64_t matrix) {
  const int64_t H = view.shape.dims[1], b = matrix / H;
  return b * view.stride[0] + (matrix - b * H) * view.stride[1];
}

struct ConvWeights {
  const float* first;  // of the head, in the order of the sum
  int64_t stride;
  int w;
  SIMT_FN float At(int t) const { return t >= 0 && t < w ? first[t * stride] : 0; }
};

// Rows n0 to n0 + 7 of out at a thread's columns, taps in ascending order. `x`: of row 0.
template <int kWide>
SIMT_FN void SumTaps(const View& x, int64_t x_at, int64_t N, int64_t begin, int64_t end,
                     const ConvWeights& weights, float (&sum)[kConvRows][kWide]) {
  // Step s reads row begin + s, to which row r of the eight applies tap s - r. ring[s % 8] is
  // weight s, of the last eight. Rows outside x are passed over.
  const int first = static_cast<int>(begin < 0 ? -begin : 0);
  const int last = static_cast<int>(min(end, N) - begin);
  const int64_t pitch = x.stride[2];
  float ring[kConvRows];
  const int start = first & -kConvRows;
#pragma unroll
  for (int u = 0; u < kConvRows; ++u) ring[u] = weights.At(start - kConvRows + u);
  for (int base = start; base < last; base += kConvRows) {
    const bool is_inner = base >= first && base + kConvRows <= last && base >= kConvRows - 1 &&
                          base + kConvRows <= weights.w;
    if (is_inner) {
      float rows[kConvRows][kWide], next[kConvRows];
#pragma unroll
      for (int u = 0; u < kConvRows; ++u) {
        LoadWide<kWide>(x.data, x.dtype, x_at + (begin + base + u) * pitch, rows[u]);
        next[u] = weights.first[(base + u) * weights.stride];
      }
#pragma unroll
      for (int u = 0; u < kConvRows; ++u) {
        ring[u] = next[u];
#pragma unroll
        for (int r = 0; r < kConvRows; ++r) {
#pragma unroll
          for (int c = 0; c < kWide; ++c) {
            sum[r][c] = fmaf(ring[(u - r) & (kConvRows - 1)], rows[u][c], sum[r][c]);
          }
        }
      }
      continue;
    }
#pragma unroll
    for (int u = 0; u < kConvRows; ++u) {
      const int s = base + u;
      ring[u] = weights.At(s);
      if (s < first || s >= last) continue;
      float row[kWide];
      LoadWide<kWide>(x.data, x.dtype, x_at + (begin + s) * pitch, row);
#pragma unroll
      for (int r = 0; r < kConvRows; ++r) {
        if (s < r || s - r >= weights.w) continue;
#pragma unroll
        for (int c = 0; c < kWide; ++c) {
          sum[r][c] = fmaf(ring[(u - r) & (kConvRows - 1)], row[c], sum[r][c]);
        }
      }
    }
  }
}

template <int kWide>
SIMT_FN void ConvBlock(const ConvOver& p, int64_t block) {
  const int thread = static_cast<int>(threadIdx.x), lanes = 1 << p.group_log2;
  const int64_t rest = block / p.column_blocks, column_block = block - rest * p.column_blocks;
  const int64_t matrix = rest / p.row_blocks, row_block = rest - matrix * p.row_blocks;
  const int64_t N = p.x.shape.dims[2], D = p.x.shape.dims[3];
  const int64_t column = (column_block * lanes + (thread & (lanes - 1))) * kWide;
  const int64_t first =
      (row_block * (kConvThreads >> p.group_log2) + (thread >> p.group_log2)) * kConvRows;
  if (column >= D || first >= N) return;

  const int64_t head = matrix % p.x.shape.dims[1];
  ConvWeights weights = {
      .first = static_cast<const float*>(p.weight.data) + head * p.weight.stride[0],
      .stride = p.weight.stride[1],
      .w = static_cast<int>(p.weight.shape.dims[1])};
  if (p.flipped) {
    weights.first += (weights.w - 1) * weights.stride;
    weights.stride = -weights.stride;
  }
  float sum[kConvRows][kWide] = {};
  const int64_t begin = first - p.left;
  SumTaps<kWide>(p.x, MatrixAt(p.x, matrix) + column, N, begin, begin + kConvRows + weights.w - 1,
                 weights, sum);
  const int64_t to = MatrixAt(p.out, matrix) + column;
#pragma unroll
  for (int r = 0; r < kConvRows; ++r) {
    if (first + r >= N) break;
    StoreWide<kWide>(p.out.data, p.out.dtype, to + (first + r) * p.out.stride[2], sum[r]);
  }
}

__global__ void __launch_bounds__(kConvThreads)
    DepthwiseConvKernel(const __grid_constant__ Problems<ConvOver> problems) {
  const Place<ConvOver> place = FindPlace(problems);
  if (place.problem.by_quads) {
    ConvBlock<kQuad>(place.problem, place.block);
  } else {
    ConvBlock<1>(place.problem, place.block);
  }
}

// sum[k] += dout[n] . x[n + tap + k - left] over a thread's rows n and columns.
template <bool kAligned>
SIMT_FN void SumTapGrads(const ConvOver& p, int64_t matrix, int64_t first, int64_t column,
                         int64_t tap, float (&sum)[kConvTaps]) {
  const int64_t N = p.x.shape.dims[2], count = p.x.shape.dims[3] - column;
  const int64_t x_at = MatrixAt(p.x, matrix) + column, out_at = MatrixAt(p.out, matrix) + column;
  const int64_t shift = tap - p.left;  // of the first tap's row of x
  const int taps = static_cast<int>(min(p.taps - tap, int64_t{kConvTaps}));
  // Row i of x, counted from the first that is read, at ring[i % 8].
  float ring[kConvTaps][kQuad];
  const auto load = [&](int64_t i, float(&row)[kQuad]) {
    const int64_t n = first + shift + i;
#pragma unroll
    for (int c = 0; c < kQuad; ++c) row[c] = 0;
    if (n >= 0 && n < N) {
      LoadUpToFour<kAligned>(p.x.data, p.x.dtype, x_at + n * p.x.stride[2], count, row);
    }
  };
#pragma unroll
  for (int i = 0; i + 1 < kConvTaps; ++i) load(i, ring[i]);
  for (int base = 0; base < kConvGradRows; base += kConvTaps) {
#pragma unroll
    for (int u = 0; u < kConvTaps; ++u) {
      const int64_t n = first + base + u;
      load(base + u + kConvTaps - 1, ring[(u + kConvTaps - 1) % kConvTaps]);
      if (n >= N) continue;
      float g[kQuad];
      LoadUpToFour<kAligned>(p.out.data, p.out.dtype, out_at + n * p.out.stride[2], count, g);
      const bool is_inner = n + shift >= 0 && n + shift + kConvTaps <= N && taps == kConvTaps;
#pragma unroll
      for (int k = 0; k < kConvTaps; ++k) {
        // A row outside x is not multiplied: dout may hold infinities.
        const bool is_row = is_inner || (k < taps && n + shift + k >= 0 && n + shift + k < N);
        if (!is_row) continue;
#pragma unroll
        for (int c = 0; c < kQuad; ++c) {
          sum[k] = fmaf(g[c], ring[(u + k) % kConvTaps][c], sum[k]);
        }
      }
    }
  }
}

constexpr int kConvWarps = kConvThreads / simt::kWarp;
constexpr size_t kConvGradShared = simt::SharedBytes<float>(kConvWarps * kConvTaps);

// A block: one matrix, its rows of row_block, eight taps.
__global__ void __launch_bounds__(kConvThreads)
    ConvSharesKernel(const __grid_constant__ Problems<ConvOver> problems) {
  const Place<ConvOver> place = FindPlace(problems);
  const ConvOver& p = place.problem;
  simt::SharedTiles shared;
  float* sums = shared.Take<float>(kConvWarps * kConvTaps);
  const int thread = static_cast<int>(threadIdx.x), lanes = 1 << p.group_log2;
  const int64_t groups = (p.taps + kConvTaps - 1) / kConvTaps;
  const int64_t share = place.block / groups, tap = (place.block - share * groups) * kConvTaps;
  const int64_t matrix = share / p.row_blocks;
  const int64_t row =
      (share - matrix * p.row_blocks) * (kConvThreads >> p.group_log2) + (thread >> p.group_log2);
  const int64_t first = row * kConvGradRows, D = p.x.shape.dims[3];
  float sum[kConvTaps] = {};
  for (int64_t column = (thread & (lanes - 1)) * kQuad; column < D && first < p.x.shape.dims[2];
       column += lanes * kQuad) {
    if (p.by_quads) {
      SumTapGrads<true>(p, matrix, first, column, tap, sum);
    } else {
      SumTapGrads<false>(p, matrix, first, column, tap, sum);
    }
  }
#pragma unroll
  for (int k = 0; k < kConvTaps; ++k) {
    const float all = simt::WarpSum(sum[k]);
    if (thread % simt::kWarp == 0) sums[thread / simt::kWarp * kConvTaps + k] = all;
  }
  __syncthreads();
  if (thread >= kConvTaps || tap + thread >= p.taps) return;
  float all = 0;
  for (int warp = 0; warp < kConvWarps; ++warp) all += sums[warp * kConvTaps + thread];
  p.shares[share * p.taps + tap + thread] = all;
}

// The shares of a problem, added up: a block takes 32 taps of a head.
struct ConvTotalOver {
  View dweight;
  const float* shares;  // [B][H][row_blocks][taps]
  int64_t B, row_blocks;
};

constexpr size_t kConvTotalShared = simt::SharedBytes<double>(kConvThreads);

__global__ void __launch_bounds__(kConvThreads)
    ConvTotalKernel(const __grid_constant__ Problems<ConvTotalOver> problems) {
  const Place<ConvTotalOver> place = FindPlace(problems);
  const ConvTotalOver& p = place.problem;
  simt::SharedTiles shared;
  double* sums = shared.Take<double>(kConvThreads);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / simt::kWarp;
  const int64_t H = p.dweight.shape.dims[0], taps = p.dweight.shape.dims[1];
  const int64_t tap_blocks = (taps + simt::kWarp - 1) / simt::kWarp;
  const int64_t h = place.block / tap_blocks;
  const int64_t tap = (place.block - h * tap_blocks) * simt::kWarp + thread % simt::kWarp;
  double sum = 0;
  for (int64_t i = warp; i < p.B * p.row_blocks && tap < taps; i += kConvWarps) {
    const int64_t b = i / p.row_blocks;
    const int64_t share = (b * H + h) * p.row_blocks + (i - b * p.row_blocks);
    sum += static_cast<double>(p.shares[share * taps + tap]);
  }
  sums[thread] = sum;
  __syncthreads();
  if (warp != 0 || tap >= taps) return;
  for (int other = 1; other < kConvWarps; ++other) sum += sums[other * simt::kWarp + thread];
  static_cast<float*>(p.dweight.data)[h * p.dweight.stride[0] + tap * p.dweight.stride[1]] =
      static_cast<float>(sum);
}

}  // namespace attnd::cuda
