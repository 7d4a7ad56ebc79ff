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

// One head's rows of a tensor as the chunks of a segment find them, in shared memory.
struct ChunkTensor {
  char* data;         // of the segment's first position, which may have no row
  int64_t row, head;  // bytes from row to row, and to the next head of the group
  int64_t column;     // elements
  int begin, end;     // positions of the segment that have rows
  int width;
  DType dtype;
  bool has_fours;

  // `first`: the number of the first position's row, of which [low, high) count.
  SIMT_FN void Set(const ScanView& of, int64_t b, int64_t h, int64_t first, int64_t low,
                   int64_t high, int columns) {
    const int64_t size = SizeOf(of.dtype);
    data = static_cast<char*>(of.data) + (b * of.b + h * of.h + first * of.n) * size;
    row = of.n * size;
    head = of.h * size;
    column = of.d;
    begin = static_cast<int>(max(low - first, int64_t{0}));
    end = static_cast<int>(min(high - first, int64_t{kScanSegment}));
    width = columns;
    dtype = of.dtype;
    has_fours = HasFours(of, columns);
  }
  SIMT_FN bool HasSome(int position) const { return begin < position + kChunk && end > position; }
  SIMT_FN char* At(int position, int member) const { return data + position * row + member * head; }
  // Four elements from column c < width on, zeros beyond.
  SIMT_FN void Read(int position, int member, int c, float (&x)[4]) const {
    const char* const from = At(position, member);
    WithFloatType(dtype, [&](auto* type) {
      auto* const elements = reinterpret_cast<const std::remove_pointer_t<decltype(type)>*>(from);
      if (has_fours) {
        LoadFour(elements + c, x);
        return;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[e] = c + e < width ? ToFloat(elements[(c + e) * column]) : 0.0f;
      }
    });
  }
  SIMT_FN void Write(int position, int member, int c, const float (&x)[4]) const {
    char* const to = At(position, member);
    WithFloatType(dtype, [&](auto* type) {
      auto* const elements = reinterpret_cast<decltype(type)>(to);
      if (has_fours) {
        StoreFour(elements + c, x);
        return;
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (c + e < width) Store(elements + (c + e) * column, x[e]);
      }
    });
  }
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

// Starts to copy the rows of the chunk at `position` to a tile, each four elements to the place of
// four floats, zeros where there are none; of `columns`, a multiple of 4.
template <int kWidth>
SIMT_FN void StartChunk(float* tile, int stride, const ChunkTensor& tensor, int position,
                        int member, int columns) {
  const ChunkPart<kWidth> part;
  if (part.c >= columns || !tensor.has_fours) return;
  float* to = tile + part.top * stride + part.c;
  const int64_t size = SizeOf(tensor.dtype), step = part.kApart * tensor.row;
  const char* from = tensor.At(position + part.top, member) + part.c * size;
  const int end = part.c < tensor.width ? tensor.end : 0;
  const unsigned begin = tensor.begin, count = max(end - tensor.begin, 0);
#pragma unroll 1
  for (int row = 0; row < kChunk; row += part.kApart, from += step) {
    const bool is_there = static_cast<unsigned>(position + part.top + row) - begin < count;
    const void* const at = is_there ? from : tensor.data;
    if (size == 4) {
      simt::CopyAsync<16>(to + row * stride, at, is_there);
    } else {
      simt::CopyAsync<8>(to + row * stride, at, is_there);
    }
  }
}

// tile[row][c] = what StartChunk copied, and this thread has waited for, as change(position, x)
// leaves four elements of it. Rows that could not be copied are read here.
template <int kWidth, class Change>
SIMT_FN void FinishChunk(float* tile, int stride, const ChunkTensor& tensor, int position,
                         int member, int columns, const Change& change) {
  const ChunkPart<kWidth> part;
  if (part.c >= columns) return;
  const int begin = tensor.begin, end = tensor.end, left = tensor.width - part.c;
  const DType dtype = tensor.dtype;
  const bool has_fours = tensor.has_fours;
  const char* const from = tensor.At(0, member);
#pragma unroll 1
  for (int row = part.top; row < kChunk; row += part.kApart) {
    float* const to = tile + row * stride + part.c;
    float x[4] = {0, 0, 0, 0};
    const int at = position + row;
    if (at >= begin && at < end && left > 0) {
      if (has_fours) {
        WithFloatType(dtype, [&](auto* type) {
          LoadFour(reinterpret_cast<const std::remove_pointer_t<decltype(type)>*>(to), x);
        });
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (e < left)
            x[e] = LoadFloat(from + at * tensor.row, dtype, (part.c + e) * tensor.column);
        }
      }
      change(at, x);
#pragma unroll
      for (int e = 1; e < 4; ++e) {
        if (e >= left) x[e] = 0;
      }
    }
    StoreFour(to, x);
  }
}

// The features of four elements: the maps that are used most without a call.
SIMT_FN void MapFour(FeatureMap map, float shift, float offset, float (&x)[4]) {
  if (map == FeatureMap::kEluPlusOne) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = x[e] > 0 ? x[e] + 1 : expf(x[e]);
  } else if (map == FeatureMap::kIdentity) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] += offset;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = Feature(map, x[e], shift, offset);
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
