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

// Four elements of a row are loaded and changed by one thread, rows 8 apart.
template <int kWidth>
struct ChunkPart {
  static constexpr int kApart = 8;
  const int c, top;
  SIMT_FN ChunkPart()
      : c(static_cast<int>(threadIdx.x) % (kWidth / 4) * 4),
        top(static_cast<int>(threadIdx.x) / (kWidth / 4)) {}
};

// Starts to copy rows to a tile, each four elements to the place of four floats, zeros where there
// are none; of `columns`, a multiple of 4.
template <int kWidth>
SIMT_FN void StartChunk(float* tile, int stride, const ChunkRows& rows, int columns) {
  const ChunkPart<kWidth> part;
  if (part.c >= columns || !rows.has_fours) return;
  float* to = tile + part.top * stride + part.c;
  const int64_t size = SizeOf(rows.view.dtype);
  const char* from =
      static_cast<const char*>(rows.view.data) + (rows.at + part.top * rows.view.n + part.c) * size;
  const int64_t step = part.kApart * rows.view.n * size;
#pragma unroll 1
  for (int row = part.top; row < kChunk; row += part.kApart, from += step) {
    const bool is_there = rows.has(row) && part.c < rows.width;
    const void* const at = is_there ? from : rows.view.data;
    if (size == 4) {
      simt::CopyAsync<16>(to, at, is_there);
    } else {
      simt::CopyAsync<8>(to, at, is_there);
    }
    to += part.kApart * stride;
  }
}

// tile[row][c] = what StartChunk copied, and this thread has waited for, as change(row, x) leaves
// four elements of it. Rows that could not be copied are read here.
template <int kWidth, class Change>
SIMT_FN void FinishChunk(float* tile, int stride, const ChunkRows& rows, int columns,
                         const Change& change) {
  const ChunkPart<kWidth> part;
  if (part.c >= columns) return;
  const int64_t at = rows.at + part.c * rows.view.d;
#pragma unroll 1
  for (int row = part.top; row < kChunk; row += part.kApart) {
    float* const to = tile + row * stride + part.c;
    float x[4] = {0, 0, 0, 0};
    if (rows.has(row) && part.c < rows.width) {
      if (rows.has_fours) {
        WithFloatType(rows.view.dtype, [&](auto* type) {
          LoadFour(reinterpret_cast<const std::remove_pointer_t<decltype(type)>*>(to), x);
        });
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (part.c + e >= rows.width) break;
          x[e] = LoadAt(rows.view, at + row * rows.view.n + e * rows.view.d);
        }
      }
      change(row, x);
#pragma unroll
      for (int e = 1; e < 4; ++e) {
        if (part.c + e >= rows.width) x[e] = 0;
      }
    }
    StoreFour(to, x);
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
