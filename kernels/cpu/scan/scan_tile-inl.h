// What scan does to tiles of rows: load with conversion and feature map, store, row operations.
// Tiles are float32, padded with zeros to whole vectors of the widest target (16 floats).
#if defined(ATTND_CPU_SCAN_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_SCAN_TILE_INL_H_
#undef ATTND_CPU_SCAN_TILE_INL_H_
#else
#define ATTND_CPU_SCAN_TILE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/core/view.h"
#include "kernels/cpu/scan/scan_ahead-inl.h"
#include "kernels/cpu/scan/scan_item.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/feature_map-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"
#include "kernels/cpu/simd/wide_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile in scratch: row i at data + i * pitch, `width` floats of it in use.
struct Tile {
  float* data;
  int64_t pitch, width;

  float* Row(int64_t i) const { return data + i * pitch; }
  Rows Read(int64_t row = 0) const { return {Row(row), pitch}; }
  MutableRows Write(int64_t row = 0) const { return {Row(row), pitch}; }
};

// The maximum of no values.
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// e^(a - b), a <= b being maxima of what was seen.
HWY_INLINE float ShiftFactor(float a, float b) {
  if (a == kNothing) return 0.0f;
  return a == b ? 1.0f : std::exp(a - b);
}

HWY_INLINE float Dot(const float* a, const float* b, int64_t width) {
  const DF d;
  VF sum = hn::Zero(d);
  for (int64_t c = 0; c < width; c += kLanes) {
    sum = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// to[i] = a . b of 16 floats number i; width: a multiple of 16.
HWY_INLINE void PartialDots(const float* a, const float* b, int64_t width, float* to) {
  const DF d;
  for (int64_t c = 0; c < width; c += ScanWidth::kVector, ++to) {
    VF sum = hn::Mul(hn::LoadU(d, a + c), hn::LoadU(d, b + c));
    for (int64_t j = kLanes; j < ScanWidth::kVector; j += kLanes) {
      sum = hn::MulAdd(hn::LoadU(d, a + c + j), hn::LoadU(d, b + c + j), sum);
    }
    *to = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// to = log(from), n floats; n is rounded up to whole vectors.
HWY_INLINE void LogRow(const float* from, int64_t n, float* to) {
  const wide::D d;
  const hn::Rebind<float, wide::D> df;
  for (int64_t c = 0; c < n; c += static_cast<int64_t>(hn::Lanes(d))) {
    const auto x = hn::PromoteTo(d, hn::LoadU(df, from + c));
    hn::StoreU(hn::DemoteTo(df, wide::Log(x)), df, to + c);
  }
}

HWY_INLINE void ScaleRow(float factor, float* x, int64_t width) {
  const DF d;
  for (int64_t c = 0; c < width; c += kLanes) {
    hn::StoreU(hn::Mul(hn::Set(d, factor), hn::LoadU(d, x + c)), d, x + c);
  }
}

// y += factor * x.
HWY_INLINE void AddRow(float factor, const float* x, float* y, int64_t width) {
  const DF d;
  for (int64_t c = 0; c < width; c += kLanes) {
    hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, x + c), hn::LoadU(d, y + c)), d, y + c);
  }
}

// y *= x, y += x1 x2, element by element.
HWY_INLINE void MultiplyRow(const float* x, float* y, int64_t width) {
  const DF d;
  for (int64_t c = 0; c < width; c += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, x + c), hn::LoadU(d, y + c)), d, y + c);
  }
}
HWY_INLINE void AddProduct(const float* x1, const float* x2, float* y, int64_t width) {
  const DF d;
  for (int64_t c = 0; c < width; c += kLanes) {
    const VF product = hn::MulAdd(hn::LoadU(d, x1 + c), hn::LoadU(d, x2 + c), hn::LoadU(d, y + c));
    hn::StoreU(product, d, y + c);
  }
}

HWY_INLINE void ScaleRows(const float* factor, int64_t rows, const Tile& tile) {
  for (int64_t i = 0; i < rows; ++i) ScaleRow(factor[i], tile.Row(i), tile.width);
}

