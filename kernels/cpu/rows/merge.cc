// Joining attention results by their lse. Bound by memory: (P + 1) Dv numbers a row of P parts
// forward, (2 P + 2) Dv backward; see tests/bench/merge_bench.cc.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows/merge.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

constexpr int64_t kRows = 64;  // whose weights are computed together: bits of a word
constexpr size_t kParts = kMaxMergeParts;

// Rows of a view [.., N, Dv] or [.., N] that lie `step` bytes apart.
struct RowsAt {
  char* data = nullptr;
  int64_t step = 0;
  char* operator[](int64_t row) const { return data + row * step; }
};

// Row `row` of all (leading axes are those of `shape`, [.., N]) and the next ones along N.
RowsAt RowsOf(const View& view, const Shape& shape, int64_t row) {
  if (!view.given()) return {};
  int64_t offset = 0;
  for (int i = shape.rank - 1; i >= 0; --i) {
    offset += row % shape[i] * view.stride[i];
    row /= shape[i];
  }
  const int64_t size = SizeOf(view.dtype);
  return {view.As<char>() + offset * size, view.stride[shape.rank - 1] * size};
}

// Weights of kRows rows: of part p in row r at weight[p][r]; skipped where lse_p = -inf.
struct Weights {
  float weight[kParts][kRows];
  float lse[kRows], lse_low[kRows];
  uint64_t seen[kParts];  // bit r: part p counts in row r
};

float LseAt(const RowsAt& rows, int64_t row) {
  float value;
  std::memcpy(&value, rows[row], sizeof(value));
  return value;
}

// The lse and lse_low of some rows of a part.
struct LseRows {
  RowsAt lse, low;

  static LseRows Of(const MergePart& part, const Shape& shape, int64_t row) {
    return {RowsOf(part.lse, shape, row), RowsOf(part.lse_low, shape, row)};
  }
};

