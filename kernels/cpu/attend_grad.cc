#include <algorithm>
#include <atomic>

#include "kernels/core/status.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend_grad.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attend_backward-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

void AttendKeys(const AttendShare& share, float* scratch) { ShareOfKeys(share, scratch).Run(); }
void AttendSum(const AttendShare& share, int64_t shares, float* scratch) {
  SumShares(share, shares, scratch);
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

// Around the items: allocating, listing, and caches that another request has filled.
constexpr double kLaunchSeconds = 7e-6;

struct Item {
  double work = 0;  // query tiles times heads times width
  int32_t problem = 0, b = 0, kv_head = 0, share = 0;
  int64_t kv = 0;       // number of (problem, b, kv head)
  int64_t dq_sums = 0;  // of the kv head's first share, in floats
  int64_t touched = 0;  // likewise
};

// What a list of problems needs, from shapes alone.
struct Needs {
  int64_t items = 0, kv_heads = 0;
  int64_t dq_floats = 0, touched = 0;
  int64_t row_terms = 0;  // floats of scratch a thread
};

struct Sizes {
  int64_t B, Hkv, group, Nq, D, Dv, q_tiles, shares;
  explicit Sizes(const AttendGradProblem& p)
      : B(p.forward.q.shape[0]),
        Hkv(p.forward.k.shape[1]),
        group(p.forward.q.shape[1] / p.forward.k.shape[1]),
        Nq(p.forward.q.shape[2]),
        D(p.forward.q.shape[3]),
        Dv(p.forward.v.shape[3]),
        q_tiles(CeilDiv(Nq, kTile)),
        shares(KeyShares(p.forward.k.shape[2]).shares) {}
  int64_t dq_floats() const { return group * Nq * GradStride(D); }  // of a share
  int64_t touched() const { return group * q_tiles; }
};

// A gradient is wanted in a dry run if it has a shape: data is null there.
bool Wants(const View& gradient, bool dry) {
  return dry ? gradient.given() : gradient.data != nullptr;
}

// Whether a problem has any element to write.
bool Writes(const AttendGradProblem& p, bool dry) {
  return (p.forward.q.shape[2] > 0 && Wants(p.dq, dry)) ||
         (p.forward.k.shape[2] > 0 && (Wants(p.dk, dry) || Wants(p.dv, dry)));
}

Needs Count(std::span<const AttendGradProblem> problems, bool dry) {
  Needs needs;
  for (const AttendGradProblem& p : problems) {
    if (!Writes(p, dry)) continue;
    const Sizes s(p);
    const int64_t kv = s.B * s.Hkv;
    needs.items += kv * s.shares;
    needs.kv_heads += kv;
    if (Wants(p.dq, dry)) {
      needs.dq_floats += kv * s.shares * s.dq_floats();
      needs.touched += kv * s.shares * s.touched();
    }
    needs.row_terms = std::max(needs.row_terms, 3 * s.group * s.Nq);
  }
  return needs;
}

double ShareWork(const AttendGradProblem& p, int64_t b, int64_t share) {
  const AttendRow& row = p.forward.rows[b];
  const Pattern* pattern = row.pattern.get();
  const KeyShares shares(p.forward.k.shape[2]);
  double work = 0;
  for (int64_t tile = 0; tile < CeilDiv(row.nk, kTile); ++tile) {
    if (shares.ShareOf(tile) != share) continue;
    work +=
        static_cast<double>(CountVisible(pattern, &Pattern::by_key, tile, CeilDiv(row.nq, kTile)));
  }
  const Sizes s(p);
  return work * static_cast<double>(s.group * (s.D + s.Dv));
}

void ListItems(std::span<const AttendGradProblem> problems, Item* items) {
  Item* end = items;
  int64_t kv = 0, dq_sums = 0, touched = 0;
  for (int32_t n = 0; n < static_cast<int32_t>(problems.size()); ++n) {
    if (!Writes(problems[n], /*dry=*/false)) continue;
    const Sizes s(problems[n]);
    const bool wants_dq = Wants(problems[n].dq, /*dry=*/false);
    for (int32_t b = 0; b < s.B; ++b) {
      double work[4];
      for (int64_t share = 0; share < s.shares; ++share) {
        work[share] = ShareWork(problems[n], b, share);
      }
      for (int32_t head = 0; head < s.Hkv; ++head, ++kv) {
        for (int32_t share = 0; share < s.shares; ++share) {
          *end++ = {work[share], n, b, head, share, kv, dq_sums, touched};
        }
        if (!wants_dq) continue;
        dq_sums += s.shares * s.dq_floats();
        touched += s.shares * s.touched();
      }
    }
  }
  std::sort(items, end, [](const Item& x, const Item& y) {
    return x.work != y.work ? x.work > y.work : std::pair(x.kv, x.share) < std::pair(y.kv, y.share);
  });
}

// Seconds on one thread. Constants: tests/bench/attend.
double SerialSeconds(const Cpu& cpu, std::span<const AttendGradProblem> problems) {
  double flops = 0;
  for (const AttendGradProblem& p : problems) {
    const Sizes s(p);
    for (const AttendRow& row : p.forward.rows) {
      const auto filled = [](int64_t n) {
        return n == 0 ? 0.0
                      : static_cast<double>(n) / static_cast<double>(CeilDiv(n, kTile) * kTile);
      };
      const double D = static_cast<double>(s.D), Dv = static_cast<double>(s.Dv);
      const double pairs = row.visible_tiles * kTile * kTile * filled(row.nq);
      constexpr double kGemmShare = 0.80;  // of peak, in the five products
      constexpr double kWeighFlops = 80;   // per pair: exponential, dS, in peak FLOPs
      constexpr double kPackFlops = 3;     // per pair and 64 columns: packing Q and dO
      constexpr double kRowFlops = 64;     // per element of dq and share: zeroing and adding
      const double heads = static_cast<double>(s.Hkv * s.group);
      flops += heads *
               (pairs * ((6 * D + 4 * Dv) / kGemmShare + kWeighFlops + kPackFlops * (D + Dv) / 64) +
                kRowFlops * (D + Dv) * static_cast<double>(s.Nq));
    }
  }
  constexpr double kItemSeconds = 2e-6;
  return flops / cpu.thread_flops +
         kItemSeconds * static_cast<double>(Count(problems, /*dry=*/true).items);
}

void AddWork(std::span<const AttendGradProblem> problems, Work* work) {
  for (const AttendGradProblem& p : problems) {
    const Sizes s(p);
    for (const AttendRow& row : p.forward.rows) {
      const double pairs = row.visible_pairs * static_cast<double>(s.Hkv * s.group);
      work->visible_pairs += pairs;
      work->flops += 2.5 * 2 * pairs * static_cast<double>(s.D + s.Dv);
    }
  }
}

}  // namespace

