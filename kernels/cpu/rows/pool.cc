// The CPU kernels of pool: the rows of a range are reduced as columns side by side. Bound by
// memory; rows of ranges that overlap come from cache.
#include <algorithm>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/along/along_walk.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows/pool.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/along/reduce_columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace {

// A tile of columns of a batch of rows; rows are the range's.
Patch RowsOf(const View& view, int64_t outer, int64_t tile, RowRange range) {
  const int rows = view.shape.rank - 2, columns = view.shape.rank - 1;
  Patch patch = {view.dtype,
                 nullptr,
                 range.end - range.begin,
                 std::min(kWidth, view.shape[columns] - tile * kWidth),
                 view.stride[rows],
                 view.stride[columns]};
  int64_t offset = 0;
  for (int i = rows - 1; i >= 0; --i) {
    offset += outer % view.shape[i] * view.stride[i];
    outer /= view.shape[i];
  }
  patch.data = view.As<char>() + offset * SizeOf(view.dtype);
  patch.data = patch.At(range.begin, tile * kWidth);
  return patch;
}

// Sums of those elements whose `arg` is `place`.
void SumWhere(ColumnBlocks& x, ColumnBlocks& arg, float place, float* sum) {
  const hn::ScalableTag<float> d;
  const auto wanted = hn::Set(d, place);
  PairwiseSum total;
  for (int64_t b = 0; b < x.count(); ++b) {
    const RowBlock values = x[b], places = arg[b];
    HWY_ALIGN float part[kWidth] = {};
    for (int64_t r = 0; r < values.rows; ++r) {
      for (int64_t c = 0; c < values.width; c += HWY_LANES(float)) {
        const auto is_wanted = hn::Eq(hn::LoadU(d, places.data + r * places.pitch + c), wanted);
        const auto value = hn::LoadU(d, values.data + r * values.pitch + c);
        const auto old = hn::Load(d, part + c);
        hn::Store(hn::Add(old, hn::IfThenElseZero(is_wanted, value)), d, part + c);
      }
    }
    total.Add(part);
  }
  total.Total(sum);
}

// The largest of a tile's columns, and where.
struct PoolMax {
  float most[kWidth], best[kWidth];
  int64_t place[kWidth];

  explicit PoolMax(RowRange range) {
    std::fill(most, most + kWidth, range.begin < range.end ? kLeast : 0.0f);
    std::fill(best, best + kWidth, kLeast);
    std::fill(place, place + kWidth, range.begin < range.end ? range.begin : -1);
  }

  // Further rows, the first of which is `first_row`.
  void Add(ColumnBlocks& x, int64_t first_row, bool with_place) {
    ColumnResults part;
    MaxOfColumns(x, part.value);
    for (int64_t c = 0; c < kWidth; ++c) {
      if (part.value[c] > most[c] || part.value[c] != part.value[c]) most[c] = part.value[c];
    }
    if (!with_place) return;
    ArgMaxOfColumns(x, part);
    for (int64_t c = 0; c < kWidth; ++c) {
      if (!(part.value[c] > best[c])) continue;
      best[c] = part.value[c];
      place[c] = first_row + static_cast<int64_t>(part.second[c]);
    }
  }
};

// Calls visit with a range in pieces of kChunkRows.
template <class F>
HWY_INLINE void ForEachPiece(RowRange range, const F& visit) {
  for (int64_t n = range.begin; n < range.end && !CheckPoint(); n += AlongWalk::kChunkRows) {
    visit(RowRange{n, std::min(n + AlongWalk::kChunkRows, range.end)});
  }
}

// One range of one tile of columns.
void PoolMaxOf(const PoolProblem& p, int64_t outer, int64_t tile, int64_t m) {
  PoolMax state(p.ranges[m]);
  ForEachPiece(p.ranges[m], [&](RowRange piece) {
    ColumnBlocks x(RowsOf(p.x, outer, tile, piece));
    state.Add(x, piece.begin, p.arg.given());
  });
  StorePatch(state.most, kWidth, RowsOf(p.out, outer, tile, {m, m + 1}));
  if (!p.arg.given()) return;
  const Patch arg = RowsOf(p.arg, outer, tile, {m, m + 1});
  for (int64_t c = 0; c < arg.columns; ++c) {
    *reinterpret_cast<int32_t*>(arg.At(0, c)) = static_cast<int32_t>(state.place[c]);
  }
}

void PoolSumOf(PoolOp op, const PoolProblem& p, int64_t outer, int64_t tile, int64_t m) {
  const RowRange range = p.ranges[m];
  HWY_ALIGN float sum[kWidth] = {};
  ForEachPiece(range, [&](RowRange piece) {
    HWY_ALIGN float part[kWidth];
    ColumnBlocks x(RowsOf(p.x, outer, tile, piece));
    if (op == PoolOp::kSumWhere) {
      ColumnBlocks arg(RowsOf(p.arg, outer, tile, piece));
      SumWhere(x, arg, static_cast<float>(m), part);
    } else {
      SumOfColumns(x, part);
    }
    AddColumns(part, sum);
  });
  if (op == PoolOp::kMean && range.begin < range.end) {
    const auto rows = static_cast<float>(range.end - range.begin);
    for (float& x : sum) x /= rows;
  }
  StorePatch(sum, kWidth, RowsOf(p.out, outer, tile, {m, m + 1}));
}

}  // namespace

// Outputs [begin, end) of a problem's batches of ranges.
void PoolRows(PoolOp op, const PoolProblem& p, int64_t begin, int64_t end) {
  const auto ranges = static_cast<int64_t>(p.ranges.size());
  const int64_t tiles = CeilDiv(p.x.shape[p.x.shape.rank - 1], kWidth);
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      op == PoolOp::kMax ? PoolMaxOf(p, i / ranges, tile, i % ranges)
                         : PoolSumOf(op, p, i / ranges, tile, i % ranges);
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const PoolArgs& args) {
  const Cpu& cpu = device.cpu();
  RowItems items;
  double serial = 0;
  for (const PoolProblem& p : args.problems) {
    const int rank = p.x.shape.rank;
    const auto ranges = static_cast<int64_t>(p.ranges.size());
    int64_t rows = 0;
    for (const RowRange& range : p.ranges) rows += range.end - range.begin;
    int64_t outer = 1;
    for (int i = 0; i + 2 < rank; ++i) outer *= p.x.shape[i];
    // Elements that a range reads, on average.
    const int64_t elements = rows * p.x.shape[rank - 1] / std::max<int64_t>(ranges, 1);
    items.Add(outer * ranges, AlongWalk::kItem / std::max<int64_t>(elements, 1));
    const double bytes = static_cast<double>(p.x.bytes() + 2 * p.out.bytes());
    // From cache, 16 bytes a cycle of 3 GHz; see tests/bench/along.
    const double cached = 4.0 * static_cast<double>(outer * rows * p.x.shape[rank - 1]) / 48e9;
    serial += std::max(bytes / (cpu.bytes_per_second / cpu.threads), cached);
  }
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(PoolRows), HWY_CHOOSE_AVX2(PoolRows),
                     HWY_CHOOSE_AVX3(PoolRows));
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int) {
    const RowItems::Item item = items[i];
    run(args.op, args.problems[item.problem], item.begin, item.end);
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
