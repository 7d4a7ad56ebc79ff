// A problem along one axis as independent lines: what reduce, softmax, cumulative and layer_norm
// share.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "kernels/core/view.h"
#include "kernels/cuda/divider.h"

namespace attnd::cuda {

// Kernels have a version for each kind: registers that a thread does not need to hold elements let
// more threads keep memory busy.
enum class LineKind : uint8_t {
  kShortRows,  // dense, Lines::kShortHeld elements a thread
  kRows,       // dense, Lines::kHeld
  kColumns,
};
constexpr int kLineKinds = 3;

// Lines of n elements. Threads are dealt out in one of two ways, which depend on n and on whether
// the axis is dense alone, as do all sums:
// - of a dense axis, threads side by side take elements side by side: `team` of them a line, a part
//   of a warp or some warps of a block, and a whole block each chunk of a line that is cut;
// - else threads side by side take 32 lines side by side, in 8 rows of threads along the axis.
struct Lines {
  static constexpr int kViews = 4;  // x and what lies beside it: any strides
  static constexpr int kThreads = 256, kRows = kThreads / simt::kWarp;
  // Elements that a thread holds in registers.
  static constexpr int kHeld = 32, kShortHeld = 16;
  // Elements of a chunk.
  static constexpr int64_t kDenseChunk = kThreads * kHeld, kColumnChunk = kRows * kHeld;

  void* data[kViews] = {};
  DType dtype[kViews] = {};
  // Elements 4i .. 4i + 3 of each line are one aligned vector.
  bool vectors[kViews] = {};
  bool is_dense = false;
  int team = 1;  // threads of a line, a power of 2; kThreads where there are several chunks
  int64_t n = 0, chunk = 1, chunks = 1;
  std::array<int64_t, kViews> axis_stride = {};
  uint32_t count = 1;  // of lines
  int rank = 0;        // of their numbers, the last one the fastest
  std::array<Divider, kMaxRank> size;
  std::array<std::array<int64_t, kViews>, kMaxRank> stride = {};
  int64_t first_part =
      0;  // of the chunks of all lines of the launch, the chunks of a line together

  LineKind kind() const {
    if (!is_dense) return LineKind::kColumns;
    return n <= int64_t{team} * kShortHeld ? LineKind::kShortRows : LineKind::kRows;
  }
  int64_t parts() const { return static_cast<int64_t>(count) * chunks; }
  // Of a kernel that visits every chunk.
  int64_t chunk_blocks() const {
    if (!is_dense) return (count + simt::kWarp - 1) / simt::kWarp * chunks;
    return team == kThreads ? count * chunks : (count + kThreads / team - 1) / (kThreads / team);
  }

  // Of a kernel in which a warp works on a line.
  int64_t warp_blocks() const { return (count + kRows - 1) / kRows; }

