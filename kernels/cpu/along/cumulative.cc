// The CPU kernels of cumulative: columns side by side walk along the axis together, in float64.
// Chunks of a long axis start from the totals of those before, which a first launch computes.
#include <algorithm>
#include <vector>

#include "kernels/cpu/along/along_walk.h"
#include "kernels/cpu/along/cumulative_state.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/along/cumulative.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/along/column_blocks-inl.h"
#include "kernels/cpu/simd/wide_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace {

using wide::Number;
using VW = wide::V;
const hn::Rebind<float, wide::D> kHalf;

// What a column has seen. A sum: total, and 1 if it began anew. A maximum: itself. Log sum exp: the
// maximum and sum e^(x - maximum).
struct State {
  VW a, b;
};

// Adds an element.
template <CumulativeOp kOp>
HWY_INLINE State Step(State s, VW x) {
  if constexpr (kOp == CumulativeOp::kSum) {
    return {hn::Add(s.a, x), s.b};
  } else if constexpr (kOp == CumulativeOp::kMax) {
    return {hn::IfThenElse(hn::Or(hn::Gt(x, s.a), hn::IsNaN(x)), x, s.a), s.b};
  } else {
    // One of e^(a - most) and e^(x - most) is 1. Equal infinities have no difference.
    const VW distance = hn::IfThenZeroElse(hn::Eq(s.a, x), hn::Abs(hn::Sub(s.a, x)));
    const VW e = wide::Exp(hn::Neg(distance));
    const auto grows = hn::Or(hn::Gt(x, s.a), hn::IsNaN(x));
    const VW sum = hn::IfThenElse(grows, hn::MulAdd(s.b, e, Number(1)), hn::Add(s.b, e));
    return {hn::IfThenElse(grows, x, s.a), sum};
  }
}

template <CumulativeOp kOp>
HWY_INLINE VW Result(State s) {
  if constexpr (kOp != CumulativeOp::kLogSumExp) return s.a;
  const auto is_finite = hn::Lt(hn::Abs(s.a), Number(wide::kInf));
  return hn::IfThenElse(is_finite, hn::Add(s.a, wide::Log(s.b)), s.a);
}

HWY_INLINE VW Load(const float* from) { return hn::PromoteTo(wide::D(), hn::LoadU(kHalf, from)); }

HWY_INLINE State Reset(State s, VW reset) {
  const auto begins = hn::Ne(reset, Number(0));
  return {hn::IfThenZeroElse(begins, s.a), hn::IfThenElse(begins, Number(1), s.b)};
}

// What one call of ScanRows does.
struct RowScan {
  RowBlock x, reset;  // reset.data null: none
  float* out;         // null: only the state is wanted; rows kWidth apart
  double *a, *b;      // the state of kWidth columns, updated
  bool exclusive, reverse;
};

template <CumulativeOp kOp>
HWY_NOINLINE void ScanRows(const RowScan& scan) {
  const wide::D d;
  const int64_t rows = scan.x.rows, first = scan.reverse ? rows - 1 : 0;
  const int64_t step = scan.reverse ? -1 : 1;
  for (int64_t c = 0; c < scan.x.width; c += HWY_LANES(double)) {
    State s = {hn::LoadU(d, scan.a + c), hn::LoadU(d, scan.b + c)};
    for (int64_t i = 0, r = first; i < rows; ++i, r += step) {
      const State next = Step<kOp>(s, Load(scan.x.data + r * scan.x.pitch + c));
      if (scan.out != nullptr) {
        const VW y = Result<kOp>(scan.exclusive ? s : next);
        hn::StoreU(hn::DemoteTo(kHalf, y), kHalf, scan.out + r * kWidth + c);
      }
      if (scan.reset.data == nullptr) {
        s = next;
        continue;
      }
      const VW reset = Load(scan.reset.data + r * scan.reset.pitch + c);
      s = scan.exclusive ? Step<kOp>(Reset(s, reset), Load(scan.x.data + r * scan.x.pitch + c))
                         : Reset(next, reset);
    }
    hn::StoreU(s.a, d, scan.a + c);
    hn::StoreU(s.b, d, scan.b + c);
  }
}

void ScanRowsOf(CumulativeOp op, const RowScan& scan) {
  switch (op) {
    case CumulativeOp::kSum:
      return ScanRows<CumulativeOp::kSum>(scan);
    case CumulativeOp::kMax:
      return ScanRows<CumulativeOp::kMax>(scan);
    case CumulativeOp::kLogSumExp:
      return ScanRows<CumulativeOp::kLogSumExp>(scan);
  }
}

}  // namespace

