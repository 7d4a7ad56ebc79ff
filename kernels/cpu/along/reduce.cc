// The CPU kernels of reduce. Columns side by side are reduced together; a dense axis
// is reduced in place. Chunks of a long axis are work items of their
// own, and a second launch combines them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/along/along_walk.h"
#include "kernels/cpu/along/log_sum_exp.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/along/reduce.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/along/reduce_columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

void ReduceRow(ReduceOp op, const ReduceProblem& p, const AlongWalk& walk,
               const AlongWalk::Unit& unit, ColumnResults& results) {
  const int64_t begin = unit.chunk * walk.chunk;
  RowPieces row(p.x, unit.offset[AlongWalk::kX] + begin, std::min(walk.chunk, walk.n - begin),
                /*stride=*/1);
  const auto same = [](auto x) HWY_ATTR { return x; };
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      results.value[0] = static_cast<float>(SumOfRow(row, same, /*filler=*/0));
      break;
    case ReduceOp::kMax:
      results.value[0] = MaxOfRow(row);
      break;
    case ReduceOp::kLogSumExp:
      results.value[0] = MaxOfRow(row);
      results.second[0] = ExpSumOfRow(row, results.value[0]);
      break;
    case ReduceOp::kArgMax: {
      const int64_t place = ArgMaxOfRow(row);
      const float x = row.At(place / kPiece * kPiece)[place % kPiece];
      results.value[0] = x > kLeast ? x : kLeast;
      results.second[0] = static_cast<float>(place);
      break;
    }
    case ReduceOp::kArgMaxSigned: {
      const int64_t place = ArgMaxSignedOfRow(row), at = place < 0 ? -1 - place : place;
      const float x = row.At(at / kPiece * kPiece)[at % kPiece];
      results.value[0] = std::abs(x) > kLeast ? std::abs(x) : kLeast;
      results.second[0] = static_cast<float>(place);
      break;
    }
  }
}

void ReduceColumns(ReduceOp op, const ReduceProblem& p, const AlongWalk& walk,
                   const AlongWalk::Unit& unit, ColumnResults& results) {
  ColumnBlocks blocks(p.x, walk, unit);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return SumOfColumns(blocks, results.value);
    case ReduceOp::kMax:
      return MaxOfColumns(blocks, results.value);
    case ReduceOp::kLogSumExp:
      MaxOfColumns(blocks, results.value);
      return ExpSumOfColumns(blocks, results.value, results.second);
    case ReduceOp::kArgMax:
      return ArgMaxOfColumns(blocks, results);
    case ReduceOp::kArgMaxSigned:
      return ArgMaxSignedOfColumns(blocks, results);
  }
}