  // Elements to element 0 of a line.
  SIMT_FN void Offsets(uint32_t line, int64_t (&offset)[kViews]) const {
#pragma unroll
    for (int v = 0; v < kViews; ++v) offset[v] = 0;
    for (int i = rank - 1; i >= 0; --i) {
      const uint32_t rest = i == 0 ? 0 : size[i].Quotient(line);
      const auto index = static_cast<int64_t>(line - rest * size[i].divisor);
#pragma unroll
      for (int v = 0; v < kViews; ++v) offset[v] += index * stride[i][v];
      line = rest;
    }
  }
};

namespace lines_internal {

struct Axis {
  int64_t size;
  std::array<int64_t, Lines::kViews> stride;
};

constexpr int64_t kMostLines = int64_t{1} << 30;
// As kPlannedElements of element_walk.h.
constexpr double kPlannedLines = 0x1p37;

inline bool HasVectors(const Lines& lines, int view) {
  const int64_t bytes = 4 * SizeOf(lines.dtype[view]);
  if (lines.axis_stride[view] != 1) return false;
  if (reinterpret_cast<uintptr_t>(lines.data[view]) % static_cast<uintptr_t>(bytes) != 0) {
    return false;
  }
  for (int i = 0; i < lines.rank; ++i) {
    if (lines.stride[i][view] % 4 != 0) return false;
  }
  return true;
}

// Adds the lines of `axes`, halved until they are few enough. `most`: pieces that are needed.
inline void AddLines(Lines lines, std::vector<Axis> axes, size_t most, std::vector<Lines>* all) {
  if (all->size() >= most) return;
  int64_t count = 1;
  size_t longest = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    count *= axes[i].size;
    if (axes[i].size > axes[longest].size) longest = i;
  }
  if (count > kMostLines) {
    const int64_t half = axes[longest].size / 2, rest = axes[longest].size - half;
    axes[longest].size = half;
    AddLines(lines, axes, most, all);
    axes[longest].size = rest;
    for (int v = 0; v < Lines::kViews; ++v) {
      if (lines.data[v] == nullptr) continue;
      lines.data[v] = static_cast<char*>(lines.data[v]) +
                      half * axes[longest].stride[v] * SizeOf(lines.dtype[v]);
    }
    return AddLines(lines, axes, most, all);
  }
  lines.count = static_cast<uint32_t>(count);
  lines.rank = static_cast<int>(axes.size());
  for (int i = 0; i < lines.rank; ++i) {
    lines.size[i] = Divider(axes[i].size);
    lines.stride[i] = axes[i].stride;
  }
  for (int v = 0; v < Lines::kViews; ++v) lines.vectors[v] = HasVectors(lines, v);
  all->push_back(lines);
}

}  // namespace lines_internal

// views[0] decides the order; others may have 1 in the axis. None for no lines. `column_chunk`:
// elements of a chunk where the axis is not dense, which `dense_only` rules out whatever its stride
// is.
inline std::vector<Lines> LinesOf(const std::array<View, Lines::kViews>& views, int axis,
                                  int64_t column_chunk, bool dense_only = false) {
  using lines_internal::Axis;
  const View& x = views[0];
  Lines lines;
  lines.n = x.shape[axis];
  std::vector<Axis> sorted, axes;
  for (int i = 0; i < x.shape.rank; ++i) {
    if (i == axis || x.shape[i] == 1) continue;
    if (x.shape[i] == 0) return {};
    Axis& own = sorted.emplace_back(Axis{x.shape[i], {}});
    for (int v = 0; v < Lines::kViews; ++v)
      own.stride[v] = views[v].given() ? views[v].stride[i] : 0;
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Axis& a, const Axis& b) { return a.stride[0] > b.stride[0]; });
  for (const Axis& own : sorted) {
    bool merges = !axes.empty();
    for (int v = 0; merges && v < Lines::kViews; ++v) {
      merges = axes.back().stride[v] == own.stride[v] * own.size;
    }
    if (merges) {
      axes.back() = {axes.back().size * own.size, own.stride};
    } else {
      axes.push_back(own);
    }
  }
  for (int v = 0; v < Lines::kViews; ++v) {
    if (!views[v].given()) continue;
    lines.data[v] = views[v].data;
    lines.dtype[v] = views[v].dtype;
    // What has one element a line has it whatever the chunk is.
    lines.axis_stride[v] = v > 0 && views[v].shape[axis] == 1 ? 0 : views[v].stride[axis];
  }
  lines.is_dense = dense_only || std::abs(lines.axis_stride[0]) == 1;
  lines.chunk = lines.is_dense ? Lines::kDenseChunk : column_chunk;
  lines.chunks = std::max<int64_t>((lines.n + lines.chunk - 1) / lines.chunk, 1);
  // So many elements a thread keep enough of memory's bytes under way.
  while (lines.team < Lines::kThreads && lines.team * Lines::kShortHeld < lines.n) lines.team *= 2;
  std::vector<Lines> all;
  double count = 1;
  for (const Axis& own : axes) count *= static_cast<double>(own.size);
  const size_t most = count < lines_internal::kPlannedLines ? SIZE_MAX : 1;
  lines_internal::AddLines(lines, axes, most, &all);
  return all;
}

}  // namespace attnd::cuda
