#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/core/integer.h"
#include "kernels/core/status.h"
#include "kernels/cpu/attend/attend.h"
#include "kernels/cpu/attend/attend_grad_tile.h"
#include "kernels/cpu/attend/attend_work.h"
#include "kernels/cpu/cpu_device.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend/attend_grad.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attend/attend_grad_bias-inl.h"
#include "kernels/cpu/attend/attend_grad_store-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

void GradKeyShare(const AttendShare& share, float* scratch) {
  const GradScratch memory(*share.task, scratch);
  ShareOfKeys(share, memory).Run();
}
void GradBiasShare(const BiasShare& share, float* scratch) {
  const GradScratch memory(*share.task, scratch);
  ShareOfBias(share, memory).Run();
}
GradKernels KernelsOfGrad() { return {GradKeyShare, GradBiasShare, SumPlane}; }

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

struct Item {
  double work = 0;  // query tiles times heads times width
  int32_t problem = 0;
  int32_t share = 0;  // kBias: of dbias
  int32_t b = 0, head = 0;
  int32_t q_begin = 0, q_end = 0, k_begin = 0, k_end = 0;  // of dbias, in tiles
  static constexpr int32_t kBias = -1;
};

// What a list of problems needs, from shapes alone.
struct Needs {
  int64_t items = 0, counters = 0;  // counters: one a kv head, one a problem
  int64_t floats = 0, touched = 0;  // of partial sums
  int64_t scratch = 0;              // floats a thread
};

bool HasShares(const GradTask& p) {
  return p.wants_dk || p.wants_dv || p.stores_bias ||
         std::any_of(p.sums.begin(), p.sums.end(), [](const GradSum& s) { return s.rows > 0; });
}

// Items of dbias, in tiles.
struct BiasCuts {
  int64_t q_tiles, k_tiles, q_step, k_step;

  static bool IsApart(const GradTask& p) { return p.wants_bias && !p.stores_bias; }
  static BiasCuts Of(const GradTask& p) {
    const Shape& s = p.problem->dterms.bias.shape;
    // The gradient of a bias that repeats is written, as zeros, even where there are no pairs.
    const int64_t q_tiles = std::max<int64_t>(CeilDiv(p.Nq, kTile), 1);
    const int64_t k_tiles = std::max<int64_t>(CeilDiv(p.Nk, kTile), 1);
    const bool by_rows = !p.gathers && s[2] > 1, by_columns = !p.gathers && !by_rows && s[3] > 1;
    constexpr int64_t kTiles = 4;
    return {q_tiles, k_tiles, by_rows ? kTiles : q_tiles, by_columns ? kTiles : k_tiles};
  }
  static int64_t Count(const GradTask& p) {
    if (!IsApart(p)) return 0;
    const Shape& s = p.problem->dterms.bias.shape;
    const BiasCuts cuts = Of(p);
    return s[0] * s[1] * CeilDiv(cuts.q_tiles, cuts.q_step) * CeilDiv(cuts.k_tiles, cuts.k_step);
  }
};

// Tiles of queries of an item of dbias: a stretch of rows of a plane, of columns where all rows are
// one, or a plane where rows come in orders of their own.
template <class F>
void EachBiasItem(const GradTask& p, const F& add) {
  if (!BiasCuts::IsApart(p)) return;
  const Shape& s = p.problem->dterms.bias.shape;
  const auto [q_tiles, k_tiles, q_step, k_step] = BiasCuts::Of(p);
  for (int64_t plane = 0; plane < s[0] * s[1]; ++plane) {
    for (int64_t q = 0; q < q_tiles; q += q_step) {
      for (int64_t k = 0; k < k_tiles; k += k_step) {
        Item item = {.share = Item::kBias,
                     .b = static_cast<int32_t>(plane / s[1]),
                     .head = static_cast<int32_t>(plane % s[1])};
        item.q_begin = static_cast<int32_t>(q);
        item.q_end = static_cast<int32_t>(std::min(q + q_step, q_tiles));
        item.k_begin = static_cast<int32_t>(k);
        item.k_end = static_cast<int32_t>(std::min(k + k_step, k_tiles));
        add(item);
      }
    }
  }
}

Needs Count(std::vector<GradTask>* tasks) {
  Needs needs;
  for (GradTask& p : *tasks) {
    needs.items += BiasCuts::Count(p);
    if (HasShares(p)) needs.items += p.B * p.Hkv * p.shares;
    needs.counters += p.B * p.Hkv + 1;
    for (GradSum& s : p.sums) {
      const int64_t rows = p.B * s.heads * p.shares * s.rows;
      s.first = needs.floats;
      s.first_touched = needs.touched;
      needs.floats += rows * s.stride();
      needs.touched += rows;
      needs.scratch = std::max(needs.scratch, s.stride());
    }
    needs.scratch = std::max(needs.scratch, GradScratch(p, nullptr).floats);
  }
  return needs;
}

