// The CPU kernels of depthwise_conv.
#include <algorithm>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows/depthwise_conv.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/convert-inl.h"
#include "kernels/cpu/simd/gemm-inl.h"

#ifndef ATTND_CPU_DEPTHWISE_CONV_ITEM_
#define ATTND_CPU_DEPTHWISE_CONV_ITEM_
namespace attnd {

// Rows of out (or of dout) of an item: with 33 taps of 64 columns they and what they read stay in
// L1.
constexpr int64_t kConvRows = 64;

// Rows [begin, end) of one matrix [N,D] of x and of another of the same shape, `other`.
struct ConvItem {
  DType dtype = DType::kF32, other_dtype = DType::kF32;
  const char* x = nullptr;
  char* other = nullptr;
  int64_t x_row = 0, other_row = 0;  // strides
  int64_t N = 0, D = 0, begin = 0, end = 0, left = 0;
  const float* weight = nullptr;  // w taps, in the order of the sum
  int64_t w = 0;
  float* scratch = nullptr;
};

}  // namespace attnd
#endif

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// Rows of a matrix from `begin` on, in whole vectors: where they lie, or widened.
struct WholeRows {
  const float* data;
  int64_t stride, begin;

  const float* operator[](int64_t row) const { return data + (row - begin) * stride; }
};

WholeRows RowsOf(DType dtype, const char* from, int64_t row, int64_t D, int64_t begin, int64_t end,
                 float* to) {
  if (dtype == DType::kF32 && D % kLanes == 0) {
    return {reinterpret_cast<const float*>(from), row, 0};
  }
  const int64_t stride = RoundUp(D, kLanes);
  for (int64_t n = begin; n < end; ++n) {
    float* const at = to + (n - begin) * stride;
    Widen(dtype, from + n * row * SizeOf(dtype), D, at);
    std::fill(at + D, at + stride, 0.0f);
  }
  return {to, stride, begin};
}

