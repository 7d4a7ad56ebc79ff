#include <cstring>
#include <span>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/core/status.h"
#include "kernels/cpu/attend/attend_grad_tile.h"
#include "kernels/cpu/attend/attend_list.h"
#include "kernels/cpu/attend/attend_work.h"
#include "kernels/cpu/cpu_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend/attend_list_grad.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_list_grad-inl.h"

#if HWY_ONCE
namespace attnd {
namespace {

struct Item {
  enum class Kind : uint8_t { kQueries, kKeys, kBias };
  Kind kind = Kind::kQueries;
  int32_t problem = 0;
  int64_t b = 0, h = 0;  // kKeys: kv head; kBias: of dbias
  int64_t first = 0, rows = 0;
};

// Items and memory of a list of problems.
class ListGradWork {
 public:
  ListGradWork(const AttendGradArgs& args, bool dry) : args_(args) {
    for (int32_t n = 0; n < static_cast<int32_t>(args.problems.size()); ++n) List(n, dry);
  }

  // Those of queries come first. Empty on a dry stream, where items are only counted.
  const std::vector<Item>& items() const { return items_; }
  int64_t count() const { return count_; }
  int64_t query_items() const { return query_items_; }
  int64_t floats() const { return floats_; }          // scratch of a thread
  int64_t row_floats() const { return row_floats_; }  // of row terms

  ListGradHead Head(int32_t problem, int64_t b, int64_t h, float* row_terms) const;
  // The sums of query items to the gradients of slopes and sinks, in their order.
  void Store(const std::vector<ListHeadSums>& sums, View AttendTermGrads::*gradient,
             double ListHeadSums::*sum) const;

 private:
  void List(int32_t n, bool dry);