double ShareWork(const GradTask& p, int64_t b, int64_t share) {
  const AttendSeq& seq = p.Seq(b);
  const int64_t different = seq.head_patterns.empty() ? 1 : p.H;
  double work = 0;
  for (int64_t h = 0; h < different; ++h) {
    const Pattern* pattern = seq.Of(h);
    const int64_t slots = p.gathers && pattern != nullptr ? pattern->Nk : seq.nk;
    const KeyShares shares = p.Shares(CeilDiv(slots, kTile));
    for (int64_t tile = 0; tile < shares.tiles; ++tile) {
      if (shares.ShareOf(tile) != share) continue;
      if (CheckPoint()) return 0;
      work += static_cast<double>(
          CountVisible(pattern, &Pattern::by_key, tile, CeilDiv(seq.nq, kTile)));
    }
  }
  return work / static_cast<double>(different) * static_cast<double>(p.group * (p.D + p.Dv));
}

// Longest first; items of the same work in the order of heads.
void ListItems(const std::vector<GradTask>& tasks, Item* items) {
  Item* end = items;
  for (size_t n = 0; n < tasks.size(); ++n) {
    const GradTask& p = tasks[n];
    EachBiasItem(p, [&](Item item) {
      item.work = static_cast<double>((item.q_end - item.q_begin) * (item.k_end - item.k_begin) *
                                      (p.D + p.Dv));
      item.problem = static_cast<int32_t>(n);
      *end++ = item;
    });
    for (int64_t b = 0; HasShares(p) && b < p.B; ++b) {
      for (int64_t share = 0; share < p.shares; ++share) {
        const double work = ShareWork(p, b, share);
        for (int64_t head = 0; head < p.Hkv; ++head) {
          *end++ = {.work = work,
                    .problem = static_cast<int32_t>(n),
                    .share = static_cast<int32_t>(share),
                    .b = static_cast<int32_t>(b),
                    .head = static_cast<int32_t>(head)};
        }
      }
    }
  }
  const auto place = [](const Item& i) {
    return std::tuple(-i.work, i.problem, i.b, i.head, i.share, i.q_begin, i.k_begin);
  };
  std::sort(items, end, [&](const Item& x, const Item& y) { return place(x) < place(y); });
}

// Seconds on one thread. Constants: tests/bench/attend_grad_bench.
double SerialSeconds(const Cpu& cpu, const std::vector<GradTask>& tasks, const Needs& needs) {
  double flops = 0, mask_seconds = 0;
  for (const GradTask& p : tasks) {
    const double D = static_cast<double>(p.D), Dv = static_cast<double>(p.Dv);
    const AttendTerms& terms = p.problem->forward.terms;
    const bool has_terms = !p.softmax() || p.params.softcap != 0 || terms.bias.given() ||
                           terms.alibi_slopes.given() || terms.table.given() ||
                           (terms.r.given() && p.gathers);
    constexpr double kGemmShare = 0.88;  // of peak, in the five products
    constexpr double kWeighFlops = 70;   // per pair: exponential, dS, in peak FLOPs
    constexpr double kTermFlops = 250;   // more where there are terms
    constexpr double kPackFlops = 1;     // per pair and 64 columns: packing Q and dO
    constexpr double kRowFlops = 64;     // per element of dq and share: zeroing and adding
    // 6 in diagonals, the rest where a row of tiles begins and ends.
    const double relative = !terms.r.given() ? 0 : p.gathers ? 12 * D : 7 * D;
    const double columns =
        6 * D + 4 * Dv + relative + (BiasCuts::IsApart(p) ? 2 * (D + Dv) + relative / 3 : 0);
    const double pair = columns / kGemmShare + kWeighFlops * (BiasCuts::IsApart(p) ? 2 : 1) +
                        (has_terms ? kTermFlops : 0) + kPackFlops * (D + Dv) / 64;
    for (const AttendSeq& seq : p.problem->forward.seqs) {
      const double filled =
          seq.nq == 0 ? 0.0
                      : static_cast<double>(seq.nq) / static_cast<double>(RoundUp(seq.nq, kTile));
      mask_seconds += seq.mask_seconds * static_cast<double>(p.H * seq.count);
      flops += static_cast<double>(p.H * seq.count) *
               (seq.visible_tiles * kTile * kTile * filled * pair +
                kRowFlops * (D + Dv) * static_cast<double>(p.Nq));
    }
  }
  constexpr double kItemSeconds = 2e-6;
  return flops / cpu.thread_flops + mask_seconds + kItemSeconds * static_cast<double>(needs.items);
}

// Whether every sequence whose pattern gathers says so: memory for the sums of gathered rows is
// allocated by what the sequences say.
bool DeclaresGathering(const GradTask& p) {
  if (p.gathers) return true;
  const auto& seqs = p.problem->forward.seqs;
  return std::all_of(seqs.begin(), seqs.end(), [&](const AttendSeq& seq) {
    const int64_t different = seq.head_patterns.empty() ? 1 : p.H;
    for (int64_t h = 0; h < different; ++h) {
      const Pattern* pattern = seq.Of(h);
      if (pattern != nullptr && !(pattern->query_rows.empty() && pattern->key_rows.empty())) {
        return false;
      }
    }
    return true;
  });
}

