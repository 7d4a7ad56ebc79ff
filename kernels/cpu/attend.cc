#include "kernels/cpu/attend.h"

#include <algorithm>
#include <numbers>

#include "kernels/core/status.h"
#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attend.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attend_forward-inl.h"

#if HWY_ONCE
namespace attnd {
namespace {

// Around the items: allocating, listing, and caches that another request has filled.
constexpr double kLaunchSeconds = 7e-6;

struct Item {
  int64_t level;  // 0: the longest
  int32_t problem;
  int32_t head;  // b * H + h
  int32_t tile;  // the first of its query tiles
  auto operator<=>(const Item&) const = default;
};

// Items of `tiles` query tiles each.
int64_t CountItems(std::span<const AttendProblem> problems, int64_t tiles) {
  int64_t items = 0;
  for (const AttendProblem& p : problems) {
    items += p.q.shape[0] * p.q.shape[1] * CeilDiv(p.q.shape[2], tiles * kTile);
  }
  return items;
}

// Query tiles of an item: fewer than would be best for the caches if threads would then wait for
// one another at the end.
int64_t TilesPerItem(const Cpu& cpu, std::span<const AttendProblem> problems) {
  constexpr int64_t kItemsPerThread = 4;
  const int64_t fair = CountItems(problems, 1) / (kItemsPerThread * cpu.threads);
  return std::clamp<int64_t>(fair, 1, ItemTiles(problems[0].q.shape[3], problems[0].v.shape[3]));
}

// Seconds on one thread. Constants: tests/bench/attend.
double SerialSeconds(const Cpu& cpu, std::span<const AttendProblem> problems) {
  double flops = 0;
  for (const AttendProblem& p : problems) {
    const double width = static_cast<double>(p.q.shape[3] + p.v.shape[3]);
    for (const AttendRow& row : p.rows) {
      // Of a row's tiles the last one may be partly filled.
      const auto filled = [](int64_t n, int64_t unit) {
        return n == 0 ? 0.0
                      : static_cast<double>(CeilDiv(n, unit) * unit) /
                            static_cast<double>(CeilDiv(n, kTile) * kTile);
      };
      const double pairs =
          row.visible_tiles * kTile * kTile * filled(row.nq, 16) * filled(row.nk, 1);
      constexpr double kGemmShare = 0.92;   // of peak, in the two products
      constexpr double kSoftmaxFlops = 52;  // per pair: maximum, exponential, sum, in peak FLOPs
      constexpr double kItemFlops = 24;     // per element of q and out: transposing, storing
      flops += static_cast<double>(p.q.shape[1]) *
               (pairs * (2 * width / kGemmShare + kSoftmaxFlops) +
                kItemFlops * width * static_cast<double>(CeilDiv(p.q.shape[2], 16) * 16));
    }
  }
  constexpr double kItemSeconds = 8e-7;
  return flops / cpu.thread_flops + kItemSeconds * static_cast<double>(CountItems(problems, 1));
}

// Longest first, so that no thread ends with a long item alone. Levels are coarse: items of one
// level keep the order of heads, whose keys then stay in cache.
void ListItems(std::span<const AttendProblem> problems, int64_t tiles, Item* items) {
  constexpr int64_t kLevels = 16;
  int64_t longest = 1;
  Item* end = items;
  for (int32_t n = 0; n < static_cast<int32_t>(problems.size()); ++n) {
    const AttendProblem& p = problems[n];
    const int64_t width = p.q.shape[3] + p.v.shape[3], H = p.q.shape[1];
    for (int64_t b = 0; b < p.q.shape[0]; ++b) {
      const AttendRow& row = p.rows[b];
      const Pattern* pattern = row.pattern.get();
      for (int64_t tile = 0; tile < CeilDiv(p.q.shape[2], kTile); tile += tiles) {
        int64_t visible = 0;
        for (int64_t t = tile; t < std::min(tile + tiles, CeilDiv(row.nq, kTile)); ++t) {
          visible += CountVisible(pattern, &Pattern::by_query, t, CeilDiv(row.nk, kTile));
        }
        longest = std::max(longest, visible * width);
        for (int64_t h = 0; h < H; ++h) {
          *end++ = {visible * width, n, static_cast<int32_t>(b * H + h),
                    static_cast<int32_t>(tile)};
        }
      }
    }
  }
  for (Item* item = items; item != end; ++item) {
    item->level = kLevels - item->level * kLevels / longest;
  }
  std::sort(items, end);
}

AttendItem ItemOf(const AttendProblem& p, const Item& item, int64_t tiles, double scale) {
  const int64_t H = p.q.shape[1], group = H / p.k.shape[1];
  const int64_t b = item.head / H, h = item.head % H, first = item.tile * kTile;
  const AttendRow& row = p.rows[b];
  return {.D = p.q.shape[3],
          .Dv = p.v.shape[3],
          .q = HeadRows::Of(p.q, b, h).From(first),
          .out = HeadRows::Of(p.out, b, h).From(first),
          .lse = HeadRows::Of(p.lse, b, h).From(first),
          .k = HeadRows::Of(p.k, b, h / group),
          .v = HeadRows::Of(p.v, b, h / group),
          .queries = std::clamp<int64_t>(row.nq - first, 0, tiles * kTile),
          .rows = std::min(tiles * kTile, p.q.shape[2] - first),
          .keys = row.nk,
          .pattern = row.pattern.get(),
          .row = item.tile,
          .scale_log2e = static_cast<float>(scale * std::numbers::log2e)};
}

}  // namespace

absl::Status CpuAttend(CpuBackend& backend, Stream& stream, const AttendArgs& args) {
  const Cpu& cpu = backend.cpu();
  for (const AttendProblem& p : args.problems) {
    for (const AttendRow& row : p.rows) {
      const double pairs = row.visible_pairs * static_cast<double>(p.q.shape[1]);
      stream.work().visible_pairs += pairs;
      stream.work().flops += 2 * pairs * static_cast<double>(p.q.shape[3] + p.v.shape[3]);
    }
  }
  if (CountItems(args.problems, 1) == 0) return absl::OkStatus();
  const int64_t tiles = TilesPerItem(cpu, args.problems);
  const int64_t count = CountItems(args.problems, tiles);
  const int64_t D = args.problems[0].q.shape[3], Dv = args.problems[0].v.shape[3];
  // Whole pages a thread: no two threads write one cache line.
  const int64_t bytes = CeilDiv(AttendScratchFloats(D, Dv) * 4, 4096) * 4096;
  auto scratch = Take(stream, bytes * cpu.threads);
  if (!scratch.ok()) return scratch.status();
  auto list = Take(stream, count * static_cast<int64_t>(sizeof(Item)));
  if (!list.ok()) return list.status();
  const double serial = SerialSeconds(cpu, args.problems);
  if (stream.is_dry()) {
    stream.work().seconds += kLaunchSeconds + cpu.ParallelSeconds(serial, count);
    return absl::OkStatus();
  }
  Item* items = static_cast<Item*>((*list)->data());
  ListItems(args.problems, tiles, items);
  auto* run = Choose(cpu.isa, HWY_CHOOSE_SSE4(AttendQueries), HWY_CHOOSE_AVX2(AttendQueries),
                     HWY_CHOOSE_AVX3(AttendQueries));
  char* base = static_cast<char*>((*scratch)->data());
  cpu.pool->ParallelFor(count, cpu.Parallel(serial), [&](int64_t i, int thread) {
    const Item& item = items[i];
    run(ItemOf(args.problems[item.problem], item, tiles, args.params.scale),
        reinterpret_cast<float*>(base + thread * bytes));
  });
  return absl::OkStatus();
}

}  // namespace attnd
#endif
