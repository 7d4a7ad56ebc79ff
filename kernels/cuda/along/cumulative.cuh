// Kernels of cumulative, in float64: what a stretch of elements does to a line is a Seen, which
// combines associatively. Threads scan their own elements, then what lies before them. One pass
// over memory, which bounds it, for lines of up to 8192 dense elements or 256 others; chunks of
// longer ones are read twice: a launch of totals, one that scans those, one that writes.
#pragma once

#include "kernels/cuda/along/column_tile.cuh"
#include "kernels/cuda/along/parts.cuh"
#include "kernels/cuda/along/row_tile.cuh"
#include "kernels/cuda/launch.h"

namespace attnd::cuda {

// Views of Lines; a problem that runs in reverse has its views turned.
constexpr int kScanX = 0, kScanOut = 1, kScanReset = 2;

// A sum: total, and 1 if it began anew. A maximum: itself. Log sum exp: the maximum and sum
// e^(x - maximum).
struct Seen {
  double a, b;
};

constexpr size_t kScanShared = simt::SharedBytes<Seen>(Lines::kThreads);

namespace cumulative_internal {

SIMT_FN Seen ShuffledUp(const Seen& x, int distance) {
  return {__shfl_up_sync(simt::kAllLanes, x.a, distance),
          __shfl_up_sync(simt::kAllLanes, x.b, distance)};
}

template <CumulativeOp kOp>
SIMT_FN Seen Nothing() {
  return {kOp == CumulativeOp::kSum ? 0.0 : -INFINITY, 0};
}

// s comes before t.
template <CumulativeOp kOp>
SIMT_FN Seen Combine(const Seen& s, const Seen& t) {
  if constexpr (kOp == CumulativeOp::kSum) {
    return {t.b != 0 ? t.a : s.a + t.a, t.b != 0 ? t.b : s.b};
  } else {
    const bool first = s.a > t.a || s.a != s.a;
    const double most = first ? s.a : t.a;
    if (kOp == CumulativeOp::kMax || !IsFinite(most)) return {most, 0};
    const double distance = first ? t.a - s.a : s.a - t.a;
    const double e = wide::Exp(distance < -700 ? -700 : distance);
    return {most, first ? s.b + t.b * e : s.b * e + t.b};
  }
}

// An element that changes nothing.
template <CumulativeOp kOp>
constexpr float kFiller = kOp == CumulativeOp::kSum ? 0 : -INFINITY;

// After one more element.
template <CumulativeOp kOp>
SIMT_FN Seen After(const Seen& seen, float x, bool resets, bool exclusive) {
  if constexpr (kOp == CumulativeOp::kSum) {
    // A reset comes after its element, or, of an exclusive sum, before it.
    const double sum = seen.a + x;
    return {!resets ? sum : exclusive ? x : 0.0, resets ? 1 : seen.b};
  } else if constexpr (kOp == CumulativeOp::kMax) {
    // Of float32, what Combine gives.
    const auto most = static_cast<float>(seen.a);
    return {most > x || most != most ? most : x, 0};
  } else {
    return Combine<kOp>(seen, Seen{x, 1});
  }
}

template <CumulativeOp kOp>
SIMT_FN float Result(const Seen& seen) {
  if (kOp != CumulativeOp::kLogSumExp || !IsFinite(seen.a)) return static_cast<float>(seen.a);
  return static_cast<float>(seen.a + wide::Log(seen.b));
}

// The result at an element, and the state after it.
template <CumulativeOp kOp>
SIMT_FN float Visit(Seen* seen, float x, bool resets, bool exclusive) {
  const Seen before = *seen;
  *seen = After<kOp>(before, x, resets, exclusive);
  if (exclusive) return Result<kOp>(before);
  if (kOp == CumulativeOp::kSum) return static_cast<float>(before.a + x);
  return Result<kOp>(*seen);
}

// What `width` lanes side by side have seen, each with those before it.
template <CumulativeOp kOp>
SIMT_FN Seen ScanLanes(Seen own, int lane, int width) {
  for (int distance = 1; distance < width; distance *= 2) {
    const Seen before = ShuffledUp(own, distance);
    if (lane >= distance) own = Combine<kOp>(before, own);
  }
  return own;
}

struct Way {
  bool exclusive, writes;
};

// `start`: what the line saw before this unit. Returns what it has seen after it.
template <CumulativeOp kOp, int kFours>
SIMT_FN Seen ScanRow(const Lines& lines, const RowUnit& unit, const Way& way, Seen start,
                     Seen* scratch) {
  Held<kFours> x;
  LoadRow(lines, kScanX, unit, kFiller<kOp>, x);
  unsigned resets = 0;  // a bit an element
  if (kOp == CumulativeOp::kSum && lines.data[kScanReset] != nullptr) {
    Held<kFours> reset;
    LoadRow(lines, kScanReset, unit, 0, reset);
    ForEachHeld<kFours>(
        unit, [&](int g, int j, int) { resets |= (reset[g][j] != 0 ? 1u : 0u) << (4 * g + j); });
  }
  const auto resets_at = [&](int g, int j) { return (resets >> (4 * g + j) & 1) != 0; };
  const int width = min(unit.team, simt::kWarp), lane = unit.rank % simt::kWarp;
  const int warp = threadIdx.x / simt::kWarp, warps = unit.team / simt::kWarp;
  const int first_warp = threadIdx.x / unit.team * warps;
  // The same in all teams of the block.
  const int count = lines.chunks > 1 ? unit.count : static_cast<int>(lines.n);
#pragma unroll
  for (int g = 0; g < kFours; ++g) {
    if (g * unit.team * 4 >= count) break;
    Seen own = Nothing<kOp>();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      own = After<kOp>(own, x[g][j], resets_at(g, j), way.exclusive);
    }
    const Seen scanned = ScanLanes<kOp>(own, lane, width);
    Seen seen = start, before = ShuffledUp(scanned, 1);
    if (warps > 1) {
      if (lane == simt::kWarp - 1) scratch[warp] = scanned;
      __syncthreads();
      for (int w = first_warp; w < first_warp + warps; ++w) {
        if (w == warp) seen = start;
        start = Combine<kOp>(start, scratch[w]);
      }
      __syncthreads();
    } else {
      const int last = threadIdx.x % simt::kWarp - lane + width - 1;
      start = Combine<kOp>(start, Seen{__shfl_sync(simt::kAllLanes, scanned.a, last),
                                       __shfl_sync(simt::kAllLanes, scanned.b, last)});
    }
    if (!way.writes) continue;
    if (lane > 0) seen = Combine<kOp>(seen, before);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      x[g][j] = Visit<kOp>(&seen, x[g][j], resets_at(g, j), way.exclusive);
  }
  if (way.writes) StoreRow(lines, kScanOut, unit, x);
  return start;
}

template <CumulativeOp kOp>
SIMT_FN Seen ScanColumn(const Lines& lines, const ColumnUnit& unit, const Way& way, Seen start,
                        Seen* scratch) {
  // Each warp takes rows that follow one another.
  const int64_t rest = min(lines.n - unit.chunk * lines.chunk, lines.chunk);
  const int rows = (static_cast<int>(rest) + Lines::kRows - 1) / Lines::kRows;
  const int first = unit.row * rows, end = min(first + rows, unit.count);
  float x[Lines::kHeld];
  LoadColumn(lines, kScanX, unit, first, 1, end, kFiller<kOp>, x);
  unsigned resets = 0;
  if (kOp == CumulativeOp::kSum && lines.data[kScanReset] != nullptr) {
    // A few at a time: they are not kept.
    constexpr int kAtOnce = 8;
#pragma unroll
    for (int k = 0; k < Lines::kHeld; k += kAtOnce) {
      float reset[kAtOnce];
      LoadColumn(lines, kScanReset, unit, first + k, 1, end, 0, reset);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) resets |= (reset[j] != 0 ? 1u : 0u) << (k + j);
    }
  }
  const auto resets_at = [&](int k) { return (resets >> k & 1) != 0; };
  // Elements that do not exist change nothing.
  Seen own = Nothing<kOp>();
#pragma unroll
  for (int k = 0; k < Lines::kHeld; ++k) own = After<kOp>(own, x[k], resets_at(k), way.exclusive);
  scratch[threadIdx.x] = own;
  __syncthreads();
  Seen seen = start;
  for (int row = 0; row < Lines::kRows; ++row) {
    if (row == unit.row) seen = start;
    start = Combine<kOp>(start, scratch[row * simt::kWarp + unit.lane]);
  }
  if (way.writes) {
#pragma unroll
    for (int k = 0; k < Lines::kHeld; ++k) {
      x[k] = Visit<kOp>(&seen, x[k], resets_at(k), way.exclusive);
    }
    StoreColumn(lines, kScanOut, unit, first, 1, end, x);
  }
  return start;
}

}  // namespace cumulative_internal

