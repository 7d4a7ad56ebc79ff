// MatMul on the CPU: one item a tile of a result, or a chunk of the sum of one.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/core/run_control.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/matmul/matmul_tiling.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul/matmul.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/matmul/matmul_finish-inl.h"
#include "kernels/cpu/matmul/matmul_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// Tile `tile` of a product.
struct OutTile {
  OutTile(const MatMulTiling& tiling, int64_t tile)
      : number(tile),
        batch(tile / (tiling.tiles_m * tiling.tiles_n)),
        m(tile % tiling.tiles_m * tiling.tile_m),
        n(tile / tiling.tiles_m % tiling.tiles_n * tiling.tile_n),
        rows(std::min(tiling.tile_m, tiling.M - m)),
        columns(std::min(tiling.tile_n, tiling.N - n)) {}

  int64_t number, batch, m, n, rows, columns;
};

// A [rows, count] and B [count, columns] of one step of a tile.
struct Step {
  Step(const MatMulTiling& tiling, const OutTile& tile, int64_t step) {
    const int64_t matrix = step / tiling.k_steps, k = step % tiling.k_steps * MatMulTiling::kStep;
    const auto part = [](const MatMulSide& side, int64_t offset) {
      return Stored{side.At(offset), side.dtype, side.row, side.column};
    };
    count = std::min(MatMulTiling::kStep, tiling.K - k);
    a = part(tiling.a, tiling.Offset(tiling.a, tile.batch) +
                           tiling.SummedOffset(tiling.summed_a, matrix) + tile.m * tiling.a.row +
                           k * tiling.a.column);
    b = part(tiling.b, tiling.Offset(tiling.b, tile.batch) +
                           tiling.SummedOffset(tiling.summed_b, matrix) + tile.n * tiling.b.column +
                           k * tiling.b.row);
  }

  Stored a, b;
  int64_t count;
};

// C = the sum of the steps of one chunk.
void SumChunk(const MatMulTiling& tiling, const OutTile& tile, int64_t chunk, MutableRows c,
              float* scratch) {
  float* const b_scratch = scratch + tiling.a_floats();
  const int64_t begin = chunk * tiling.chunk, end = std::min(begin + tiling.chunk, tiling.steps);
  const int64_t panels = CeilDiv(tile.columns, kPanel);
  for (int64_t i = begin; i < end && !CheckPoint(); ++i) {
    const Step step(tiling, tile, i);
    const Broadcast a = LeftOperand(step.a, tile.rows, step.count, panels, scratch);
    if (tiling.is_thin()) {
      float* const sums = b_scratch + MatMulTiling::kThinRows * tiling.tile_n;
      StepThin(i == begin, tile.rows, tile.columns, step.count, a, step.b, c, sums, b_scratch);
      continue;
    }
    const Panels b = RightOperand(step.b, tile.rows, step.count, tile.columns, b_scratch);
    OperandsAhead ahead;
    if (i + 1 < end) {
      const Step next(tiling, tile, i + 1);
      ahead.Add(next.a, tile.rows, next.count);
      ahead.Add(next.b, next.count, tile.columns);
    } else if (b.data == b_scratch && end == tiling.steps && tile.number + 1 < tiling.tiles()) {
      // The hardware foresees the rows of a tile that are read where they lie, not those packed.
      const OutTile next_tile(tiling, tile.number + 1);
      const Step next(tiling, next_tile, 0);
      if (next.b.data != step.b.data) ahead.Add(next.b, next.count, next_tile.columns);
    }
    StepTile(i == begin, tile.rows, tile.columns, step.count, a, b, c, ahead);
  }
  if (begin < end) return;
  for (int64_t m = 0; m < tile.rows; ++m) std::fill_n(c.data + m * c.stride, tile.columns, 0.0f);
}

// Whether sums may be built where the result lies. Several steps would meet its rows again, which
// may be a power of two apart and share few sets of a cache.
bool IsInPlace(const MatMulTiling& tiling, const MatMulArgs& args, const OutTile& tile) {
  return tiling.steps == 1 && tiling.out.dtype == DType::kF32 && tiling.out.column == 1 &&
         tile.columns % kLanes == 0 && args.alpha == 1 && !args.activation.has_value() &&
         !tiling.bias.given && !tiling.multiply.given;
}