  const AttendGradArgs& args_;
  std::vector<Item> items_;
  std::vector<int64_t> first_row_;  // of each problem
  int64_t query_items_ = 0, count_ = 0, floats_ = 0, row_floats_ = 0;
};

void ListGradWork::List(int32_t n, bool dry) {
  const AttendGradProblem& grad = args_.problems[n];
  const AttendProblem& p = grad.forward;
  const int64_t B = p.q.shape[0], H = p.q.shape[1], Nq = p.q.shape[2];
  const int64_t D = p.q.shape[3], Dv = p.v.shape[3];
  first_row_.push_back(row_floats_);
  row_floats_ += 3 * B * H * Nq;
  std::vector<Item> queries;
  const auto stretches = [&](Item item, int64_t length, std::vector<Item>* list) {
    const int64_t rows = ListItemRows(length, 2 * (ListStride(D) + ListStride(Dv)));
    floats_ = std::max(floats_, ListGradFloats(D, Dv, std::min(rows, length)));
    if (dry) return;
    for (item.first = 0; item.first < length; item.first += rows) {
      item.rows = std::min(rows, length - item.first);
      list->push_back(item);
    }
  };
  const bool keys = Wants(grad.dk, dry) || Wants(grad.dv, dry);
  const auto items = [&](int64_t heads, int64_t length) {
    const int64_t rows = ListItemRows(length, 2 * (ListStride(D) + ListStride(Dv)));
    return B * heads * CeilDiv(length, rows);
  };
  const Shape& s = grad.dterms.bias.shape;
  const bool bias = Wants(grad.dterms.bias, dry);
  count_ +=
      items(H, Nq) + (keys ? items(p.k.shape[1], p.k.shape[2]) : 0) + (bias ? s[0] * s[1] : 0);
  // On a dry stream one head is enough to know the scratch of all.
  for (int64_t b = 0; b < (dry ? std::min<int64_t>(B, 1) : B); ++b) {
    for (int64_t h = 0; h < (dry ? std::min<int64_t>(H, 1) : H); ++h) {
      stretches({Item::Kind::kQueries, n, b, h}, Nq, &queries);
    }
    for (int64_t h = 0; keys && h < (dry ? 1 : p.k.shape[1]); ++h) {
      stretches({Item::Kind::kKeys, n, b, h}, p.k.shape[2], &items_);
    }
  }
  items_.insert(items_.begin() + query_items_, queries.begin(), queries.end());
  query_items_ += static_cast<int64_t>(queries.size());
  if (!bias) return;
  floats_ = std::max(floats_, ListGradFloats(D, Dv, 1));
  for (int64_t b = 0; !dry && b < s[0]; ++b) {
    for (int64_t h = 0; h < s[1]; ++h) items_.push_back({Item::Kind::kBias, n, b, h});
  }
}

ListGradHead ListGradWork::Head(int32_t problem, int64_t b, int64_t h, float* row_terms) const {
  const AttendGradProblem& grad = args_.problems[problem];
  const AttendProblem& p = grad.forward;
  const int64_t H = p.q.shape[1], kv = h / (H / p.k.shape[1]), Nq = p.q.shape[2];
  const auto rows = [&](const View& view, int64_t head) {
    return view.given() ? HeadRows::Of(view, b, head) : HeadRows();
  };
  ListGradHead made{.head = ListHead::Of(p, args_.params, b, h),
                    .dq = rows(grad.dq, h),
                    .dk = rows(grad.dk, kv),
                    .dv = rows(grad.dv, kv)};
  made.head.dout = rows(grad.dout, h);
  made.head.dlse = rows(grad.dlse, h);
  float* own = row_terms + first_row_[problem] + 3 * (b * H + h) * Nq;
  made.rows = {own, own + Nq, own + 2 * Nq};
  return made;
}

void ListGradWork::Store(const std::vector<ListHeadSums>& sums, View AttendTermGrads::*gradient,
                         double ListHeadSums::*sum) const {
  std::vector<std::vector<double>> totals;
  for (const AttendGradProblem& p : args_.problems) {
    const View& view = p.dterms.*gradient;
    totals.emplace_back(Wants(view, /*dry=*/false) ? view.shape.size() : 0);
  }
  const auto place = [&](const Item& item) {
    const View& view = args_.problems[item.problem].dterms.*gradient;
    return (view.shape[0] == 1 ? 0 : item.b) * view.shape[1] + (view.shape[1] == 1 ? 0 : item.h);
  };
  for (int64_t n = 0; n < query_items_; ++n) {
    std::vector<double>& total = totals[items_[n].problem];
    if (!total.empty()) total[place(items_[n])] += sums[n].*sum;
  }
  for (size_t n = 0; n < totals.size(); ++n) {
    const View& view = args_.problems[n].dterms.*gradient;
    for (size_t at = 0; at < totals[n].size(); ++at) {
      const auto index = static_cast<int64_t>(at), H = view.shape[1];
      view.As<float>()[index / H * view.stride[0] + index % H * view.stride[1]] =
          static_cast<float>(totals[n][at]);
    }
  }
}

// Runs the items of one launch.
class ItemRunner {
 public:
  ItemRunner(const Cpu& cpu, const AttendGradArgs& args, const ListGradWork& work, float* row_terms)
      : kernels_(Choose(cpu.isa, HWY_CHOOSE_SSE4(KernelsOfListGrad),
                        HWY_CHOOSE_AVX2(KernelsOfListGrad), HWY_CHOOSE_AVX3(KernelsOfListGrad))()),
        args_(args),
        work_(work),
        row_terms_(row_terms) {}

  void Terms(const Item& item, float* scratch, ListHeadSums* sums) const {
    kernels_.terms(HeadOf(item, item.b, item.h), item.first, item.rows, scratch, sums);
  }
  void Run(const Item& item, float* scratch, ListHeadSums* sums) const {
    switch (item.kind) {
      case Item::Kind::kQueries:
        return kernels_.queries(HeadOf(item, item.b, item.h), item.first, item.rows, scratch, sums);
      case Item::Kind::kKeys:
        return Keys(item, scratch);
      case Item::Kind::kBias:
        return Bias(item, scratch);
    }
  }

