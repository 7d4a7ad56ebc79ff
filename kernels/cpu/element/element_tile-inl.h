// Tiles of elementwise between memory (any dtype and strides) and dense rows of float32.
#if defined(ATTND_CPU_ELEMENT_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_CPU_ELEMENT_TILE_INL_H_
#undef ATTND_CPU_ELEMENT_TILE_INL_H_
#else
#define ATTND_CPU_ELEMENT_TILE_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/core/view.h"
#include "kernels/cpu/simd/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile of an array in memory; strides in elements.
struct Patch {
  DType dtype;
  char* data;
  int64_t rows, columns, row_stride, column_stride;

  char* At(int64_t row, int64_t column) const {
    return data + (row * row_stride + column * column_stride) * SizeOf(dtype);
  }
  // Whether neighbours in memory lie along the rows' axis.
  bool IsTurned() const { return column_stride > 1 && row_stride == 1; }
};

// Whether rows can be read and written where they are.
HWY_INLINE bool IsInPlace(const Patch& p) { return p.dtype == DType::kF32 && p.column_stride == 1; }

// Elements to row `row` of all axes but the last.
HWY_INLINE int64_t RowOffset(const View& view, int64_t row) {
  int64_t offset = 0;
  for (int i = view.shape.rank - 2; i >= 0; --i) {
    offset += row % view.shape[i] * view.stride[i];
    row /= view.shape[i];
  }
  return offset;
}

namespace element_tile_internal {
constexpr int64_t kMost = 2048;  // elements of a patch

template <class T>
HWY_INLINE void Collect(const char* from, int64_t stride, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i, from + i * stride * sizeof(T), sizeof(T));
}

template <class T>
HWY_INLINE void Spread(const T* from, int64_t n, char* to, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * stride * sizeof(T), from + i, sizeof(T));
}

// n dense elements. float32 is copied bit by bit, so that int32 may pass as float32.
HWY_INLINE void WidenDense(DType dtype, const char* from, int64_t n, float* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from, n * sizeof(float));
  } else if (dtype == DType::kI32) {
    for (int64_t i = 0; i < n; ++i) {
      int32_t value;
      std::memcpy(&value, from + i * sizeof(value), sizeof(value));
      to[i] = static_cast<float>(value);
    }
  } else {
    Widen(dtype, from, n, to);
  }
}

// n elements, n <= kMost.
HWY_INLINE void WidenRow(DType dtype, const char* from, int64_t stride, int64_t n, float* to) {
  if (stride == 1) return WidenDense(dtype, from, n, to);
  if (stride == 0) {
    WidenDense(dtype, from, 1, to);
    const hn::ScalableTag<float> d;
    constexpr int64_t kStep = HWY_LANES(float);
    const auto value = hn::Set(d, to[0]);
    int64_t i = 0;
    for (; i + kStep <= n; i += kStep) hn::StoreU(value, d, to + i);
    for (; i < n; ++i) to[i] = to[0];
    return;
  }
  if (SizeOf(dtype) == 2) {
    uint16_t dense[kMost];
    Collect(from, stride, n, dense);
    return WidenDense(dtype, reinterpret_cast<const char*>(dense), n, to);
  }
  float dense[kMost];
  Collect(from, stride, n, dense);
  WidenDense(dtype, reinterpret_cast<const char*>(dense), n, to);
}

// The reverse; dtype is not int32.
HWY_INLINE void NarrowRow(DType dtype, const float* from, int64_t n, char* to, int64_t stride) {
  if (dtype == DType::kF32) {
    if (stride != 1) return Spread(from, n, to, stride);
    std::memcpy(to, from, n * sizeof(float));
  } else if (stride == 1) {
    Narrow(dtype, from, n, to);
  } else {
    uint16_t dense[kMost];
    Narrow(dtype, from, n, dense);
    Spread(dense, n, to, stride);
  }
}
}  // namespace element_tile_internal

// Row r of the patch becomes to[r * pitch ..].
HWY_NOINLINE HWY_MAYBE_UNUSED static void LoadPatch(const Patch& from, float* to, int64_t pitch) {
  using namespace element_tile_internal;
  if (from.IsTurned()) {
    HWY_ALIGN float turned[kMost];
    for (int64_t c = 0; c < from.columns; ++c) {
      WidenDense(from.dtype, from.At(0, c), from.rows, turned + c * from.rows);
    }
    Transpose(turned, from.rows, from.columns, from.rows, to, pitch);
    return;
  }
  for (int64_t r = 0; r < from.rows; ++r) {
    if (r > 0 && from.row_stride == 0) {
      std::memcpy(to + r * pitch, to, from.columns * sizeof(float));
    } else {
      WidenRow(from.dtype, from.At(r, 0), from.column_stride, from.columns, to + r * pitch);
    }
  }
}

// The reverse; dtype is not int32.
HWY_NOINLINE HWY_MAYBE_UNUSED static void StorePatch(const float* from, int64_t pitch,
                                                     const Patch& to) {
  using namespace element_tile_internal;
  if (to.IsTurned()) {
    HWY_ALIGN float turned[kMost];
    Transpose(from, pitch, to.rows, to.columns, turned, to.rows);
    for (int64_t c = 0; c < to.columns; ++c) {
      NarrowRow(to.dtype, turned + c * to.rows, to.rows, to.At(0, c), /*stride=*/1);
    }
    return;
  }
  for (int64_t r = 0; r < to.rows; ++r) {
    NarrowRow(to.dtype, from + r * pitch, to.columns, to.At(r, 0), to.column_stride);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