// Writes the results where `way` says so; else the totals of chunks. `parts`: of chunks, their
// totals or, where results are written, what the line saw before them.
template <CumulativeOp kOp, LineKind kKind>
__global__ void __launch_bounds__(Lines::kThreads, 2)
    Cumulative(const __grid_constant__ Problems<Lines> problems, cumulative_internal::Way way,
               Seen* parts) {
  using namespace cumulative_internal;
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  simt::SharedTiles shared;
  Seen* const scratch = shared.Take<Seen>(Lines::kThreads);
  const auto scan = [&](const auto& unit, bool is_first, const auto& scan_unit) {
    Seen* const part = lines.chunks > 1 && unit.exists
                           ? parts + lines.first_part + unit.line * lines.chunks + unit.chunk
                           : nullptr;
    const Seen start = part != nullptr && way.writes ? *part : Nothing<kOp>();
    const Seen total = scan_unit(start);
    if (part != nullptr && !way.writes && is_first) *part = total;
  };
  if constexpr (kKind != LineKind::kColumns) {
    const RowUnit unit = RowUnitOf(lines, place.block);
    scan(unit, unit.rank == 0, [&](const Seen& start) {
      return ScanRow<kOp, HeldFours(kKind)>(lines, unit, way, start, scratch);
    });
  } else {
    const ColumnUnit unit = ColumnUnitOf(lines, place.block);
    scan(unit, unit.row == 0,
         [&](const Seen& start) { return ScanColumn<kOp>(lines, unit, way, start, scratch); });
  }
}