 private:
  ListGradHead HeadOf(const Item& item, int64_t b, int64_t h) const {
    return work_.Head(item.problem, b, h, row_terms_);
  }
  void Keys(const Item& item, float* scratch) const {
    const AttendProblem& p = args_.problems[item.problem].forward;
    const int64_t size = p.q.shape[1] / p.k.shape[1];
    std::vector<ListGradHead> group;
    for (int64_t h = item.h * size; h < (item.h + 1) * size; ++h) {
      group.push_back(HeadOf(item, item.b, h));
    }
    kernels_.keys(group, item.first, item.rows, scratch);
  }
  // One plane, the sum over all heads that share it.
  void Bias(const Item& item, float* scratch) const {
    const AttendGradProblem& grad = args_.problems[item.problem];
    const View& out = grad.dterms.bias;
    HeadRows plane = HeadRows::Of(out, item.b, item.h);
    const int64_t size = SizeOf(out.dtype);
    for (int64_t i = 0; i < out.shape[2]; ++i) {
      std::memset(plane.Row(i), 0, out.shape[3] * size);
    }
    if (out.shape[2] == 1) plane.stride = 0;
    const int64_t b_end = out.shape[0] == 1 ? grad.forward.q.shape[0] : item.b + 1;
    const int64_t h_end = out.shape[1] == 1 ? grad.forward.q.shape[1] : item.h + 1;
    for (int64_t b = item.b; b < b_end; ++b) {
      for (int64_t h = item.h; h < h_end; ++h) {
        kernels_.bias(HeadOf(item, b, h), plane, out.shape[3] == 1 ? 0 : size, scratch);
      }
    }
  }

  const ListGradKernels kernels_;
  const AttendGradArgs& args_;
  const ListGradWork& work_;
  float* const row_terms_;
};

}  // namespace

DeviceStatus CpuAttendListsGrad(CpuDevice& device, Stream& stream, const AttendGradArgs& args) {
  const Cpu& cpu = device.cpu();
  const ListGradWork work(args, stream.is_dry());
  double serial = 0;
  for (const AttendGradProblem& p : args.problems) {
    serial += ListSeconds(cpu, p.forward, {.element = 60, .rest = 200});
  }
  const std::vector<Item>& items = work.items();
  const int64_t count = work.count();
  std::vector<ListHeadSums> sums(work.query_items());
  // With no pairs, zeros must still be written.
  const auto store = [&] {
    work.Store(sums, &AttendTermGrads::alibi_slopes, &ListHeadSums::slope);
    work.Store(sums, &AttendTermGrads::sinks, &ListHeadSums::sink);
  };
  if (count == 0) {
    if (!stream.is_dry()) store();
    return DeviceStatus();
  }
  // Whole pages a thread: no two threads write one cache line.
  const int64_t floats = RoundUp(work.floats(), 1024);
  auto scratch = Take(stream, floats * cpu.threads * 4);
  auto row_terms = Take(stream, work.row_floats() * 4);
  for (const auto* taken : {&scratch, &row_terms}) {
    if (*taken == nullptr) return NoMemory(stream);
  }
  // Queries are listed, then keys.
  if (Predicted(stream, 2 * Cpu::kLaunchSeconds + cpu.ParallelSeconds(serial, count))) {
    return DeviceStatus();
  }
  const ItemRunner runner(cpu, args, work, static_cast<float*>(row_terms->data()));
  float* base = static_cast<float*>(scratch->data());
  cpu.ForEach(stream, work.query_items(), serial, [&](int64_t n, int thread) {
    runner.Terms(items[n], base + thread * floats, &sums[n]);
  });
  cpu.ForEach(stream, count, serial, [&](int64_t n, int thread) {
    runner.Run(items[n], base + thread * floats, n < work.query_items() ? &sums[n] : nullptr);
  });
  store();
  return DeviceStatus();
}

}  // namespace attnd
#endif
