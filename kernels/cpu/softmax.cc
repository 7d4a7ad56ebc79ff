// The CPU kernels of softmax: maximum, sum of exponentials and result are three passes over a chunk
// of columns that stays in L2. Bound by memory from there on; an exponential takes 7 cycles for 16
// elements with AVX-512. Chunks of a long axis meet between two launches.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/along_walk.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/log_sum_exp.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/softmax.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/reduce_columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// e^(x - shift) scale of every column, log: x - shift - scale.
struct ColumnScales {
  HWY_ALIGN float shift[kWidth];
  HWY_ALIGN float scale[kWidth];
};

// From the maximum and the sum of e^(x - maximum) of every column.
ColumnScales ScalesOf(bool log, bool is_dense, const ColumnResults& parts) {
  ColumnScales scales;
  for (int64_t c = 0; c < kWidth; ++c) {
    const float most = parts.value[is_dense ? 0 : c], sum = parts.second[is_dense ? 0 : c];
    // Nothing but -inf: every result is e^-inf, or -inf.
    const bool is_nothing = most == kLeast;
    scales.shift[c] = is_nothing ? 0.0f : most;
    if (log) {
      scales.scale[c] = is_nothing ? 0.0f : static_cast<float>(std::log(static_cast<double>(sum)));
    } else {
      scales.scale[c] = is_nothing ? 0.0f : 1.0f / sum;
    }
    if (is_dense && c > 0) {
      scales.shift[c] = scales.shift[0];
      scales.scale[c] = scales.scale[0];
    }
  }
  return scales;
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

void WriteUnit(bool log, const SoftmaxProblem& p, const AlongWalk& walk,
               const AlongWalk::Unit& unit, const ColumnResults& parts, ColumnBlocks& blocks) {
  const ColumnScales scales = ScalesOf(log, walk.is_dense, parts);
  const ColumnPatches out(p.out, AlongWalk::kOut, walk, unit);
  HWY_ALIGN float scratch[kWidth * kBlock];
  for (int64_t b = 0; b < blocks.count(); ++b) {
    const Patch to = out[b];
    const RowBlock from = blocks[b];
    if (HoldsVectors(to) && to.columns == from.width) {
      ScaleBlock(log, from, scales, reinterpret_cast<float*>(to.data), to.row_stride);
    } else {
      ScaleBlock(log, from, scales, scratch, kWidth);
      StorePatch(scratch, kWidth, to);
    }
  }
}

// Units [begin, end) of a problem. `parts` null: the axis is one chunk; else [output][chunk][2],
// which the first launch writes and the second, with `is_second`, reads.
void SoftmaxUnits(bool log, const SoftmaxProblem& p, const AlongWalk& walk, int64_t begin,
                  int64_t end, float* parts, bool is_second) {
  ColumnResults results;
  for (int64_t u = begin; u < end; ++u) {
    const AlongWalk::Unit unit = walk.At(u);
    ColumnBlocks blocks(p.x, walk, unit, /*filler=*/kLeast);
    const int64_t width = walk.width(unit.tile);
    float* own = parts + (unit.outer * walk.columns + unit.tile * kWidth) * walk.chunks * 2;
    if (is_second) {
      for (int64_t c = 0; c < width; ++c) {
        const float* column = own + c * walk.chunks * 2;
        const MaxAndSum all = CombineLogSumExp(column, walk.chunks);
        results.value[c] = all.most;
        results.second[c] = static_cast<float>(all.sum);
      }
    } else {
      MaxOfColumns(blocks, walk.is_dense, results.value);
      ExpSumOfColumns(blocks, walk.is_dense, results.value, results.second);
    }
    if (parts == nullptr || is_second) {
      WriteUnit(log, p, walk, unit, results, blocks);
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

absl::Status CpuSoftmax(CpuBackend& backend, Stream& stream, const SoftmaxArgs& args) {
  const Cpu& cpu = backend.cpu();
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
  if (!parts.ok()) return parts.status();
  if (stream.is_dry()) {
    stream.work().seconds += cpu.ParallelSeconds(serial, first.count());
    return absl::OkStatus();
  }
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(SoftmaxUnits), HWY_CHOOSE_AVX2(SoftmaxUnits),
                     HWY_CHOOSE_AVX3(SoftmaxUnits));
  const auto launch = [&](const RowItems& items, bool is_second) {
    cpu.pool->ParallelFor(items.count(), cpu.Parallel(serial), [&](int64_t i, int) {
      const RowItems::Item item = items[i];
      const AlongWalk& walk = walks[item.problem];
      float* all = static_cast<float*>((*parts)->data());
      run(args.log, args.problems[item.problem], walk, item.begin, item.end,
          walk.chunks > 1 ? all + first_part[item.problem] : nullptr, is_second);
    });
  };
  launch(first, /*is_second=*/false);
  if (second.count() > 0) launch(second, /*is_second=*/true);
  return absl::OkStatus();
}

}  // namespace attnd
#endif
