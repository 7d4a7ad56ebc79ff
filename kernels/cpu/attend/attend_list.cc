#include "kernels/cpu/attend/attend_list.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/core/status.h"
#include "kernels/cpu/attend/attend_work.h"
#include "kernels/cpu/cpu_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend/attend_list.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_list-inl.h"
#include "kernels/cpu/attend/log_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Queries [first, first + rows) of a head.
class ListedQueries {
 public:
  ListedQueries(const ListHead& head, int64_t first, int64_t rows, float* scratch)
      : head_(head),
        scores_(head),
        first_(first),
        rows_(rows),
        q_(scratch),
        sum_v_(q_ + rows * ListStride(head.D)),
        max_(sum_v_ + rows * ListStride(head.Dv)),
        sum_(max_ + rows),
        next_(reinterpret_cast<int64_t*>(sum_ + rows)),
        space_(sum_ + 3 * rows),
        keys_(head.k, head.D, space_),
        values_(head.v, head.Dv, space_ + kListChunk * ListStride(head.D)) {}

  void Run() {
    const int64_t D = ListStride(head_.D);
    std::fill_n(q_, rows_ * D + rows_ * ListStride(head_.Dv), 0.0f);
    // A sink is a key that has been seen, with the value 0.
    const bool has_sink = head_.sink != kHidden;
    for (int64_t r = 0; r < rows_; ++r) {
      Widen(head_.q.dtype, head_.q.Row(first_ + r), head_.D, q_ + r * D);
      const bool sinks = has_sink && first_ + r < head_.nq;
      max_[r] = sinks ? head_.sink : kHidden;
      sum_[r] = sinks ? 1.0f : 0.0f;
    }
    const PairList& list = head_.pattern->keys_of;
    const int64_t block = ListBlockRows(list, head_.Nk, D + ListStride(head_.Dv));
    EachListed(list, first_, rows_, head_.Nk, block, next_,
               [&](int64_t i, const int32_t* ids, int64_t n) HWY_ATTR { Visit(i, ids, n); });
    for (int64_t r = 0; r < rows_; ++r) StoreOut(r);
    StoreLse();
  }

 private:
  static constexpr float kHidden = -std::numeric_limits<float>::infinity();

  void Visit(int64_t i, const int32_t* ids, int64_t n) {
    const DF d;
    scores_.Take(/*by_query=*/true, i, ids, n, &pairs_);
    if (pairs_.n == 0) return;
    const int64_t r = i - first_;
    const float* const* values = values_.Load(pairs_.ids, pairs_.n);
    Dots(q_ + r * ListStride(head_.D), keys_.Load(pairs_.ids, pairs_.n), pairs_.n, head_.D,
         pairs_.scores);
    scores_.Score(&pairs_);
    hn::StoreU(hn::Set(d, kHidden), d, pairs_.scores + pairs_.n);
    VF max = hn::Set(d, max_[r]);
    for (int64_t t = 0; t < pairs_.n; t += kLanes) {
      max = hn::Max(hn::LoadU(d, pairs_.scores + t), max);
    }
    const float old = max_[r], now = hn::GetLane(hn::MaxOfLanes(d, max));
    float* sum_v = sum_v_ + r * ListStride(head_.Dv);
    // Where nothing was seen before, all is zero; -inf - 0 instead of -inf - -inf.
    const VF base = hn::Set(d, now == kHidden ? 0.0f : now);
    if (now != old) {
      const VF shrink = ExpWeight(d, hn::Sub(hn::Set(d, old), base));
      for (int64_t x = 0; x < head_.Dv; x += kLanes) {
        hn::StoreU(hn::Mul(shrink, hn::LoadU(d, sum_v + x)), d, sum_v + x);
      }
      sum_[r] *= hn::GetLane(shrink);
      max_[r] = now;
    }
    VF sum = hn::Zero(d);
    for (int64_t t = 0; t < pairs_.n; t += kLanes) {
      const VF weight = ExpWeight(d, hn::Sub(hn::LoadU(d, pairs_.scores + t), base));
      hn::StoreU(weight, d, pairs_.scores + t);
      sum = hn::Add(sum, weight);
    }
    sum_[r] += hn::GetLane(hn::SumOfLanes(d, sum));
    AddWeighted(pairs_.scores, values, pairs_.n, head_.Dv, sum_v);
  }

  void StoreOut(int64_t r) {
    const int64_t i = first_ + r;
    const float sum = sum_[r];
    if (sum == 0) {
      std::memset(head_.out.Row(i), 0, head_.Dv * SizeOf(head_.out.dtype));
    } else {
      Narrow(head_.out.dtype, sum_v_ + r * ListStride(head_.Dv), head_.Dv, head_.out.Row(i),
             1 / sum);
    }
  }

  void StoreLse() {
    for (int64_t first = 0; first < rows_; first += kTile) {
      const int64_t rows = std::min(kTile, rows_ - first);
      float max[kTile] = {}, sum[kTile] = {};
      std::copy_n(max_ + first, rows, max);
      std::copy_n(sum_ + first, rows, sum);
      const LogSums log_sums(max, sum);
      for (int64_t i = 0; i < rows; ++i) {
        log_sums.Store(i, head_.lse, head_.lse_low, first_ + first + i);
      }
    }
  }