// Units [begin, end) of a problem. `parts` null: the axis is one chunk and results go to the
// output; else [output][chunk][2].
void ReduceUnits(ReduceOp op, const ReduceProblem& p, const AlongWalk& walk, int64_t begin,
                 int64_t end, float* parts) {
  ColumnResults results;
  for (int64_t u = begin; u < end; ++u) {
    const AlongWalk::Unit unit = walk.At(u);
    walk.is_dense ? ReduceRow(op, p, walk, unit, results)
                  : ReduceColumns(op, p, walk, unit, results);
    const int64_t width = walk.width(unit.tile);
    if (parts != nullptr) {
      const int64_t first = unit.outer * walk.columns + unit.tile * kWidth;
      for (int64_t c = 0; c < width; ++c) {
        float* part = parts + ((first + c) * walk.chunks + unit.chunk) * 2;
        part[0] = results.value[c];
        part[1] = results.second[c];
      }
      continue;
    }
    if (op == ReduceOp::kLogSumExp) LogSumExpOf(results, width, results.value);
    const float count = op == ReduceOp::kMean && walk.n > 0 ? static_cast<float>(walk.n) : 1.0f;
    for (int64_t c = 0; c < width; ++c) {
      const int64_t at = unit.offset[AlongWalk::kOut] + c * walk.column_stride[AlongWalk::kOut];
      if (IsArgMax(op)) {
        const auto place = static_cast<int64_t>(results.second[c]);
        p.out.As<int32_t>()[at] = walk.n == 0 ? -1 : IndexOf(place, walk.n);
      } else {
        p.out.As<float>()[at] = results.value[c] / count;
      }
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

// The chunks of one output: [chunks][2].
float PairwiseSum(const float* parts, int64_t chunks) {
  if (chunks == 1) return parts[0];
  const int64_t half = chunks / 2;
  return PairwiseSum(parts, half) + PairwiseSum(parts + 2 * half, chunks - half);
}

float LogSumExpOf(const float* parts, int64_t chunks) {
  const MaxAndSum all = CombineLogSumExp(parts, chunks);
  return std::isfinite(all.most) ? static_cast<float>(all.most + std::log(all.sum)) : all.most;
}

// Of equal ones, those of x come before those of -x.
int32_t ArgMaxOf(const float* parts, const AlongWalk& walk) {
  int64_t best = 0;
  for (int64_t i = 1; i < walk.chunks; ++i) {
    const float *own = parts + 2 * i, *other = parts + 2 * best;
    if (own[0] > other[0] || (own[0] == other[0] && own[1] >= 0 && other[1] < 0)) best = i;
  }
  const auto place = static_cast<int64_t>(parts[2 * best + 1]), before = best * walk.chunk;
  return IndexOf(place < 0 ? place - before : place + before, walk.n);
}

// Output `number` (outer, column) of a problem from its chunks.
void Combine(ReduceOp op, const ReduceProblem& p, const AlongWalk& walk, int64_t number,
             const float* parts) {
  const int64_t column = number % walk.columns;
  const int64_t tile = column / AlongWalk::kWidth;
  const int64_t outer = number / walk.columns;
  const AlongWalk::Unit unit = walk.At((outer * walk.tiles + tile) * walk.chunks);
  const int64_t at = unit.offset[AlongWalk::kOut] +
                     column % AlongWalk::kWidth * walk.column_stride[AlongWalk::kOut];
  const float* own = parts + number * walk.chunks * 2;
  if (IsArgMax(op)) {
    p.out.As<int32_t>()[at] = ArgMaxOf(own, walk);
    return;
  }
  float& out = p.out.As<float>()[at];
  if (op == ReduceOp::kMax) out = MaxOf(own, /*stride=*/2, walk.chunks);
  if (op == ReduceOp::kLogSumExp) out = LogSumExpOf(own, walk.chunks);
  if (op == ReduceOp::kSum) out = PairwiseSum(own, walk.chunks);
  if (op == ReduceOp::kMean) {
    out = PairwiseSum(own, walk.chunks) / static_cast<float>(walk.n);
  }
}

// Beyond reading, in multiply-adds of float32 an element; see tests/bench/along.
double FlopsOf(ReduceOp op) { return op == ReduceOp::kLogSumExp ? 40 : 4; }

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const ReduceArgs& args) {
  const Cpu& cpu = device.cpu();
  RowItems items, combined;
  std::vector<AlongWalk> walks;
  std::vector<int64_t> first_part = {0};  // floats
  double serial = 0;
  for (const ReduceProblem& p : args.problems) {
    const AlongWalk& walk = walks.emplace_back(AlongWalkOf(p.x, p.out, args.axis));
    items.Add(walk.units(), AlongWalk::kItem / std::max<int64_t>(walk.unit_elements(), 1));
    const int64_t pieces = walk.chunks > 1 ? walk.outputs() * walk.chunks : 0;
    combined.Add(walk.chunks > 1 ? walk.outputs() : 0, AlongWalk::kItem / walk.chunks);
    first_part.push_back(first_part.back() + 2 * pieces);
    serial += std::max(static_cast<double>(p.x.bytes()) / (cpu.bytes_per_second / cpu.threads),
                       static_cast<double>(p.x.shape.size()) * FlopsOf(args.op) / cpu.thread_flops);
  }
  const auto parts = Take(stream, first_part.back() * static_cast<int64_t>(sizeof(float)));
  if (parts == nullptr) return NoMemory(stream);
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(ReduceUnits), HWY_CHOOSE_AVX2(ReduceUnits),
                     HWY_CHOOSE_AVX3(ReduceUnits));
  const auto parts_of = [&](int64_t problem) {
    float* all = static_cast<float*>(parts->data());
    return walks[problem].chunks > 1 ? all + first_part[problem] : nullptr;
  };
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int) {
    const RowItems::Item item = items[i];
    run(args.op, args.problems[item.problem], walks[item.problem], item.begin, item.end,
        parts_of(item.problem));
  });
  if (combined.count() == 0) return DeviceStatus();
  cpu.ForEach(stream, combined.count(), serial, [&](int64_t i, int) {
    const RowItems::Item item = combined[i];
    for (int64_t n = item.begin; n < item.end; ++n) {
      Combine(args.op, args.problems[item.problem], walks[item.problem], n, parts_of(item.problem));
    }
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
