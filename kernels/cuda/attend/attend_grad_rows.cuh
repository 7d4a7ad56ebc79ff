// What the gradient of attend needs of each query row, and sums over rows, heads and parts.
//
// Bound: bytes.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/attend_grad_data.h"
#include "kernels/cuda/attend/attend_grad_tile.h"
#include "kernels/cuda/attend/attend_terms.h"
#include "kernels/cuda/attend/attend_tiles.h"
#include "kernels/cuda/launch.h"

namespace attnd::cuda::attend_grad {

// Blocks of a processor at least: the compiler spills rather than give a thread more registers than
// it thinks good.
constexpr int kRowBlocks = 8;

// Rows of a head, four columns at a time: the same four wherever the rows lie.
class RowFours {
 public:
  SIMT_FN RowFours(const Plane& plane, int64_t b, int64_t h, int width)
      : rows_(HeadRows::Of(plane, b, h)), width_(width), at_once_(ReadsFour(rows_, width)) {}
  // Zeros beyond the width. REQUIRES: d % 4 == 0, d < width.
  SIMT_FN void Load(int64_t row, int d, float (&x)[4]) const {
    const int64_t at = rows_.At(row) + d;
    if (at_once_) return LoadFour(rows_, at, x);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      x[n] = d + n < width_ ? LoadFloat(rows_.data, rows_.dtype, at + n) : 0.0f;
    }
  }

 private:
  const HeadRows rows_;
  const int width_;
  const bool at_once_;
};

SIMT_FN float LseLowOf(const AttendData& a, int64_t b, int64_t h, int64_t i) {
  if (a.lse_low.data == nullptr) return 0;
  return static_cast<const float*>(a.lse_low.data)[a.lse_low.Head(b, h) + i * a.lse_low.row];
}

// A block for 64 rows of a head, a warp for a row at a time.
__global__ void __launch_bounds__(kGradThreads, kRowBlocks)
    GradRows(const __grid_constant__ Problems<GradData> problems) {
  const auto [p, block, index] = FindPlace(problems);
  const AttendData& a = p.a;
  const int64_t tiles = (a.Nq + kSide - 1) / kSide, tile = block % tiles;
  const int64_t h = block / tiles % a.H, b = block / tiles / a.H;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  simt::SharedTiles shared;
  float* sizes = shared.Take<float>(kGradThreads / 32);
  const RowFours out(a.out, b, h, a.Dv), dout(p.dout, b, h, a.Dv);
  float most = 0;
  for (int64_t n = warp; n < kSide; n += kGradThreads / 32) {
    const int64_t i = tile * kSide + n;
    if (i >= a.Nq) break;
    GradRow row = {0, INFINITY, 0, 1};
    if (i < a.seqs[b].nq) {
      row.low_2 = 0;
      float squares = 0;
      if (a.is_softmax()) {
        const float lse = static_cast<const float*>(a.lse.data)[a.lse.Head(b, h) + i * a.lse.row];
        row.lse = lse;
        row.low_2 = kLog2E * LseLowOf(a, b, h, i);
        if (p.dout.data != nullptr) {
          float sum = 0;
          for (int d = lane * 4; d < a.Dv; d += 128) {
            float of_dout[4], of_out[4];
            dout.Load(i, d, of_dout);
            out.Load(i, d, of_out);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
              sum = fmaf(of_out[n], of_dout[n], sum);
              squares = fmaf(of_dout[n], of_dout[n], squares);
            }
          }
          row.shift = simt::WarpSum(sum);
        }
        if (p.dlse.data != nullptr) {
          row.shift -= static_cast<const float*>(p.dlse.data)[p.dlse.Head(b, h) + i * p.dlse.row];
        }
        if (lse == -INFINITY) row = {0, INFINITY, 0, 1};
      } else {
        if (a.row_weight.data != nullptr) {
          row.factor = static_cast<const float*>(
              a.row_weight.data)[a.row_weight.Head(b, h) + i * a.row_weight.row];
        }
        if (p.dout.data != nullptr && p.tile_sizes != nullptr) {
          for (int d = lane * 4; d < a.Dv; d += 128) {
            float of_dout[4];
            dout.Load(i, d, of_dout);
#pragma unroll
            for (int n = 0; n < 4; ++n) squares = fmaf(of_dout[n], of_dout[n], squares);
          }
        }
      }
      if (p.tile_sizes != nullptr) {
        const float size = sqrtf(simt::WarpSum(squares)) + fabsf(row.shift);
        if (row.low_2 != INFINITY && size < INFINITY) most = fmaxf(most, size);
      }
    }
    if (lane == 0) p.RowsOf(b, h)[i] = row;
  }
  if (p.tile_sizes == nullptr) return;
  if (lane == 0) sizes[warp] = most;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int n = 1; n < kGradThreads / 32; ++n) most = fmaxf(most, sizes[n]);
  p.tile_sizes[(b * a.H + h) * tiles + tile] = most;
}

