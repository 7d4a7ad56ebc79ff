// The CPU kernels of softmax: maximum, sum of exponentials and result are three passes over a chunk
// of columns that stays in L2. Bound by memory from there on; an exponential takes 7 cycles for 16
// elements with AVX-512. Chunks of a long axis meet between two launches.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/along/along_walk.h"
#include "kernels/cpu/along/log_sum_exp.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/along/softmax.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/along/reduce_columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// e^(x - shift) scale of every column, log: x - shift - scale.
struct ColumnScales {
  HWY_ALIGN float shift[kWidth] = {};
  HWY_ALIGN float scale[kWidth] = {};
};

// From the maximum and the sum of e^(x - maximum).
HWY_INLINE void SetScales(bool log, float most, float sum, float* shift, float* scale) {
  // Nothing but -inf: every result is e^-inf, or -inf.
  const bool is_nothing = most == kLeast;
  *shift = is_nothing ? 0.0f : most;
  if (log) {
    *scale = is_nothing ? 0.0f : static_cast<float>(std::log(static_cast<double>(sum)));
  } else {
    *scale = is_nothing ? 0.0f : 1.0f / sum;
  }
}

void ScaleBlock(bool log, const RowBlock& block, const ColumnScales& scales, float* to,
                int64_t pitch) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* x = block.data + r * block.pitch;
    for (int64_t c = 0; c < block.width; c += kStep) {
      const auto rest = hn::Sub(hn::LoadU(d, x + c), hn::Load(d, scales.shift + c));
      const auto scale = hn::Load(d, scales.scale + c);
      const auto y = log ? hn::Sub(rest, scale) : hn::Mul(ExpNegative(d, rest), scale);
      hn::StoreU(y, d, to + r * pitch + c);
    }
  }
}

void WriteColumns(bool log, const SoftmaxProblem& p, const AlongWalk& walk,
                  const AlongWalk::Unit& unit, const ColumnResults& parts) {
  ColumnScales scales;
  for (int64_t c = 0; c < walk.width(unit.tile); ++c) {
    SetScales(log, parts.value[c], parts.second[c], scales.shift + c, scales.scale + c);
  }
  ColumnBlocks blocks(p.x, walk, unit);
  const ColumnPatches out(p.out, AlongWalk::kOut, walk, unit);
  HWY_ALIGN float scratch[kWidth * kBlock];
  for (int64_t b = 0; b < blocks.count(); ++b) {
    const Patch to = out[b];
    if (HoldsVectors(to)) {
      ScaleBlock(log, blocks[b], scales, reinterpret_cast<float*>(to.data), to.row_stride);
    } else {
      ScaleBlock(log, blocks[b], scales, scratch, kWidth);
      StorePatch(scratch, kWidth, to);
    }
  }
}

void WriteRow(bool log, const SoftmaxProblem& p, const AlongWalk& walk, const AlongWalk::Unit& unit,
              RowPieces& x, const ColumnResults& parts) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  float one_shift, one_scale;
  SetScales(log, parts.value[0], parts.second[0], &one_shift, &one_scale);
  const auto shift = hn::Set(d, one_shift), scale = hn::Set(d, one_scale);
  const int64_t stride = walk.axis_stride[AlongWalk::kOut];
  RowPieces y(p.out, unit.offset[AlongWalk::kOut] + unit.chunk * walk.chunk * stride, x.n(),
              stride);
  const auto write = [&](const float* from, float* to) HWY_ATTR {
    const auto rest = hn::Sub(hn::LoadU(d, from), shift);
    hn::StoreU(log ? hn::Sub(rest, scale) : hn::Mul(ExpNegative(d, rest), scale), d, to);
  };
  for (int64_t begin = 0; begin < x.n(); begin += kPiece) {
    const float* from = x.At(begin);
    float* to = y.Target(begin);
    const int64_t n = x.count(begin);
    int64_t i = 0;
    for (; i + kStep <= n; i += kStep) write(from + i, to + i);
    if (i < n) {
      float rest[kStep] = {};
      std::memcpy(rest, from + i, static_cast<size_t>(n - i) * sizeof(float));
      write(rest, rest);
      std::memcpy(to + i, rest, static_cast<size_t>(n - i) * sizeof(float));
    }
    y.Store(begin);
  }
}