// Runs the items of one launch.
class ItemRunner {
 public:
  ItemRunner(const Cpu& cpu, const std::vector<GradTask>& tasks, int32_t* counters)
      : kernels_(Choose(cpu.isa, HWY_CHOOSE_SSE4(KernelsOfGrad), HWY_CHOOSE_AVX2(KernelsOfGrad),
                        HWY_CHOOSE_AVX3(KernelsOfGrad))()),
        tasks_(tasks),
        counters_(counters) {
    int64_t first = 0;
    for (const GradTask& p : tasks) {
      first_counter_.push_back(first);
      first += p.B * p.Hkv + 1;
    }
    std::fill_n(counters, first, 0);
  }

  void Run(const Item& item, float* scratch) const {
    const GradTask& p = tasks_[item.problem];
    if (item.share == Item::kBias) {
      kernels_.bias({&p, item.b, item.head, item.q_begin, item.q_end, item.k_begin, item.k_end},
                    scratch);
      return;
    }
    kernels_.keys({&p, item.b, item.head, item.share}, scratch);
    int32_t* counters = counters_ + first_counter_[item.problem];
    if (Finish(&counters[item.b * p.Hkv + item.head]) < p.shares) return;
    for (int kind = 0; kind < GradSum::kKinds; ++kind) {
      const bool is_keys = kind == GradSum::kDk || kind == GradSum::kDv;
      if (p.sums[kind].IsWhole(p.B) || (is_keys && p.stores_keys[item.b])) continue;
      const int64_t heads = p.sums[kind].heads / p.Hkv;
      for (int64_t h = item.head * heads; h < (item.head + 1) * heads; ++h) {
        Sum(p, GradSum::Kind(kind), item.b, h, scratch);
      }
    }
    if (Finish(&counters[p.B * p.Hkv]) < p.B * p.Hkv) return;
    for (int kind = 0; kind < GradSum::kKinds; ++kind) {
      if (!p.sums[kind].IsWhole(p.B)) continue;
      for (int64_t b = 0; b < p.B; ++b) {
        for (int64_t h = 0; h < p.sums[kind].heads; ++h) Sum(p, GradSum::Kind(kind), b, h, scratch);
      }
    }
  }

 private:
  // Counts one more as finished and returns the count. Releases the caller's sums; the last caller
  // acquires all.
  static int32_t Finish(int32_t* counter) {
    return std::atomic_ref<int32_t>(*counter).fetch_add(1, std::memory_order_acq_rel) + 1;
  }
  void Sum(const GradTask& p, GradSum::Kind kind, int64_t b, int64_t h, float* scratch) const {
    const GradSum& s = p.sums[kind];
    const auto plane = [&](const View& out, int64_t first, int64_t count) {
      if (!out.given() || b >= out.shape[0] || h >= out.shape[1]) return;
      kernels_.sum(p, {kind, out, first, count, b, h}, scratch);
    };
    plane(s.out, 0, s.rows - s.tail_rows);
    plane(s.tail, s.rows - s.tail_rows, s.tail_rows);
  }

  const GradKernels kernels_;
  const std::vector<GradTask>& tasks_;
  int32_t* const counters_;
  std::vector<int64_t> first_counter_;
};

}  // namespace

DeviceStatus CpuAttendGrad(CpuDevice& device, Stream& stream, const AttendGradArgs& args) {
  const Cpu& cpu = device.cpu();
  std::vector<GradTask> tasks;
  for (const AttendGradProblem& p : args.problems) {
    tasks.push_back(TaskOf(p, args.params, stream.is_dry()));
    if (!DeclaresGathering(tasks.back())) {
      return {DeviceStatus::Code::kFailed,
              "attend: a row with a gather order must say that it gathers"};
    }
  }
  const Needs needs = Count(&tasks);
  if (needs.items == 0) return DeviceStatus();
  const int64_t bytes = RoundUp(needs.scratch * 4, 4096);
  auto scratch = Take(stream, bytes * cpu.threads);
  auto list = Take(stream, needs.items * static_cast<int64_t>(sizeof(Item)));
  auto counters = Take(stream, needs.counters * static_cast<int64_t>(sizeof(int32_t)));
  auto sums = Take(stream, needs.floats * 4);
  auto touched = Take(stream, needs.touched);
  for (const auto* taken : {&scratch, &list, &counters, &sums, &touched}) {
    if (*taken == nullptr) return NoMemory(stream);
  }
  const double serial = SerialSeconds(cpu, tasks, needs);
  if (Predicted(stream, Cpu::kLaunchSeconds + cpu.ParallelSeconds(serial, needs.items))) {
    return DeviceStatus();
  }
  for (GradTask& p : tasks) {
    p.floats = static_cast<float*>(sums->data());
    p.touched = static_cast<uint8_t*>(touched->data());
    FindStoredKeys(&p);
  }
  Item* items = static_cast<Item*>(list->data());
  ListItems(tasks, items);
  const ItemRunner runner(cpu, tasks, static_cast<int32_t*>(counters->data()));
  cpu.ForEach(stream, needs.items, serial, [&](int64_t i, int thread) {
    char* space = static_cast<char*>(scratch->data()) + thread * bytes;
    runner.Run(items[i], reinterpret_cast<float*>(space));
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