// kRowsAtOnce rows of sums of one vector of columns, taps in ascending order.
template <int kRowsAtOnce>
HWY_INLINE void Taps(const ConvItem& item, const WholeRows& x, int64_t first, int64_t t_begin,
                     int64_t t_end, int64_t column, float* to, int64_t to_stride) {
  const DF d;
  VF sum[kRowsAtOnce];
#pragma GCC unroll 8
  for (int r = 0; r < kRowsAtOnce; ++r) sum[r] = hn::Zero(d);
  const float* from = t_begin < t_end ? x[first + t_begin - item.left] + column : nullptr;
  for (int64_t t = t_begin; t < t_end; ++t, from += x.stride) {
    const VF weight = hn::Set(d, item.weight[t]);
#pragma GCC unroll 8
    for (int r = 0; r < kRowsAtOnce; ++r) {
      sum[r] = hn::MulAdd(weight, hn::LoadU(d, from + r * x.stride), sum[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRowsAtOnce; ++r) hn::StoreU(sum[r], d, to + r * to_stride);
}

void ConvRows(const ConvItem& item) {
  constexpr int kAtOnce = 8;  // 8 independent sums hide latency
  const int64_t width = RoundUp(item.D, kLanes);
  float* const sums = item.scratch;  // [kAtOnce][width]
  const int64_t first = std::clamp<int64_t>(item.begin - item.left, 0, item.N);
  const int64_t last = std::clamp<int64_t>(item.end + item.w - 1 - item.left, first, item.N);
  const WholeRows x =
      RowsOf(item.dtype, item.x, item.x_row, item.D, first, last, sums + kAtOnce * width);
  for (int64_t n = item.begin; n < item.end;) {
    // Taps whose row lies inside x; all of them for 8 rows, else one row at a time.
    const int64_t t_begin = std::clamp<int64_t>(item.left - n, 0, item.w);
    const int64_t t_end = std::clamp<int64_t>(item.N + item.left - n, t_begin, item.w);
    const bool is_inner = t_begin == 0 && n + kAtOnce <= item.end &&
                          n + kAtOnce - 1 + item.w - 1 - item.left < item.N;
    const int64_t count = is_inner ? kAtOnce : 1;
    for (int64_t column = 0; column < width; column += kLanes) {
      if (is_inner) {
        Taps<kAtOnce>(item, x, n, 0, item.w, column, sums + column, width);
      } else {
        Taps<1>(item, x, n, t_begin, t_end, column, sums + column, width);
      }
    }
    for (int64_t r = 0; r < count; ++r, ++n) {
      Narrow(item.other_dtype, sums + r * width, item.D,
             item.other + n * item.other_row * SizeOf(item.other_dtype));
    }
  }
}

// to[t] = the item's share of the gradient of weight[t].
void ConvTapGrads(const ConvItem& item, float* to) {
  constexpr int64_t kSums = 4;
  const DF d;
  const int64_t width = RoundUp(item.D, kLanes);
  const int64_t first = std::clamp<int64_t>(item.begin - item.left, 0, item.N);
  const int64_t last = std::clamp<int64_t>(item.end + item.w - 1 - item.left, first, item.N);
  const WholeRows x = RowsOf(item.dtype, item.x, item.x_row, item.D, first, last, item.scratch);
  const WholeRows dout = RowsOf(item.other_dtype, item.other, item.other_row, item.D, item.begin,
                                item.end, item.scratch + (last - first) * width);
  for (int64_t t = 0; t < item.w; ++t) {
    VF sum[kSums] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    const int64_t begin = std::max(item.begin, item.left - t);
    const int64_t end = std::min(item.end, item.N + item.left - t);
    for (int64_t n = begin; n < end; ++n) {
      const float *a = dout[n], *b = x[n + t - item.left];
      int64_t column = 0;
      for (; column + kSums * kLanes <= width; column += kSums * kLanes) {
#pragma GCC unroll 4
        for (int64_t i = 0; i < kSums; ++i) {
          const int64_t at = column + i * kLanes;
          sum[i] = hn::MulAdd(hn::LoadU(d, a + at), hn::LoadU(d, b + at), sum[i]);
        }
      }
      for (; column < width; column += kLanes) {
        sum[0] = hn::MulAdd(hn::LoadU(d, a + column), hn::LoadU(d, b + column), sum[0]);
      }
    }
    const VF all = hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
    to[t] = hn::GetLane(hn::SumOfLanes(d, all));
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

// Blocks of rows of every matrix of every problem.
class ConvItems {
 public:
  void Add(const View& x, const View& other, int64_t w) {
    const Shape& s = x.shape;
    const int64_t blocks = s[0] * s[1] * Blocks(s);
    items_.Add(blocks, 1);
    flops_ += 2 * static_cast<double>(s.size()) * static_cast<double>(w);
    bytes_ += static_cast<double>(x.bytes() + other.bytes());
    // Widened rows of both, or 8 rows of sums.
    const int64_t floats = (2 * kConvRows + w + 8) * RoundUp(s[3], 16);
    scratch_floats_ = std::max(scratch_floats_, floats);
  }
  static int64_t Blocks(const Shape& s) { return CeilDiv(s[2], kConvRows); }

  int64_t count() const { return items_.count(); }
  int64_t scratch_floats() const { return scratch_floats_; }
  int64_t problem(int64_t item) const { return items_[item].problem; }
  double flops() const { return flops_; }
  // Half of the peak: a multiply-add needs a load or two.
  double Seconds(const Cpu& cpu) const {
    return std::max(2 * flops_ / cpu.thread_flops, bytes_ * cpu.threads / cpu.bytes_per_second);
  }
  // Its matrices and rows; `head` is where its weights are.
  ConvItem Item(int64_t item, const View& x, const View& other, int64_t left, int64_t* head) const {
    const Shape& s = x.shape;
    const int64_t block = items_[item].begin, blocks = Blocks(s);
    const int64_t b = block / blocks / s[1];
    *head = block / blocks % s[1];
    const auto matrix = [&](const View& view) {
      return view.As<char>() + (b * view.stride[0] + *head * view.stride[1]) * SizeOf(view.dtype);
    };
    const int64_t begin = block % blocks * kConvRows;
    return {.dtype = x.dtype,
            .other_dtype = other.dtype,
            .x = matrix(x),
            .other = matrix(other),
            .x_row = x.stride[2],
            .other_row = other.stride[2],
            .N = s[2],
            .D = s[3],
            .begin = begin,
            .end = std::min(begin + kConvRows, s[2]),
            .left = left};
  }

 private:
  RowItems items_;
  int64_t scratch_floats_ = 0;
  double flops_ = 0, bytes_ = 0;
};

int64_t Bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

// The taps of every head, dense, in the order of the sum.
std::vector<float> TapsOf(const View& weight, bool flipped) {
  const int64_t H = weight.shape[0], w = weight.shape[1];
  std::vector<float> taps(static_cast<size_t>(H * w));
  for (int64_t h = 0; h < H; ++h) {
    for (int64_t t = 0; t < w; ++t) {
      taps[h * w + t] =
          weight.As<float>()[h * weight.stride[0] + (flipped ? w - 1 - t : t) * weight.stride[1]];
    }
  }
  return taps;
}

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const DepthwiseConvArgs& args) {
  const Cpu& cpu = device.cpu();
  ConvItems items;
  for (const DepthwiseConvProblem& p : args.problems) items.Add(p.x, p.out, p.weight.shape[1]);
  const auto scratch = Take(stream, Bytes(items.scratch_floats() * cpu.threads));
  if (scratch == nullptr) return NoMemory(stream);
  const double serial = items.Seconds(cpu);
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  std::vector<std::vector<float>> taps;
  for (const DepthwiseConvProblem& p : args.problems)
    taps.push_back(TapsOf(p.weight, args.flipped));
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(ConvRows), HWY_CHOOSE_AVX2(ConvRows),
                     HWY_CHOOSE_AVX3(ConvRows));
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int thread) {
    const int64_t problem = items.problem(i);
    const DepthwiseConvProblem& p = args.problems[problem];
    int64_t head;
    ConvItem item = items.Item(i, p.x, p.out, args.left, &head);
    item.w = p.weight.shape[1];
    item.weight = taps[problem].data() + head * item.w;
    item.scratch = static_cast<float*>(scratch->data()) + thread * items.scratch_floats();
    run(item);
  });
  return DeviceStatus();
}

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const DepthwiseConvGradArgs& args) {
  const Cpu& cpu = device.cpu();
  ConvItems items;
  std::vector<int64_t> first;  // of each problem's shares
  int64_t shares = 0;
  for (const DepthwiseConvGradProblem& p : args.problems) {
    const int64_t before = items.count(), w = p.dweight.shape[1];
    items.Add(p.x, p.dout, w);
    first.push_back(shares - before * w);
    shares += (items.count() - before) * w;
  }
  const auto scratch = Take(stream, Bytes(items.scratch_floats() * cpu.threads + shares));
  if (scratch == nullptr) return NoMemory(stream);
  const double serial = items.Seconds(cpu);
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(ConvTapGrads), HWY_CHOOSE_AVX2(ConvTapGrads),
                     HWY_CHOOSE_AVX3(ConvTapGrads));
  float* const memory = static_cast<float*>(scratch->data());
  float* const share = memory + items.scratch_floats() * cpu.threads;
  const auto share_of = [&](int64_t item, int64_t problem) {
    return share + first[problem] + item * args.problems[problem].dweight.shape[1];
  };
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int thread) {
    const int64_t problem = items.problem(i);
    const DepthwiseConvGradProblem& p = args.problems[problem];
    int64_t head;
    ConvItem item = items.Item(i, p.x, p.dout, args.left, &head);
    item.w = p.dweight.shape[1];
    item.scratch = memory + thread * items.scratch_floats();
    run(item, share_of(i, problem));
  });
  // Few numbers: in order, on this thread, in double.
  int64_t item = 0;
  for (size_t problem = 0; problem < args.problems.size(); ++problem) {
    const DepthwiseConvGradProblem& p = args.problems[problem];
    const int64_t H = p.dweight.shape[0], w = p.dweight.shape[1];
    std::vector<double> sums(static_cast<size_t>(H * w), 0.0);
    for (int64_t b = 0; b < p.x.shape[0]; ++b) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t block = 0; block < ConvItems::Blocks(p.x.shape); ++block, ++item) {
          const float* from = share_of(item, static_cast<int64_t>(problem));
          for (int64_t t = 0; t < w; ++t) sums[h * w + t] += from[t];
        }
      }
    }
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t t = 0; t < w; ++t) {
        p.dweight.As<float>()[h * p.dweight.stride[0] + t * p.dweight.stride[1]] =
            static_cast<float>(sums[h * w + t]);
      }
    }
  }
  return DeviceStatus();
}

}  // namespace attnd
#endif