// Units [begin, end) of a problem. `parts` null: the axis is one chunk; else [output][chunk][2],
// which the first launch writes and the second, with `is_second`, reads.
void SoftmaxUnits(bool log, const SoftmaxProblem& p, const AlongWalk& walk, int64_t begin,
                  int64_t end, float* parts, bool is_second) {
  ColumnResults results;
  for (int64_t u = begin; u < end; ++u) {
    const AlongWalk::Unit unit = walk.At(u);
    const int64_t begin_of_chunk = unit.chunk * walk.chunk;
    RowPieces row(p.x,
                  unit.offset[AlongWalk::kX] + begin_of_chunk * walk.axis_stride[AlongWalk::kX],
                  std::min(walk.chunk, walk.n - begin_of_chunk), walk.axis_stride[AlongWalk::kX]);
    const int64_t width = walk.width(unit.tile);
    float* own = parts + (unit.outer * walk.columns + unit.tile * kWidth) * walk.chunks * 2;
    if (is_second) {
      for (int64_t c = 0; c < width; ++c) {
        const float* column = own + c * walk.chunks * 2;
        const MaxAndSum all = CombineLogSumExp(column, walk.chunks);
        results.value[c] = all.most;
        results.second[c] = static_cast<float>(all.sum);
      }
    } else if (walk.is_dense) {
      results.value[0] = MaxOfRow(row);
      results.second[0] = ExpSumOfRow(row, results.value[0]);
    } else {
      ColumnBlocks blocks(p.x, walk, unit);
      MaxOfColumns(blocks, results.value);
      ExpSumOfColumns(blocks, results.value, results.second);
    }
    if (parts == nullptr || is_second) {
      walk.is_dense ? WriteRow(log, p, walk, unit, row, results)
                    : WriteColumns(log, p, walk, unit, results);
      continue;
    }
    for (int64_t c = 0; c < width; ++c) {
      own[(c * walk.chunks + unit.chunk) * 2] = results.value[c];
      own[(c * walk.chunks + unit.chunk) * 2 + 1] = results.second[c];
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const SoftmaxArgs& args) {
  const Cpu& cpu = device.cpu();
  RowItems first, second;  // all units; those of long axes once more
  std::vector<AlongWalk> walks;
  std::vector<int64_t> first_part = {0};  // floats
  double serial = 0;
  for (const SoftmaxProblem& p : args.problems) {
    const AlongWalk& walk = walks.emplace_back(AlongWalkOf(p.x, p.out, args.axis));
    const int64_t per_item = AlongWalk::kItem / std::max<int64_t>(walk.unit_elements(), 1);
    const bool is_long = walk.chunks > 1;
    first.Add(walk.units(), per_item);
    second.Add(is_long ? walk.units() : 0, per_item);
    first_part.push_back(first_part.back() + (is_long ? walk.outputs() * walk.chunks * 2 : 0));
    // The output counts twice: its lines are read before they are written.
    const double bytes = static_cast<double>(p.x.bytes() + 2 * p.out.bytes());
    // Two exponentials; see tests/bench/along.
    const double flops = 80 * static_cast<double>(p.x.shape.size());
    serial += std::max(bytes / (cpu.bytes_per_second / cpu.threads), flops / cpu.thread_flops);
  }
  const auto parts = Take(stream, first_part.back() * static_cast<int64_t>(sizeof(float)));
  if (parts == nullptr) return NoMemory(stream);
  if (Predicted(stream, cpu.ParallelSeconds(serial, first.count()))) return DeviceStatus();
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(SoftmaxUnits), HWY_CHOOSE_AVX2(SoftmaxUnits),
                     HWY_CHOOSE_AVX3(SoftmaxUnits));
  const auto launch = [&](const RowItems& items, bool is_second) {
    cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int) {
      const RowItems::Item item = items[i];
      const AlongWalk& walk = walks[item.problem];
      float* all = static_cast<float*>(parts->data());
      run(args.log, args.problems[item.problem], walk, item.begin, item.end,
          walk.chunks > 1 ? all + first_part[item.problem] : nullptr, is_second);
    });
  };
  launch(first, /*is_second=*/false);
  if (second.count() > 0) launch(second, /*is_second=*/true);
  return DeviceStatus();
}

}  // namespace attnd
#endif