absl::Status CpuAttendGrad(CpuBackend& backend, Stream& stream, const AttendGradArgs& args) {
  const Cpu& cpu = backend.cpu();
  AddWork(args.problems, &stream.work());
  const Needs needs = Count(args.problems, stream.is_dry());
  if (needs.items == 0) return absl::OkStatus();
  const Sizes sizes(args.problems[0]);
  const int64_t floats = AttendGradScratchFloats(sizes.D, sizes.Dv) + needs.row_terms;
  const int64_t bytes = CeilDiv(floats * 4, 4096) * 4096;
  auto scratch = Take(stream, bytes * cpu.threads);
  auto list = Take(stream, needs.items * static_cast<int64_t>(sizeof(Item)));
  auto finished = Take(stream, needs.kv_heads * static_cast<int64_t>(sizeof(int32_t)));
  auto sums = Take(stream, needs.dq_floats * 4);
  auto touched = Take(stream, needs.touched);
  for (const auto* taken : {&scratch, &list, &finished, &sums, &touched}) {
    if (!taken->ok()) return taken->status();
  }
  const double serial = SerialSeconds(cpu, args.problems);
  if (stream.is_dry()) {
    stream.work().seconds += kLaunchSeconds + cpu.ParallelSeconds(serial, needs.items);
    return absl::OkStatus();
  }
  Item* items = static_cast<Item*>((*list)->data());
  ListItems(args.problems, items);
  int32_t* done = static_cast<int32_t*>((*finished)->data());
  std::fill_n(done, needs.kv_heads, 0);
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(AttendKeys), HWY_CHOOSE_AVX2(AttendKeys),
                     HWY_CHOOSE_AVX3(AttendKeys));
  auto* add = Choose(cpu.isa, HWY_CHOOSE_SSE4(AttendSum), HWY_CHOOSE_AVX2(AttendSum),
                     HWY_CHOOSE_AVX3(AttendSum));
  cpu.pool->ParallelFor(needs.items, cpu.Parallel(serial), [&](int64_t i, int thread) {
    const Item& item = items[i];
    const AttendGradProblem& p = args.problems[item.problem];
    const Sizes s(p);
    float* space =
        reinterpret_cast<float*>(static_cast<char*>((*scratch)->data()) + thread * bytes);
    AttendShare share = {&p, args.params.scale, item.b, item.kv_head, item.share, {}};
    PartialGrad first;
    if (p.dq.data != nullptr) {
      first = {static_cast<float*>((*sums)->data()) + item.dq_sums,
               static_cast<uint8_t*>((*touched)->data()) + item.touched};
      share.dq = {first.sums + item.share * s.dq_floats(),
                  first.touched + item.share * s.touched()};
    }
    run(share, space);
    if (p.dq.data == nullptr) return;
    // The release of each share's sums, acquired by the last.
    const int32_t before =
        std::atomic_ref<int32_t>(done[item.kv]).fetch_add(1, std::memory_order_acq_rel);
    if (before + 1 == s.shares) {
      share.dq = first;
      add(share, s.shares, space);
    }
  });
  return absl::OkStatus();
}

}  // namespace attnd
#endif