// x *= e^exponent; 0 stays 0 however large the factor is, and only a product that is too large for
// float32 becomes infinite.
HWY_NOINLINE HWY_MAYBE_UNUSED static void Lift(double exponent, float* x, int64_t width) {
  // e^600 lifts every float32 but 0 beyond float32.
  const double factor = std::exp(std::clamp(exponent, -600.0, 600.0));
  for (int64_t c = 0; c < width; ++c) x[c] = static_cast<float>(x[c] * factor);
}

inline void ZeroTile(const Tile& tile, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) std::fill(tile.Row(i), tile.Row(i) + tile.width, 0.0f);
}

// Where finished rows go. What does not fit L2 goes to memory past the caches: it would leave them
// before it is read, and its lines would be fetched only to be overwritten. FlushStream() when
// all is stored.
class RowStore {
 public:
  explicit RowStore(const RowsOf& to) : to_(to), width_(to.view.shape[3]) {
    constexpr int64_t kCachedBytes = 1 << 20, kLineBytes = 64;
    const View& view = to.view;
    const int64_t stride = view.stride[2] * SizeOf(view.dtype);
    const auto address = reinterpret_cast<uintptr_t>(to.Row(0)) | static_cast<uintptr_t>(stride) |
                         static_cast<uintptr_t>(4 * width_);
    streams_ = view.dtype == DType::kF32 && address % kLineBytes == 0 &&
               stride * view.shape[2] > kCachedBytes;
  }

  HWY_INLINE void Store(int64_t i, const float* row, float factor = 1.0f) const {
    if (!streams_) return Narrow(to_.view.dtype, row, width_, to_.Row(i), factor);
    const DF d;
    float* to = reinterpret_cast<float*>(to_.Row(i));
    for (int64_t c = 0; c < width_; c += kLanes) {
      hn::Stream(hn::Mul(hn::Set(d, factor), hn::LoadU(d, row + c)), d, to + c);
    }
  }
  bool streams() const { return streams_; }

 private:
  const RowsOf& to_;
  const int64_t width_;
  bool streams_;
};

// Loads rows and replaces them by their features. kExp: shift[i] becomes the maximum of row i and
// the features are e^(x - shift[i]), 0 if that is -inf; for the other maps it becomes 0, and may be
// null. kIdentity: x + offset.
HWY_NOINLINE HWY_MAYBE_UNUSED static void LoadFeatures(FeatureMap map, const RowsOf& from,
                                                       const Tile& tile, float* shift,
                                                       float offset = 0) {
  const DF d;
  const int64_t D = from.view.shape[3];
  // Whole vectors of float32 need no conversion.
  const int64_t direct = from.view.dtype == DType::kF32 ? D / kLanes * kLanes : 0;
  const int64_t stride = from.view.stride[2] * SizeOf(from.view.dtype);
  const std::byte* source = from.Row(0);
  WithMap(map, [&](auto constant) {
    constexpr FeatureMap kMap = decltype(constant)::value;
    for (int64_t i = 0; i < from.count; ++i, source += stride) {
      float* row = tile.Row(i);
      if (direct < D) Widen(from.view.dtype, source + 4 * direct, D - direct, row + direct);
      if (D < tile.width) std::fill(row + D, row + tile.width, 0.0f);
      float most = 0.0f;
      if constexpr (kMap == FeatureMap::kExp) {
        most = kNothing;
        const float* x = reinterpret_cast<const float*>(source);
        // Max gives its second argument when one is NaN.
        VF largest = hn::Set(d, kNothing);
        for (int64_t c = 0; c < direct; c += kLanes)
          largest = hn::Max(hn::LoadU(d, x + c), largest);
        most = hn::GetLane(hn::MaxOfLanes(d, largest));
        for (int64_t c = direct; c < D; ++c) most = row[c] > most ? row[c] : most;
      }
      if (shift != nullptr) shift[i] = most;
      const VF subtracted = hn::Set(d, most == kNothing ? 0.0f : most), more = hn::Set(d, offset);
      const auto map_vector = [&](const float* x, float* to) HWY_ATTR {
        VF phi = Feature<kMap>(d, hn::LoadU(d, x), subtracted);
        if constexpr (kMap == FeatureMap::kIdentity) phi = hn::Add(phi, more);
        hn::StoreU(phi, d, to);
      };
      for (int64_t c = 0; c < direct; c += kLanes) {
        map_vector(reinterpret_cast<const float*>(source) + c, row + c);
      }
      for (int64_t c = direct; c < tile.width; c += kLanes) map_vector(row + c, row + c);
      if (D < tile.width) std::fill(row + D, row + tile.width, 0.0f);
    }
  });
}