// e^(lse_p - m) / sum instead of e^(lse_p - lse): an lse as large as m would lose digits.
HWY_NOINLINE void Weigh(const LseRows* parts_of, size_t parts, int64_t rows, Weights* w) {
  const hn::ScalableTag<float> d;
  constexpr int64_t kStep = HWY_LANES(float);
  constexpr float kInf = std::numeric_limits<float>::infinity();
  float max[kRows];
  std::fill(max, max + kRows, -kInf);
  float low[kParts][kRows];
  for (size_t p = 0; p < parts; ++p) {
    w->seen[p] = 0;
    for (int64_t r = 0; r < kRows; ++r) {
      const float lse = r < rows ? LseAt(parts_of[p].lse, r) : -kInf;
      w->weight[p][r] = lse;
      low[p][r] = r < rows && parts_of[p].low.data != nullptr ? LseAt(parts_of[p].low, r) : 0;
      w->seen[p] |= uint64_t{lse != -kInf} << r;
      max[r] = lse > max[r] ? lse : max[r];
    }
  }
  // An infinite maximum would make inf - inf of its own part.
  for (float& m : max) m = std::isinf(m) ? 0 : m;
  float sum[kRows] = {};
  for (int64_t r = 0; r < kRows; r += kStep) {
    auto total = hn::Zero(d);
    for (size_t p = 0; p < parts; ++p) {
      const auto apart = hn::Sub(hn::LoadU(d, w->weight[p] + r), hn::LoadU(d, max + r));
      const auto x = hn::Add(apart, hn::LoadU(d, low[p] + r));
      const auto e = Exp2(d, hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
      total = hn::Add(total, e);
      hn::StoreU(e, d, w->weight[p] + r);
    }
    hn::StoreU(total, d, sum + r);
    for (size_t p = 0; p < parts; ++p) {
      hn::StoreU(hn::Div(hn::LoadU(d, w->weight[p] + r), total), d, w->weight[p] + r);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const double log_sum = std::log(double{sum[r]});
    w->lse[r] = static_cast<float>(max[r] + log_sum);
    const double low_part = (double{max[r]} - double{w->lse[r]}) + log_sum;
    w->lse_low[r] = std::isfinite(w->lse[r]) ? static_cast<float>(low_part) : 0;
  }
}

// kStep numbers, or the `count` that are left of a row.
HWY_INLINE hn::Vec<convert_internal::D> LoadSome(DType dtype, const char* from, int64_t count) {
  const convert_internal::D d;
  constexpr int64_t kStep = convert_internal::kStep;
  if (count >= kStep) {
    return dtype == DType::kF32
               ? hn::LoadU(d, reinterpret_cast<const float*>(from))
               : convert_internal::WidenVector(dtype, reinterpret_cast<const uint16_t*>(from));
  }
  float part[kStep] = {};
  Widen(dtype, from, count, part);
  return hn::LoadU(d, part);
}

HWY_INLINE void StoreSome(DType dtype, hn::Vec<convert_internal::D> x, char* to, int64_t count) {
  const convert_internal::D d;
  constexpr int64_t kStep = convert_internal::kStep;
  if (count >= kStep) {
    if (dtype == DType::kF32) return hn::StoreU(x, d, reinterpret_cast<float*>(to));
    return convert_internal::NarrowVector(dtype, x, reinterpret_cast<uint16_t*>(to));
  }
  float part[kStep];
  hn::StoreU(x, d, part);
  Narrow(dtype, part, count, to);
}

// The parts that count in a row.
struct Counted {
  const char* from[kParts];
  DType dtype[kParts];
  float weight[kParts];
  size_t count = 0;
};

HWY_INLINE void Count(const MergeProblem& p, const RowsAt* outs, const Weights& w, int64_t row,
                      Counted* counted) {
  counted->count = 0;
  for (size_t i = 0; i < p.parts.size(); ++i) {
    if ((w.seen[i] >> row & 1) == 0) continue;
    const size_t n = counted->count++;
    counted->from[n] = outs[i][row];
    counted->dtype[n] = p.parts[i].out.dtype;
    counted->weight[n] = w.weight[i][row];
  }
}

// Calls run(first, rows) for blocks of rows [begin, end) of a problem that lie along one N.
template <class Run>
HWY_INLINE void ForBlocks(const Shape& shape, int64_t begin, int64_t end, const Run& run) {
  const int64_t N = shape[shape.rank - 1];
  while (begin < end) {
    const int64_t rows = std::min({kRows, end - begin, N - begin % N});
    run(begin, rows);
    begin += rows;
  }
}

void MergeRows(const MergeProblem& p, int64_t begin, int64_t end) {
  constexpr int64_t kStep = convert_internal::kStep;
  const convert_internal::D d;
  const Shape& shape = p.lse.shape;
  const int64_t Dv = p.out.shape[p.out.shape.rank - 1];
  ForBlocks(shape, begin, end, [&](int64_t first, int64_t rows) {
    RowsAt outs[kParts];
    LseRows lses[kParts];
    for (size_t i = 0; i < p.parts.size(); ++i) {
      outs[i] = RowsOf(p.parts[i].out, shape, first);
      lses[i] = LseRows::Of(p.parts[i], shape, first);
    }
    const RowsAt out = RowsOf(p.out, shape, first), lse = RowsOf(p.lse, shape, first);
    const RowsAt lse_low = RowsOf(p.lse_low, shape, first);
    Weights w;
    Weigh(lses, p.parts.size(), rows, &w);
    Counted parts;
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(lse[r], &w.lse[r], sizeof(float));
      if (lse_low.data != nullptr) std::memcpy(lse_low[r], &w.lse_low[r], sizeof(float));
      Count(p, outs, w, r, &parts);
      for (int64_t c = 0; c < Dv; c += kStep) {
        auto sum = hn::Zero(d);
        for (size_t i = 0; i < parts.count; ++i) {
          const char* from = parts.from[i] + c * SizeOf(parts.dtype[i]);
          sum =
              hn::MulAdd(hn::Set(d, parts.weight[i]), LoadSome(parts.dtype[i], from, Dv - c), sum);
        }
        StoreSome(p.out.dtype, sum, out[r] + c * SizeOf(p.out.dtype), Dv - c);
      }
    }
  });
}

// g . (x - mean), and w g to `to` unless that is null; Dv numbers each.
struct GradRow {
  DType dtype, mean_dtype;
  const char* g;
  const char* mean;
  int64_t Dv;

  HWY_INLINE float Run(DType x_dtype, const char* x, float w, DType to_dtype, char* to) const {
    constexpr int64_t kStep = convert_internal::kStep;
    const convert_internal::D d;
    auto sum = hn::Zero(d);
    for (int64_t c = 0; c < Dv; c += kStep) {
      const auto flow = LoadSome(dtype, g + c * SizeOf(dtype), Dv - c);
      const auto center = LoadSome(mean_dtype, mean + c * SizeOf(mean_dtype), Dv - c);
      const auto value = LoadSome(x_dtype, x + c * SizeOf(x_dtype), Dv - c);
      sum = hn::MulAdd(flow, hn::Sub(value, center), sum);
      if (to == nullptr) continue;
      StoreSome(to_dtype, hn::Mul(flow, hn::Set(d, w)), to + c * SizeOf(to_dtype), Dv - c);
    }
    return hn::GetLane(hn::SumOfLanes(d, sum));
  }
};

void MergeGradRows(const MergeGradProblem& p, int64_t begin, int64_t end) {
  const MergeProblem& f = p.forward;
  const Shape& shape = f.lse.shape;
  const int64_t Dv = f.out.shape[f.out.shape.rank - 1];
  const size_t count = f.parts.size();
  ForBlocks(shape, begin, end, [&](int64_t first, int64_t rows) {
    RowsAt outs[kParts], douts[kParts], dlses[kParts];
    LseRows lses[kParts];
    for (size_t i = 0; i < count; ++i) {
      outs[i] = RowsOf(f.parts[i].out, shape, first);
      lses[i] = LseRows::Of(f.parts[i], shape, first);
      douts[i] = RowsOf(p.dparts[i].out, shape, first);
      dlses[i] = RowsOf(p.dparts[i].lse, shape, first);
    }
    const RowsAt out = RowsOf(f.out, shape, first), dout = RowsOf(p.dout, shape, first);
    const RowsAt dlse = RowsOf(p.dlse, shape, first);
    Weights w;
    Weigh(lses, count, rows, &w);
    for (int64_t r = 0; r < rows; ++r) {
      const bool flows = dout.data != nullptr;
      const GradRow row{p.dout.dtype, f.out.dtype, flows ? dout[r] : nullptr, out[r], Dv};
      const float back = dlse.data == nullptr ? 0 : LseAt(dlse, r);
      for (size_t i = 0; i < count; ++i) {
        const View& to = p.dparts[i].out;
        char* dout_i = to.given() ? douts[i][r] : nullptr;
        const bool seen = (w.seen[i] >> r & 1) != 0;
        float dot = 0;
        if (seen && flows) {
          dot = row.Run(f.parts[i].out.dtype, outs[i][r], w.weight[i][r], to.dtype, dout_i);
        } else if (dout_i != nullptr) {
          std::memset(dout_i, 0, static_cast<size_t>(Dv * SizeOf(to.dtype)));
        }
        const float dlse_i = seen ? w.weight[i][r] * (back + dot) : 0;
        if (dlses[i].data != nullptr) std::memcpy(dlses[i][r], &dlse_i, sizeof(float));
      }
    }
  });
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

const MergeProblem& ForwardOf(const MergeProblem& problem) { return problem; }
const MergeProblem& ForwardOf(const MergeGradProblem& problem) { return problem.forward; }

// Runs `kernel` on items of 64 KB of a problem's out: enough to hide the start of an item.
template <class Problem, class Kernel>
DeviceStatus RunRows(CpuDevice& device, Stream& stream, const std::vector<Problem>& problems,
                     double bytes, const Kernel& kernel) {
  const Cpu& cpu = device.cpu();
  RowItems items;
  for (const Problem& problem : problems) {
    const MergeProblem& f = ForwardOf(problem);
    const int64_t row_bytes = std::max<int64_t>(4 * f.out.shape[f.out.shape.rank - 1], 4);
    items.Add(f.lse.shape.size(), (64 << 10) / row_bytes);
  }
  const double serial = bytes / (cpu.bytes_per_second / cpu.threads);
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int) {
    const RowItems::Item item = items[i];
    kernel(problems[item.problem], item.begin, item.end);
  });
  return DeviceStatus();
}

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const MergeArgs& args) {
  double bytes = 0;
  for (const MergeProblem& p : args.problems) {
    bytes += static_cast<double>(p.out.bytes());
    for (const MergePart& part : p.parts) bytes += static_cast<double>(part.out.bytes());
  }
  auto* run = Choose(device.cpu().isa, HWY_CHOOSE_SSE4(MergeRows), HWY_CHOOSE_AVX2(MergeRows),
                     HWY_CHOOSE_AVX3(MergeRows));
  return RunRows(device, stream, args.problems, bytes, run);
}

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const MergeGradArgs& args) {
  double bytes = 0;
  for (const MergeGradProblem& p : args.problems) {
    bytes += 2.0 * static_cast<double>(p.forward.out.bytes());
    for (const MergePart& part : p.forward.parts) {
      bytes += 2.0 * static_cast<double>(part.out.bytes());
    }
  }
  auto* run = Choose(device.cpu().isa, HWY_CHOOSE_SSE4(MergeGradRows),
                     HWY_CHOOSE_AVX2(MergeGradRows), HWY_CHOOSE_AVX3(MergeGradRows));
  return RunRows(device, stream, args.problems, bytes, run);
}

}  // namespace attnd
#endif