// One item. `partial`: the chunks of this tile, `c_floats` each; `arrived` of them are done. The
// item that is done last adds them up, in ascending order.
void RunItem(const MatMulTiling& tiling, const MatMulArgs& args, int64_t item, float* scratch,
             float* partial, std::atomic<int>* arrived) {
  const OutTile tile(tiling, item / tiling.chunks);
  const auto start = [&](const MatMulSide& side) {
    return tiling.Offset(side, tile.batch) + tile.m * side.row + tile.n * side.column;
  };
  if (IsInPlace(tiling, args, tile)) {
    float* const out = reinterpret_cast<float*>(tiling.out.At(start(tiling.out)));
    return SumChunk(tiling, tile, 0, {out, tiling.out.row}, scratch);
  }
  float* const c_scratch = scratch + tiling.operand_floats();
  float* const finish_scratch = c_scratch + tiling.c_floats();
  MutableRows c = {c_scratch, tiling.c_stride()};
  if (tiling.chunks > 1) {
    const int64_t chunk = item % tiling.chunks;
    SumChunk(tiling, tile, chunk, {partial + chunk * tiling.c_floats(), c.stride}, scratch);
    if (arrived->fetch_add(1, std::memory_order_acq_rel) + 1 < tiling.chunks) return;
    c.data = partial;
    AddChunks(tiling, tile.rows, tile.columns, c);
  } else {
    SumChunk(tiling, tile, 0, c, scratch);
  }
  const auto part = [&](const MatMulSide& side) {
    MatMulSide from_tile = side;
    if (side.given) from_tile.data = side.At(start(side));
    return from_tile;
  };
  FinishTile(args, tile.rows, tile.columns, c, tiling.crosses,
             {part(tiling.bias), part(tiling.multiply), part(tiling.out)}, finish_scratch);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

int64_t LanesOf(Isa isa) { return isa == Isa::kAvx512 ? 16 : isa == Isa::kAvx2 ? 8 : 4; }

// What the micro-kernel reaches of the peak.
constexpr double kShareOfPeak = 0.85;

struct MatMulWork {
  std::vector<MatMulTiling> tilings;
  RowItems items;                 // of tilings
  std::vector<int64_t> partials;  // floats before each tiling's
  std::vector<int64_t> tiles;     // tiles of cut sums before each tiling's
  int64_t partial_floats = 0, cut_tiles = 0, scratch_floats = 0;
  double flops = 0, bytes = 0;
};

double BytesOf(const MatMulProblem& p) {
  return static_cast<double>(p.a.bytes() + p.b.bytes() + p.out.bytes());
}

MatMulWork CutAll(const MatMulArgs& args, const Cpu& cpu) {
  MatMulWork work;
  for (const MatMulProblem& p : args.problems) {
    const MatMulTiling& tiling = work.tilings.emplace_back(p, LanesOf(cpu.isa), cpu.threads);
    work.items.Add(tiling.items(), 1);
    work.partials.push_back(work.partial_floats);
    work.tiles.push_back(work.cut_tiles);
    if (tiling.chunks > 1) {
      work.partial_floats += tiling.items() * tiling.c_floats();
      work.cut_tiles += tiling.tiles();
    }
    work.scratch_floats = std::max(work.scratch_floats, tiling.scratch_floats());
    work.flops += tiling.flops();
    work.bytes += BytesOf(p);
  }
  return work;
}

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const MatMulArgs& args) {
  const Cpu& cpu = device.cpu();
  const MatMulWork work = CutAll(args, cpu);
  const int64_t floats = work.scratch_floats * cpu.threads + work.partial_floats;
  const auto buffer = Take(stream, floats * static_cast<int64_t>(sizeof(float)));
  if (buffer == nullptr) return NoMemory(stream);
  const double serial = std::max(work.flops / (kShareOfPeak * cpu.thread_flops),
                                 work.bytes * cpu.threads / cpu.bytes_per_second);
  if (Predicted(stream,
                Cpu::kMatMulLaunchSeconds + cpu.ParallelSeconds(serial, work.items.count()))) {
    return DeviceStatus();
  }
  float* const scratch = static_cast<float*>(buffer->data());
  float* const partials = scratch + work.scratch_floats * cpu.threads;
  std::vector<std::atomic<int>> arrived(static_cast<size_t>(work.cut_tiles));
  auto* run =
      Choose(cpu.isa, HWY_CHOOSE_SSE4(RunItem), HWY_CHOOSE_AVX2(RunItem), HWY_CHOOSE_AVX3(RunItem));
  cpu.ForEach(stream, work.items.count(), serial, [&](int64_t i, int thread) {
    const RowItems::Item item = work.items[i];
    const MatMulTiling& tiling = work.tilings[item.problem];
    float* partial = nullptr;
    std::atomic<int>* done = nullptr;
    if (tiling.chunks > 1) {
      const int64_t tile = item.begin / tiling.chunks;
      partial = partials + work.partials[item.problem] + tile * tiling.chunks * tiling.c_floats();
      done = &arrived[work.tiles[item.problem] + tile];
    }
    run(tiling, args, item.begin, scratch + thread * work.scratch_floats, partial, done);
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