  const ListHead& head_;
  const ListScores scores_;
  const int64_t first_, rows_;
  float* const q_;      // [row][ListStride(D)]
  float* const sum_v_;  // [row][ListStride(Dv)]
  float *const max_, *const sum_;
  int64_t* const next_;
  float* const space_;
  ListedRows keys_, values_;
  PairChunk pairs_;
};

void AttendListed(const ListHead& head, int64_t first, int64_t rows, float* scratch) {
  ListedQueries(head, first, rows, scratch).Run();
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

int64_t StateFloats(const AttendProblem& p) {
  return ListStride(p.q.shape[3]) + ListStride(p.v.shape[3]) + 4;
}

struct Item {
  int32_t problem = 0;
  int64_t b = 0, h = 0, first = 0, rows = 0;
};

}  // namespace

ListHead ListHead::Of(const AttendProblem& p, const AttendParams& params, int64_t b, int64_t h) {
  const AttendTerms& t = p.terms;
  const AttendSeq& seq = p.seqs[b];
  const int64_t kv = h / (p.q.shape[1] / p.k.shape[1]);
  const auto scalar = [&](const View& view) -> const float* {
    return view.given() ? view.As<float>() + b * view.stride[0] + h * view.stride[1] : nullptr;
  };
  ListHead head{.D = p.q.shape[3],
                .Dv = p.v.shape[3],
                .Nq = p.q.shape[2],
                .Nk = p.k.shape[2],
                .nq = seq.nq,
                .q = HeadRows::Of(p.q, b, h),
                .k = HeadRows::Of(p.k, b, kv),
                .v = HeadRows::Of(p.v, b, kv),
                .out = HeadRows::Of(p.out, b, h),
                .lse = HeadRows::Of(p.lse, b, h),
                .lse_low = HeadRows::Of(p.lse_low, b, h),
                .params = params,
                .slope = scalar(t.alibi_slopes),
                .offset = seq.offset,
                .pattern = seq.Of(h)};
  if (t.bias.given()) head.bias = HeadPlane::Of(t.bias, b, h);
  if (t.sinks.given()) head.sink = *scalar(t.sinks);
  return head;
}

double ListSeconds(const Cpu& cpu, const AttendProblem& problem, const ListPairFlops& pair) {
  const double width = static_cast<double>(problem.q.shape[3] + problem.v.shape[3]);
  // 16 to 28 ns a pair at 2 MB, 30 to 60 at 8 MB, 80 to 120 at 32 MB.
  const double rows = static_cast<double>(std::max(problem.q.shape[2], problem.k.shape[2]));
  const double farther = std::clamp(std::pow(rows * width * 4 / 2e6, 0.6), 1.0, 7.0);
  return VisiblePairs(problem) * (pair.element * farther * width + pair.rest) / cpu.thread_flops;
}

DeviceStatus CpuAttendLists(CpuDevice& device, Stream& stream, const AttendArgs& args) {
  const Cpu& cpu = device.cpu();
  double serial = 0;
  int64_t floats = 0, count = 0;
  std::vector<Item> items;  // empty on a dry stream
  for (int32_t n = 0; n < static_cast<int32_t>(args.problems.size()); ++n) {
    const AttendProblem& p = args.problems[n];
    serial += ListSeconds(cpu, p, {.element = 20, .rest = 60});
    const int64_t Nq = p.q.shape[2], rows = ListItemRows(Nq, StateFloats(p));
    const int64_t space = kListChunk * (ListStride(p.q.shape[3]) + ListStride(p.v.shape[3]));
    floats = std::max(floats, std::min(rows, Nq) * StateFloats(p) + space);
    count += Nq == 0 ? 0 : p.q.shape[0] * p.q.shape[1] * CeilDiv(Nq, rows);
    for (int64_t b = 0; !stream.is_dry() && b < p.q.shape[0]; ++b) {
      for (int64_t h = 0; h < p.q.shape[1]; ++h) {
        for (int64_t first = 0; first < Nq; first += rows) {
          items.push_back({n, b, h, first, std::min(rows, Nq - first)});
        }
      }
    }
  }
  if (count == 0) return DeviceStatus();
  // Whole pages a thread: no two threads write one cache line.
  floats = RoundUp(floats, 1024);
  auto scratch = Take(stream, floats * cpu.threads * 4);
  if (scratch == nullptr) return NoMemory(stream);
  if (Predicted(stream, Cpu::kLaunchSeconds + cpu.ParallelSeconds(serial, count))) {
    return DeviceStatus();
  }
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(AttendListed), HWY_CHOOSE_AVX2(AttendListed),
                     HWY_CHOOSE_AVX3(AttendListed));
  float* base = static_cast<float*>(scratch->data());
  cpu.ForEach(stream, count, serial, [&](int64_t n, int thread) {
    const Item& item = items[n];
    const ListHead head = ListHead::Of(args.problems[item.problem], args.params, item.b, item.h);
    run(head, item.first, item.rows, base + thread * floats);
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
