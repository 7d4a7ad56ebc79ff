// Rows of matrices as work items: what gather and scatter share.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/core/view.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/row_items.h"

namespace attnd {

// Bytes of rows that one item moves: enough to hide its start, little enough to share work.
constexpr int64_t kItemBytes = 64 << 10;
// What an element that is looked up by its column takes, in bytes that are moved.
constexpr double kPairBytes = 16;

using RowIndex = std::array<int64_t, kMaxRank>;

// Number `number` (row-major) of a shape's elements.
inline RowIndex IndexAt(const Shape& shape, int64_t number) {
  RowIndex index = {};
  for (int i = shape.rank - 1; i >= 0; --i) {
    index[i] = number % shape[i];
    number /= shape[i];
  }
  return index;
}

// Where the matrix or list of `view` at a leading index begins; dimensions of 1 repeat.
inline char* At(const View& view, int leading, const RowIndex& index) {
  int64_t offset = 0;
  for (int i = 0; i < leading; ++i) {
    if (view.shape[i] != 1) offset += index[i] * view.stride[i];
  }
  return view.As<char>() + offset * SizeOf(view.dtype);
}

inline Shape Leading(const View& view, int rank) {
  Shape shape = view.shape;
  shape.rank = rank;
  return shape;
}

inline int64_t RowsPerItem(const View& view) {
  constexpr int64_t kOverhead = 16;  // a row's cost, in bytes
  const int64_t D = view.shape[view.shape.rank - 1];
  return kItemBytes / (D * SizeOf(view.dtype) + kOverhead);
}

inline double SecondsToMove(const Cpu& cpu, double bytes) {
  return bytes / (cpu.bytes_per_second / cpu.threads);
}

// Rows that come from anywhere are fetched so many before they are read: what is done with one is
// too long for the processor to look ahead. 1.4 times as fast as without (rows_bench, D 64).
constexpr int64_t kAhead = 8;
inline void FetchRow(const char* row, int64_t bytes) { Fetch(row, std::min<int64_t>(bytes, 512)); }

// The divisors of a matrix; null: none.
inline const float* DivisorsAt(const View& divisor, int leading, const RowIndex& lead) {
  if (!divisor.given()) return nullptr;
  return reinterpret_cast<const float*>(At(divisor, leading, lead));
}

// The rows of an item, matrix by matrix: visit(lead, begin, end).
template <class Visit>
void ForEachMatrix(const View& out, const RowItems::Item& item, const Visit& visit) {
  const int rank = out.shape.rank - 2;
  const int64_t rows = out.shape[rank];
  for (int64_t begin = item.begin; begin < item.end;) {
    const int64_t matrix = begin / rows;
    const int64_t end = std::min(item.end, (matrix + 1) * rows);
    visit(IndexAt(Leading(out, rank), matrix), begin - matrix * rows, end - matrix * rows);
    begin = end;
  }
}

inline int64_t Rows(const View& out) {
  return out.shape.size() == 0 ? 0 : Leading(out, out.shape.rank - 1).size();
}

}  // namespace attnd
