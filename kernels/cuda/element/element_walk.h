// The order in which elementwise visits memory: axes sorted by the output's strides and merged, cut
// into pieces whose elements 31 bits count.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "kernels/core/view.h"
#include "kernels/cuda/divider.h"

namespace attnd::cuda {

// As kernels get it. Operands 0 to 2 are a, b, c.
struct ElementWalk {
  static constexpr int kOperands = 3, kViews = 4, kOut = 3;
  // How four elements side by side lie in memory. kScattered: four accesses.
  enum Access : uint8_t { kAbsent, kVector, kSame, kScattered };

  void* data[kViews] = {};
  DType dtype[kViews] = {};
  Access access[kViews] = {};
  // Four elements side by side are in one row: threads take them together.
  bool fours = false;
  int rank = 0;  // the last axis is the fastest
  uint32_t elements = 1;
  std::array<Divider, kMaxRank> size;
  std::array<std::array<int64_t, kMaxRank>, kViews> stride = {};  // in elements
  // Some operand is dense along the last axis but one: the last two are cut into tiles, in which
  // such operands are turned.
  static constexpr int kTileRows = 64, kTileColumns = 32;
  bool tiled = false, turned[kViews] = {};
  Divider row_tiles, column_tiles;
  uint32_t tiles = 0;

  int64_t blocks(int64_t elements_a_block) const {
    return tiled ? tiles : (elements + elements_a_block - 1) / elements_a_block;
  }
};

namespace element_internal {

struct Axis {
  int64_t size;
  std::array<int64_t, ElementWalk::kViews> stride;
};

constexpr int64_t kMostElements = int64_t{1} << 30;
// More than the memory of any device. Only plans have so many: they need no more than the first
// piece, since the array counts as it is.
constexpr double kPlannedElements = 0x1p37;

inline void* Advanced(void* data, int64_t bytes) {
  return data == nullptr ? nullptr : static_cast<char*>(data) + bytes;
}

inline ElementWalk::Access AccessOf(const ElementWalk& walk, int view) {
  const auto& stride = walk.stride[view];
  const int64_t last = walk.rank == 0 ? 1 : stride[walk.rank - 1];
  if (last == 0) return ElementWalk::kSame;
  if (last != 1) return ElementWalk::kScattered;
  bool is_aligned =
      reinterpret_cast<uintptr_t>(walk.data[view]) % (4 * SizeOf(walk.dtype[view])) == 0;
  for (int i = 0; i + 1 < walk.rank; ++i) is_aligned = is_aligned && stride[i] % 4 == 0;
  return is_aligned ? ElementWalk::kVector : ElementWalk::kScattered;
}

// Below these, tiles would be mostly empty.
constexpr int64_t kFewRows = 16, kFewColumns = 8;

// Cuts the last two axes into tiles, if an operand is turned. `axes`: their order may change.
inline void CutIntoTiles(ElementWalk* walk, std::vector<Axis>* axes) {
  if (axes->size() < 2 || axes->back().size < kFewColumns) return;
  const size_t rows = axes->size() - 2;
  for (int v = 0; v < ElementWalk::kOperands && !walk->tiled; ++v) {
    if (std::abs(axes->back().stride[v]) <= 1) continue;
    for (size_t i = 0; i <= rows && !walk->tiled; ++i) {
      if ((*axes)[i].stride[v] != 1 || (*axes)[i].size < kFewRows) continue;
      std::swap((*axes)[i], (*axes)[rows]);
      walk->tiled = true;
    }
  }
  if (!walk->tiled) return;
  for (int v = 0; v < ElementWalk::kOperands; ++v) {
    walk->turned[v] = (*axes)[rows].stride[v] == 1 && std::abs(axes->back().stride[v]) > 1;
  }
  const auto tiles = [](int64_t n, int64_t of) { return (n + of - 1) / of; };
  const int64_t row_tiles = tiles((*axes)[rows].size, ElementWalk::kTileRows);
  const int64_t column_tiles = tiles(axes->back().size, ElementWalk::kTileColumns);
  walk->row_tiles = Divider(row_tiles);
  walk->column_tiles = Divider(column_tiles);
  int64_t all = row_tiles * column_tiles;
  for (size_t i = 0; i < rows; ++i) all *= (*axes)[i].size;
  walk->tiles = static_cast<uint32_t>(all);
}

// Adds the walk over `axes`, halved until it is small enough. `most`: walks that are needed.
inline void AddWalks(ElementWalk walk, std::vector<Axis> axes, size_t most,
                     std::vector<ElementWalk>* walks) {
  if (walks->size() >= most) return;
  int64_t elements = 1;
  size_t longest = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    elements *= axes[i].size;
    if (axes[i].size > axes[longest].size) longest = i;
  }
  if (elements > kMostElements) {
    // A multiple of 4: vectors stay aligned.
    const int64_t half = (axes[longest].size / 2 + 3) / 4 * 4;
    const int64_t rest = axes[longest].size - half;
    const auto strides = axes[longest].stride;
    axes[longest].size = half;
    AddWalks(walk, axes, most, walks);
    axes[longest].size = rest;
    for (int v = 0; v < ElementWalk::kViews; ++v) {
      walk.data[v] = Advanced(walk.data[v], half * strides[v] * SizeOf(walk.dtype[v]));
    }
    return AddWalks(walk, axes, most, walks);
  }
  CutIntoTiles(&walk, &axes);
  walk.rank = static_cast<int>(axes.size());
  walk.elements = static_cast<uint32_t>(elements);
  for (int i = 0; i < walk.rank; ++i) {
    walk.size[i] = Divider(axes[i].size);
    for (int v = 0; v < ElementWalk::kViews; ++v) walk.stride[v][i] = axes[i].stride[v];
  }
  walk.fours = walk.rank <= 1 || axes.back().size % 4 == 0;
  for (int v = 0; v < ElementWalk::kViews; ++v) {
    if (walk.access[v] != ElementWalk::kAbsent) walk.access[v] = AccessOf(walk, v);
  }
  walks->push_back(walk);
}

}  // namespace element_internal