// The totals of chunks become what the line saw before them.
template <CumulativeOp kOp>
__global__ void __launch_bounds__(Lines::kThreads)
    ScanParts(const __grid_constant__ Problems<Lines> problems, Seen* all_parts) {
  using namespace cumulative_internal;
  const auto place = FindPlace(problems);
  const Lines& lines = place.problem;
  const auto line = static_cast<uint32_t>(place.block * Lines::kRows + threadIdx.x / simt::kWarp);
  if (line >= lines.count) return;
  Seen* const parts = all_parts + lines.first_part + line * lines.chunks;
  const int lane = threadIdx.x % simt::kWarp;
  Seen start = Nothing<kOp>();
  for (int64_t first = 0; first < lines.chunks; first += simt::kWarp) {
    const int64_t i = first + lane;
    const Seen scanned =
        ScanLanes<kOp>(i < lines.chunks ? parts[i] : Nothing<kOp>(), lane, simt::kWarp);
    const Seen before = ShuffledUp(scanned, 1);
    if (i < lines.chunks) parts[i] = lane == 0 ? start : Combine<kOp>(start, before);
    start = Combine<kOp>(start, Seen{__shfl_sync(simt::kAllLanes, scanned.a, simt::kWarp - 1),
                                     __shfl_sync(simt::kAllLanes, scanned.b, simt::kWarp - 1)});
  }
}

}  // namespace attnd::cuda