// A block for a head.
__global__ void __launch_bounds__(kGradThreads)
    GradHeadSizes(const __grid_constant__ Problems<GradData> problems) {
  const auto [p, block, index] = FindPlace(problems);
  const int64_t tiles = (p.a.Nq + kSide - 1) / kSide;
  float most = 0;
  for (int64_t n = threadIdx.x; n < tiles; n += kGradThreads) {
    most = fmaxf(most, p.tile_sizes[block * tiles + n]);
  }
  simt::SharedTiles shared;
  float* sizes = shared.Take<float>(kGradThreads);
  sizes[threadIdx.x] = most;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int n = 1; n < kGradThreads; ++n) most = fmaxf(most, sizes[n]);
  p.head_sizes[block] = most;
}

// A block for one number of GradHeads.
__global__ void __launch_bounds__(kGradThreads, kRowBlocks)
    GradHeadSums(const __grid_constant__ Problems<GradHeads> problems) {
  const auto [head, block, index] = FindPlace(problems);
  const GradData& p = head.grad;
  const int64_t heads = head.sums_h ? 1 : p.a.H, of_b = block / heads, of_h = block % heads;
  double sum = 0;
  for (int64_t b = of_b; b < (head.sums_b ? p.a.B : of_b + 1); ++b) {
    for (int64_t h = of_h; h < (head.sums_h ? p.a.H : of_h + 1); ++h) {
      const GradRow* rows = p.RowsOf(b, h);
      const float* slopes = head.is_sinks ? nullptr : p.slope_sums + (b * p.a.H + h) * p.a.Nq;
      const double sink = head.is_sinks ? SinkOf(p.a, b, h) : 0.0f;
      const int64_t nq = p.a.is_softmax() || !head.is_sinks ? p.a.seqs[b].nq : 0;
      for (int64_t i = threadIdx.x; i < nq; i += kGradThreads) {
        const GradRow& row = rows[i];
        if (row.low_2 == INFINITY) continue;
        if (!head.is_sinks) {
          sum += slopes[i];
          continue;
        }
        const double exponent = min(sink - row.lse - LseLowOf(p.a, b, h, i), 0.0);
        sum -= simt::Exp2(static_cast<float>(exponent * 1.4426950408889634)) * row.shift;
      }
    }
  }
  simt::SharedTiles shared;
  double* sums = shared.Take<double>(kGradThreads);
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int n = 1; n < kGradThreads; ++n) sum += sums[n];
  StoreFloat(head.to.data, head.to.dtype, head.to.Head(of_b, of_h), static_cast<float>(sum));
}

__global__ void __launch_bounds__(GradParts::kThreads)
    GradSumParts(const __grid_constant__ Problems<GradParts> problems) {
  const auto [p, block, index] = FindPlace(problems);
  const int64_t elements = p.rows * p.width;
  const int64_t blocks = (elements + GradParts::kElements - 1) / GradParts::kElements;
  const int64_t plane = block / blocks, heads = p.sums_h ? 1 : p.H;
  const int64_t of_b = plane / heads, of_h = plane % heads;
  const int64_t begin = block % blocks * GradParts::kElements;
  const int64_t end = min(begin + GradParts::kElements, elements);
  for (int64_t at = begin + threadIdx.x; at < end; at += GradParts::kThreads) {
    const int64_t row = at / p.width, column = at - row * p.width;
    if (p.careful != nullptr) {
      const int64_t tile = plane * ((p.rows + kSide - 1) / kSide) + row / kSide;
      if (p.careful[tile * p.rounds] == 0) continue;
    }
    float sum = 0;
    for (int64_t b = of_b; p.count > 0 && b < (p.sums_b ? p.B : of_b + 1); ++b) {
      for (int64_t h = of_h; h < (p.sums_h ? p.H : of_h + 1); ++h) {
        const float* from = p.parts + (b * p.H + h) * p.count * p.all_rows * p.width +
                            (p.first + row) * p.width + column;
        for (int64_t n = 0; n < p.count; ++n) sum += from[n * p.all_rows * p.width];
      }
    }
    StoreFloat(p.to.data, p.to.dtype, p.to.Head(of_b, of_h) + row * p.to.row + column * p.to.column,
               sum * p.factor);
  }
}

}  // namespace attnd::cuda::attend_grad