inline void LoadRows(const RowsOf& from, const Tile& tile) {
  LoadFeatures(FeatureMap::kIdentity, from, tile, /*shift=*/nullptr);
}

// Whether rows are float32 of whole vectors, which can be read where they are.
inline bool IsDirect(const View& view, int64_t width) {
  return view.dtype == DType::kF32 && view.shape[3] == width;
}
// Whether such rows lie close together: a wide pitch would fight for few sets of L1.
inline bool IsClose(const View& view, int64_t width) {
  return IsDirect(view, width) && view.stride[2] > 0 && view.stride[2] <= 2 * width;
}
inline Tile InPlace(const RowsOf& from) {
  return {reinterpret_cast<float*>(from.Row(0)), from.view.stride[2], from.view.shape[3]};
}
// Rows where they are, if they lie close together, else loaded to `tile`.
inline Tile ReadRows(const RowsOf& from, const Tile& tile) {
  if (IsClose(from.view, tile.width)) return InPlace(from);
  LoadRows(from, tile);
  return tile;
}
// Row i with zeros up to `width`: where it is or, converted, in `x`.
HWY_INLINE const float* ReadRow(const RowsOf& from, int64_t i, int64_t width, float* x) {
  if (IsDirect(from.view, width)) return reinterpret_cast<const float*>(from.Row(i));
  const int64_t n = from.view.shape[3];
  Widen(from.view.dtype, from.Row(i), n, x);
  std::fill(x + n, x + width, 0.0f);
  return x;
}

// Stores gradient(x) = phi'(x) * gradient(phi), row i times e^(lift[i]); lift null: all are 0.
// `source` holds x, `x` is a row of scratch.
HWY_NOINLINE HWY_MAYBE_UNUSED static void StoreThroughMap(FeatureMap map, const RowsOf& to,
                                                          const View& source, const Tile& phi,
                                                          const Tile& dphi, float* x,
                                                          const float* lift) {
  const DF d;
  const RowsOf from = {source, to.b, to.h, to.n, to.count};
  const int64_t D = source.shape[3];
  const RowStore store(to);
  WithMap(map, [&](auto constant) {
    constexpr FeatureMap kMap = decltype(constant)::value;
    for (int64_t i = 0; i < to.count; ++i) {
      const float *value = ReadRow(from, i, phi.width, x), *feature = phi.Row(i);
      float* row = dphi.Row(i);
      for (int64_t c = 0; c < phi.width; c += kLanes) {
        const VF slope = Derivative<kMap>(d, hn::LoadU(d, value + c), hn::LoadU(d, feature + c));
        hn::StoreU(hn::Mul(slope, hn::LoadU(d, row + c)), d, row + c);
      }
      if (lift != nullptr && lift[i] != 0) Lift(lift[i], row, D);
      store.Store(i, row);
    }
  });
}

inline void StoreRows(const RowsOf& to, const Tile& tile) {
  const RowStore store(to);
  for (int64_t i = 0; i < to.count; ++i) store.Store(i, tile.Row(i));
}

inline void ZeroRows(const RowsOf& to) {
  for (int64_t i = 0; i < to.count; ++i) {
    if (i % 1024 == 1023 && CheckPoint()) return;
    std::memset(to.Row(i), 0, static_cast<size_t>(to.view.shape[3] * SizeOf(to.view.dtype)));
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
