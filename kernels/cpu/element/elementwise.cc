// The CPU kernels of elementwise. Bound by memory, but for functions that run in float64.
#include <algorithm>
#include <array>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/element/element_cost.h"
#include "kernels/cpu/element/element_walk.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/element/elementwise.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/element/element-inl.h"
#include "kernels/cpu/element/element_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// A tile: operands that are not one dense piece of float32 pass through scratch, and so does the
// output.
void ElementTile(const ElementwiseArgs& args, int operands, const std::array<Patch, 4>& patches) {
  HWY_ALIGN float scratch[ElementWalk::kViews][ElementWalk::kTileElements];
  const Patch& out = patches[ElementWalk::kOut];
  const auto is_dense = [](const Patch& p) {
    return IsInPlace(p) && (p.rows == 1 || p.row_stride == p.columns);
  };
  ElementRow row = {{}, scratch[ElementWalk::kOut], out.rows * out.columns};
  for (int k = 0; k < operands; ++k) {
    row.in[k] = scratch[k];
    if (is_dense(patches[k])) {
      row.in[k] = reinterpret_cast<const float*>(patches[k].data);
    } else {
      LoadPatch(patches[k], scratch[k], out.columns);
    }
  }
  if (is_dense(out)) row.out = reinterpret_cast<float*>(out.data);
  args.derivative ? ElementDerivative(args, row) : ElementForward(args, row);
  if (row.out == scratch[ElementWalk::kOut]) StorePatch(row.out, out.columns, out);
}

// Tiles [begin, end) of a problem.
void ElementTiles(const ElementwiseArgs& args, int operands, const ElementWalk& walk,
                  const std::array<const View*, 4>& views, int64_t begin, int64_t end) {
  std::array<Patch, 4> patches;
  for (int v = 0; v < ElementWalk::kViews; ++v) {
    patches[v] = {views[v]->dtype, nullptr, 0, 0, walk.row_stride(v), walk.column_stride(v)};
  }
  // Between int32 and int32 bits are copied.
  if (patches[ElementWalk::kOut].dtype == DType::kI32) {
    patches[0].dtype = patches[ElementWalk::kOut].dtype = DType::kF32;
  }
  for (int64_t tile = begin; tile < end; ++tile) {
    int64_t rest = tile;
    const int64_t column = rest % walk.column_tiles * walk.tile_columns;
    rest /= walk.column_tiles;
    const int64_t row = rest % walk.row_tiles * walk.tile_rows;
    rest /= walk.row_tiles;
    std::array<int64_t, 4> offset;
    for (int v = 0; v < ElementWalk::kViews; ++v) {
      offset[v] = row * walk.row_stride(v) + column * walk.column_stride(v);
    }
    for (int axis = walk.rank - 3; axis >= 0; --axis) {
      const int64_t i = rest % walk.size[axis];
      rest /= walk.size[axis];
      for (int v = 0; v < ElementWalk::kViews; ++v) offset[v] += i * walk.stride[v][axis];
    }
    for (int v = 0; v < ElementWalk::kViews; ++v) {
      patches[v].rows = std::min(walk.tile_rows, walk.rows() - row);
      patches[v].columns = std::min(walk.tile_columns, walk.columns() - column);
      patches[v].data = views[v]->As<char>();
      if (views[v]->given()) patches[v].data += offset[v] * SizeOf(views[v]->dtype);
    }
    ElementTile(args, operands, patches);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const ElementwiseArgs& args) {
  const Cpu& cpu = device.cpu();
  const int operands = args.derivative ? 2 : Operands(args.op);
  RowItems items;
  std::vector<ElementWalk> walks;
  double serial = 0;
  for (const ElementwiseProblem& p : args.problems) {
    const ElementWalk& walk = walks.emplace_back(WalkOf({&p.a, &p.b, &p.c, &p.out}));
    constexpr int64_t kItem = 16384;  // elements: 64 KB of output
    items.Add(walk.tiles, kItem / (walk.tile_rows * walk.tile_columns));
    // The output counts twice: its lines are read before they are written.
    const double bytes = static_cast<double>(p.a.bytes() + p.b.bytes() + p.c.bytes()) +
                         2 * static_cast<double>(p.out.bytes());
    const auto elements = static_cast<double>(p.out.shape.size());
    serial += std::max(bytes / (cpu.bytes_per_second / cpu.threads),
                       elements * FlopsOf(args.op) / cpu.thread_flops);
  }
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(ElementTiles), HWY_CHOOSE_AVX2(ElementTiles),
                     HWY_CHOOSE_AVX3(ElementTiles));
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int) {
    const RowItems::Item item = items[i];
    const ElementwiseProblem& p = args.problems[item.problem];
    run(args, operands, walks[item.problem], {&p.a, &p.b, &p.c, &p.out}, item.begin, item.end);
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