// None for no elements.
inline std::vector<ElementWalk> WalksOf(const std::array<const View*, ElementWalk::kViews>& views) {
  using element_internal::Axis;
  const View& out = *views[ElementWalk::kOut];
  if (out.shape.size() == 0) return {};
  std::vector<Axis> sorted, axes;
  for (int i = 0; i < out.shape.rank; ++i) {
    if (out.shape[i] == 1) continue;
    Axis& axis = sorted.emplace_back(Axis{out.shape[i], {}});
    for (int v = 0; v < ElementWalk::kViews; ++v) {
      const View& view = *views[v];
      axis.stride[v] = view.given() && view.shape[i] != 1 ? view.stride[i] : 0;
    }
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const Axis& x, const Axis& y) {
    return x.stride[ElementWalk::kOut] > y.stride[ElementWalk::kOut];
  });
  for (const Axis& axis : sorted) {
    bool merges = !axes.empty();
    for (int v = 0; merges && v < ElementWalk::kViews; ++v) {
      merges = axes.back().stride[v] == axis.stride[v] * axis.size;
    }
    if (merges) {
      axes.back() = {axes.back().size * axis.size, axis.stride};
    } else {
      axes.push_back(axis);
    }
  }
  ElementWalk walk;
  for (int v = 0; v < ElementWalk::kViews; ++v) {
    if (!views[v]->given()) continue;
    walk.data[v] = views[v]->data;
    walk.dtype[v] = views[v]->dtype;
    walk.access[v] = ElementWalk::kScattered;
  }
  // Between int32 and int32 bits are copied.
  if (walk.dtype[ElementWalk::kOut] == DType::kI32) {
    walk.dtype[0] = walk.dtype[ElementWalk::kOut] = DType::kF32;
  }
  std::vector<ElementWalk> walks;
  double elements = 1;
  for (const Axis& axis : axes) elements *= static_cast<double>(axis.size);
  const size_t most = elements < element_internal::kPlannedElements ? SIZE_MAX : 1;
  element_internal::AddWalks(walk, axes, most, &walks);
  return walks;
}

}  // namespace attnd::cuda
