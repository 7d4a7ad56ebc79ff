// Rows of elements that a group of neighbouring threads reads together: four elements a thread
// where memory allows, else one.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/fours.h"
#include "kernels/cuda/simt.h"
#include "kernels/cuda/views.h"

namespace attnd::cuda {

constexpr int kQuad = 4;

// given(), in kernels.
SIMT_FN bool HasView(const View& view) { return view.shape.rank != 0; }

// What all rows of a view begin at, in bytes: a number divides all of them if it divides this. 0
// where there is no memory.
inline uint64_t RowAddresses(const View& view) {
  auto bits = reinterpret_cast<uint64_t>(view.data);
  for (int i = 0; i + 1 < view.shape.rank; ++i) {
    const auto bytes = static_cast<uint64_t>(view.stride[i] * SizeOf(view.dtype));
    if (view.shape[i] > 1) bits |= bytes;
  }
  return bits;
}

inline bool HasDenseRows(const View& view) {
  const int last = view.shape.rank - 1;
  return view.shape[last] == 1 || view.stride[last] == 1;
}

// Whether four elements of a row are one aligned access.
inline bool HasQuads(const View& view) {
  return HasDenseRows(view) && view.shape[view.shape.rank - 1] % kQuad == 0 &&
         RowAddresses(view) % static_cast<uint64_t>(kQuad * SizeOf(view.dtype)) == 0;
}

// The lowest power of two that is at least n, at most 2^most, as its logarithm.
inline int Log2Up(int64_t n, int most) {
  int log2 = 0;
  while (log2 < most && int64_t{1} << log2 < n) ++log2;
  return log2;
}

// Four elements from `at` on, which is aligned to as many.
SIMT_FN void LoadQuad(const void* data, DType dtype, int64_t at, float (&x)[kQuad]) {
  WithFloatType(dtype, [&](auto* type) {
    LoadFour(static_cast<const std::remove_pointer_t<decltype(type)>*>(data) + at, x);
  });
}
SIMT_FN void StoreQuad(void* data, DType dtype, int64_t at, const float (&x)[kQuad]) {
  WithFloatType(dtype, [&](auto* type) { StoreFour(static_cast<decltype(type)>(data) + at, x); });
}

// kWide (4 or 1) elements; `at` counts elements of memory.
template <int kWide>
SIMT_FN void LoadWide(const void* data, DType dtype, int64_t at, float (&x)[kWide]) {
  if constexpr (kWide == kQuad) {
    LoadQuad(data, dtype, at, x);
  } else {
    x[0] = LoadFloat(data, dtype, at);
  }
}
template <int kWide>
SIMT_FN void StoreWide(void* data, DType dtype, int64_t at, const float (&x)[kWide]) {
  if constexpr (kWide == kQuad) {
    StoreQuad(data, dtype, at, x);
  } else {
    StoreFloat(data, dtype, at, x[0]);
  }
}

// `count` (up to four) elements of a row that is dense, then zeros. kAligned: four, as above.
template <bool kAligned>
SIMT_FN void LoadUpToFour(const void* data, DType dtype, int64_t at, int64_t count,
                          float (&x)[kQuad]) {
  if constexpr (kAligned) {
    LoadQuad(data, dtype, at, x);
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) x[i] = i < count ? LoadFloat(data, dtype, at + i) : 0;
  }
}
template <bool kAligned>
SIMT_FN void StoreUpToFour(void* data, DType dtype, int64_t at, int64_t count,
                           const float (&x)[kQuad]) {
  if constexpr (kAligned) {
    StoreQuad(data, dtype, at, x);
  } else {
#pragma unroll
    for (int i = 0; i < kQuad; ++i) {
      if (i < count) StoreFloat(data, dtype, at + i, x[i]);
    }
  }
}

// Where a matrix or list of a view lies: its leading index, one number a dimension.
struct LeadIndex {
  int64_t at[kMaxRank];
};

// Number `number` (row-major) of the first `rank` dimensions of a shape.
SIMT_FN LeadIndex LeadIndexOf(const Shape& shape, int rank, int64_t number) {
  LeadIndex lead;
#pragma unroll
  for (int i = kMaxRank - 1; i >= 0; --i) {
    lead.at[i] = 0;
    if (i >= rank || shape.dims[i] == 1) continue;
    const int64_t rest = number / shape.dims[i];
    lead.at[i] = number - rest * shape.dims[i];
    number = rest;
  }
  return lead;
}

// Dimensions of 1 repeat.
SIMT_FN int64_t LeadOffset(const View& view, int rank, const LeadIndex& lead) {
  int64_t offset = 0;
#pragma unroll
  for (int i = 0; i < kMaxRank; ++i) {
    if (i < rank && view.shape.dims[i] != 1) offset += lead.at[i] * view.stride[i];
  }
  return offset;
}

}  // namespace attnd::cuda