// Units [begin, end) of a problem. Of a long axis, `totals` [output][chunk][2]: the first launch
// writes them, the second, with `writes`, starts from them.
void CumulativeUnits(const CumulativeArgs& args, const CumulativeProblem& p, const AlongWalk& walk,
                     int64_t begin, int64_t end, double* totals, bool writes) {
  HWY_ALIGN double a[kWidth];
  HWY_ALIGN double b[kWidth];
  HWY_ALIGN float scratch[kWidth * kBlock];
  for (int64_t u = begin; u < end; ++u) {
    const AlongWalk::Unit unit = walk.At(u);
    const int64_t width = walk.width(unit.tile);
    double* own = totals + (unit.outer * walk.columns + unit.tile * kWidth) * walk.chunks * 2;
    for (int64_t c = 0; c < kWidth; ++c) {
      const bool has_chunks = totals != nullptr && writes && c < width;
      const CumulativeState start =
          has_chunks ? StartOf(args, own + c * walk.chunks * 2, walk.chunks, unit.chunk)
                     : NothingSeen(args.op);
      a[c] = start.a;
      b[c] = start.b;
    }
    ColumnBlocks x(p.x, walk, unit);
    ColumnBlocks reset(p.reset, walk, unit, AlongWalk::kThird);
    const ColumnPatches out(p.out, AlongWalk::kOut, walk, unit);
    for (int64_t i = 0; i < x.count(); ++i) {
      const int64_t block = args.reverse ? x.count() - 1 - i : i;
      RowScan scan = {x[block], {}, nullptr, a, b, args.exclusive, args.reverse};
      if (p.reset.given()) scan.reset = reset[block];
      if (writes) scan.out = scratch;
      ScanRowsOf(args.op, scan);
      if (writes) StorePatch(scratch, kWidth, out[block]);
    }
    if (writes) continue;
    for (int64_t c = 0; c < width; ++c) {
      own[(c * walk.chunks + unit.chunk) * 2] = a[c];
      own[(c * walk.chunks + unit.chunk) * 2 + 1] = b[c];
    }
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

// In float64, multiply-adds of float32 an element; see tests/bench/along.
double FlopsOf(CumulativeOp op) { return op == CumulativeOp::kLogSumExp ? 300 : 30; }

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const CumulativeArgs& args) {
  const Cpu& cpu = device.cpu();
  RowItems first, second;  // totals of long axes; all units
  std::vector<AlongWalk> walks;
  std::vector<int64_t> first_total = {0};
  double serial = 0;
  for (const CumulativeProblem& p : args.problems) {
    const AlongWalk& walk =
        walks.emplace_back(AlongWalkOf(p.x, p.out, args.axis, /*columns_only=*/true, p.reset));
    const int64_t per_item = AlongWalk::kItem / std::max<int64_t>(walk.unit_elements(), 1);
    const bool is_long = walk.chunks > 1;
    first.Add(is_long ? walk.units() : 0, per_item);
    second.Add(walk.units(), per_item);
    first_total.push_back(first_total.back() + (is_long ? walk.outputs() * walk.chunks * 2 : 0));
    // The output counts twice: its lines are read before they are written.
    const double bytes = static_cast<double>(p.x.bytes() + 2 * p.out.bytes());
    const double flops = FlopsOf(args.op) * static_cast<double>(p.x.shape.size());
    serial += std::max(bytes / (cpu.bytes_per_second / cpu.threads), flops / cpu.thread_flops) *
              (is_long ? 2 : 1);
  }
  const auto totals = Take(stream, first_total.back() * static_cast<int64_t>(sizeof(double)));
  if (totals == nullptr) return NoMemory(stream);
  if (Predicted(stream, cpu.ParallelSeconds(serial, second.count()))) return DeviceStatus();
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(CumulativeUnits), HWY_CHOOSE_AVX2(CumulativeUnits),
                     HWY_CHOOSE_AVX3(CumulativeUnits));
  const auto launch = [&](const RowItems& items, bool writes) {
    cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int) {
      const RowItems::Item item = items[i];
      const AlongWalk& walk = walks[item.problem];
      double* all = static_cast<double*>(totals->data());
      run(args, args.problems[item.problem], walk, item.begin, item.end,
          walk.chunks > 1 ? all + first_total[item.problem] : nullptr, writes);
    });
  };
  if (first.count() > 0) launch(first, /*writes=*/false);
  launch(second, /*writes=*/true);
  return DeviceStatus();
}

}  // namespace attnd
#endif
