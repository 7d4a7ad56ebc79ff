// Chunks of positions of scan in shared memory: features and values as float32, decays as sums of
// their logarithms.
#pragma once

#include "kernels/cuda/fours.h"
#include "kernels/cuda/scan/scan_tiles.cuh"
#include "kernels/cuda/scan/scan_walk.cuh"

namespace attnd::cuda {

constexpr int kChunk = 64;  // positions; a segment has several
static_assert(kScanSegment % kChunk == 0);

// Whether rows of `columns` elements can be read and written four at a time.
SIMT_FN bool HasFours(const ScanView& view, int columns) {
  const uintptr_t bytes = view.dtype == DType::kF32 ? 16 : 8;
  return reinterpret_cast<uintptr_t>(view.data) % bytes == 0 && view.b % 4 == 0 &&
         view.h % 4 == 0 && view.n % 4 == 0 && view.d == 1 && columns % 4 == 0;
}

// Rows [begin, end) of a chunk, of one head of a tensor; the others are zeros.
struct ChunkRows {
  const ScanView& view;
  int64_t at;  // of the element in column 0 of row 0, which need not exist
  int begin, end;
  int width;
  bool has_fours;

  // `first`: the number of row 0 in the tensor, whose rows [low, high) count.
  SIMT_FN ChunkRows(const ScanView& of, int64_t b, int64_t h, int64_t first, int64_t low,
                    int64_t high, int columns)
      : view(of),
        at(b * of.b + h * of.h + first * of.n),
        begin(static_cast<int>(max(low - first, int64_t{0}))),
        end(static_cast<int>(min(high - first, int64_t{kChunk}))),
        width(columns),
        has_fours(HasFours(of, columns)) {}
  SIMT_FN bool any() const { return begin < end; }
  SIMT_FN bool has(int row) const { return row >= begin && row < end; }
};

// tile[row][c] = the elements of `rows` as change(row, x) leaves four of them, for c < `columns`;
// zeros where there are none. `columns` is a multiple of 4.
template <int kWidth, class Change>
SIMT_FN void LoadChunk(float* tile, int stride, const ChunkRows& rows, int columns,
                       const Change& change) {
  constexpr int kAcross = kWidth / 4, kApart = 8, kRows = kChunk / kApart;
  const int c = static_cast<int>(threadIdx.x) % kAcross * 4;
  const int top = static_cast<int>(threadIdx.x) / kAcross;
  if (c >= columns) return;
  float* const to = tile + top * stride + c;
  WithFloatType(rows.view.dtype, [&](auto* type) {
    const int64_t step = kApart * rows.view.n;
    auto* from = static_cast<const std::remove_pointer_t<decltype(type)>*>(rows.view.data) +
                 rows.at + top * rows.view.n + c * rows.view.d;
    if (rows.has_fours) {
      // All loads under way at once.
      float x[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i, from += step) {
        x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
        if (rows.has(top + i * kApart) && c < rows.width) LoadFour(from, x[i]);
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) StoreFour(to + i * kApart * stride, x[i]);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kRows; ++i, from += step) {
      float x[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool is_there = rows.has(top + i * kApart) && c + e < rows.width;
        x[e] = is_there ? ToFloat(from[e * rows.view.d]) : 0.0f;
      }
      StoreFour(to + i * kApart * stride, x);
    }
  });
  // A thread changes what it wrote: there is nothing to wait for, and little code.
#pragma unroll 1
  for (int row = top; row < kChunk; row += kApart) {
    if (!rows.has(row) || c >= rows.width) continue;
    float x[4];
    float* const at = tile + row * stride + c;
    LoadFour(at, x);
    change(row, x);
#pragma unroll
    for (int e = 1; e < 4; ++e) {
      if (c + e >= rows.width) x[e] = 0;
    }
    StoreFour(at, x);
  }
}

// The features of four elements: the maps that are used most without a call.
SIMT_FN void MapFour(const ScanWork& w, float shift, float (&x)[4]) {
  if (w.map == FeatureMap::kEluPlusOne) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = x[e] > 0 ? x[e] + 1 : expf(x[e]);
  } else if (w.map == FeatureMap::kIdentity) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] += w.offset;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = Feature(w.map, x[e], shift, w.offset);
  }
}

// Logarithms of decays, summed over the keys of a chunk up to each position: high + low, of which
// the high parts are multiples of 2^-8 and their differences exact. Sums of a chunk reach 2^14,
// where float32 alone would leave 2^-10 of a difference.
struct ChunkDecays {
  float *high, *low;  // [kChunk]
  float* from_start;  // of what came before the chunk, up to each position
  float* to_end;      // of what each position writes, up to the chunk's last

  SIMT_FN static ChunkDecays Take(simt::SharedTiles* tiles) {
    ChunkDecays d;
    d.high = tiles->Take<float>(kChunk);
    d.low = tiles->Take<float>(kChunk);
    d.from_start = tiles->Take<float>(kChunk);
    d.to_end = tiles->Take<float>(kChunk);
    return d;
  }
  static constexpr size_t kBytes = 4 * simt::SharedBytes<float>(kChunk);

  SIMT_FN void Fill(float factor) const {
    for (int r = threadIdx.x; r < kChunk; r += blockDim.x) from_start[r] = to_end[r] = factor;
  }
  // log_decay(position of the chunk) <= 0. For one warp.
  template <class F>
  SIMT_FN void Sum(const F& log_decay) const {
    const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
    // e^-256 is 0, too.
    const auto log_of = [&](int r) {
      const float log = log_decay(r);
      return static_cast<double>(log < -256 ? -256.0f : log);
    };
    const double first = log_of(2 * lane), second = log_of(2 * lane + 1);
    double sum = first + second;
    for (int distance = 1; distance < simt::kWarp; distance *= 2) {
      const double other = __shfl_up_sync(simt::kAllLanes, sum, distance);
      if (lane >= distance) sum += other;
    }
    const double all = __shfl_sync(simt::kAllLanes, sum, simt::kWarp - 1);
    Put(2 * lane, sum - second, all);
    Put(2 * lane + 1, sum, all);
  }
  // e^ of what decays between two positions.
  SIMT_FN float Between(int from, int to) const {
    return expf((high[to] - high[from]) + (low[to] - low[from]));
  }

 private:
  SIMT_FN void Put(int r, double sum, double all) const {
    const double rounded = rint(sum * 256) * (1.0 / 256);
    high[r] = static_cast<float>(rounded);
    low[r] = static_cast<float>(sum - rounded);
    from_start[r] = expf(static_cast<float>(sum));
    to_end[r] = expf(static_cast<float>(all - sum));
  }
};

// Of the four lanes that share a row of a fragment.
SIMT_FN float SumOfQuad(float x) {
  x += __shfl_xor_sync(simt::kAllLanes, x, 1);
  return x + __shfl_xor_sync(simt::kAllLanes, x, 2);
}

SIMT_FN void Clear(float (&x)[8][4]) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[n][i] = 0;
  }
}

// The logarithm of KeyDecay.
SIMT_FN float LogKeyDecay(const ScanWork& w, int64_t b, int64_t g, int64_t t) {
  if (t < 0) return 0;
  if (w.k_shift != nullptr) {
    const float* const shift = w.k_shift + w.Key(b, g, t);
    const float before = t == 0 ? -INFINITY : shift[-1];
    if (before == -INFINITY) return -INFINITY;
    return before == shift[0] ? 0 : before - shift[0];
  }
  return LoadAt(w.log_decay, b * w.log_decay.b + g * w.log_decay.h + t * w.log_decay.n);
}

}  // namespace attnd::cuda
