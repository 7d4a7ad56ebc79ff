// Keys become whole numbers that order like them, their ranks, with their index below: all differ,
// so any sort of them is the stable one.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/core/run_control.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/row_items.h"
#include "kernels/cpu/rows/select.h"

namespace attnd {
namespace {

// Below this share of N the first M are selected: at 1/8 that takes half of the time of sorting
// random keys, at 1/256 a twentieth (rows_bench).
constexpr int64_t kFewest = 8;
bool IsSelection(const SortArgs& args, int64_t N, int64_t M) {
  return args.by_index || M * kFewest <= N;
}

struct Row {
  const SortProblem& problem;
  const SortArgs& args;
  int64_t N, M;
  const char* keys;
  int32_t* order;
  uint64_t* scratch;  // ScratchOf

  int64_t stride() const { return problem.x.stride[problem.x.shape.rank - 1]; }
  int32_t Rank(int64_t i) const {
    const char* at = keys + i * stride() * 4;
    return problem.x.dtype == DType::kI32
               ? RankOf(*reinterpret_cast<const int32_t*>(at), args.descending)
               : RankOf(*reinterpret_cast<const float*>(at), args.descending);
  }
  static uint64_t Key(int32_t rank, int64_t i) {
    const uint32_t from_zero = static_cast<uint32_t>(rank) ^ 0x80000000u;
    return static_cast<uint64_t>(from_zero) << 32 | static_cast<uint32_t>(i);
  }
  void Store(const uint64_t* sorted) const {
    for (int64_t m = 0; m < M; ++m) order[m] = static_cast<int32_t>(sorted[m] & 0xFFFFFFFFu);
  }
};

// Of a sorted row the keys twice; of a selected one what is selected twice, and in halves of
// elements ranks and what the selection needs.
int64_t ScratchOf(const SortArgs& args, int64_t N, int64_t M) {
  if (!IsSelection(args, N, M)) return 2 * N;
  return (args.by_index ? 0 : 2 * M) + CeilDiv(N + SelectionScratch(M), 2);
}

constexpr int64_t kStretch = 1 << 14;  // keys between check points

// Calls visit(begin, end) for stretches of [0, n); false if the run was stopped.
template <class Visit>
bool EachStretch(int64_t n, const Visit& visit) {
  for (int64_t begin = 0; begin < n; begin += kStretch) {
    if (CheckPoint()) return false;
    visit(begin, std::min(begin + kStretch, n));
  }
  return true;
}

// Bytes of the key from the lowest up, each a stable counting sort; a byte that all keys share is
// passed over. Rows that are too short for 256 counters are compared.
void SortRow(const Row& row) {
  uint64_t *from = row.scratch, *to = row.scratch + row.N;
  const auto load = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) from[i] = Row::Key(row.Rank(i), i);
  };
  if (!EachStretch(row.N, load)) return;
  if (row.N < 256) {
    std::sort(from, from + row.N);
    return row.Store(from);
  }
  uint32_t counts[4][256] = {};
  const auto count = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int byte = 0; byte < 4; ++byte) ++counts[byte][from[i] >> (32 + 8 * byte) & 0xFF];
    }
  };
  if (!EachStretch(row.N, count)) return;
  for (int byte = 0; byte < 4; ++byte) {
    uint32_t* at = counts[byte];
    const int shift = 32 + 8 * byte;
    if (at[from[0] >> shift & 0xFF] == row.N) continue;
    uint32_t sum = 0;
    for (int digit = 0; digit < 256; ++digit) sum += std::exchange(at[digit], sum);
    const auto place = [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[at[from[i] >> shift & 0xFF]++] = from[i];
    };
    if (!EachStretch(row.N, place)) return;
    std::swap(from, to);
  }
  row.Store(from);
}

// Sorts n keys in place: stretches, then pairs of sorted ones until one is left. `other`: room for
// as many.
void SortKeys(uint64_t* keys, int64_t n, uint64_t* other) {
  const auto sort = [&](int64_t begin, int64_t end) { std::sort(keys + begin, keys + end); };
  if (!EachStretch(n, sort)) return;
  uint64_t *from = keys, *to = other;
  for (int64_t width = kStretch; width < n; width *= 2, std::swap(from, to)) {
    for (int64_t first = 0; first < n; first += 2 * width) {
      int64_t left = first, right = std::min(first + width, n);
      const int64_t middle = right, last = std::min(first + 2 * width, n);
      const auto merge = [&](int64_t begin, int64_t end) {
        for (int64_t i = first + begin; i < first + end; ++i) {
          const bool is_left = right == last || (left < middle && from[left] < from[right]);
          to[i] = from[is_left ? left++ : right++];
        }
      };
      if (!EachStretch(last - first, merge)) return;
    }
  }
  if (from != keys) std::copy_n(from, n, keys);
}

void SelectRow(const Row& row, Isa isa) {
  uint64_t* const first = row.scratch;
  auto* const ranks = reinterpret_cast<int32_t*>(first + (row.args.by_index ? 0 : 2 * row.M));
  const bool of_floats = row.problem.x.dtype == DType::kF32;
  const auto load = [&](int64_t begin, int64_t end) {
    if (of_floats && row.stride() == 1) {
      const auto* keys = reinterpret_cast<const float*>(row.keys);
      return RanksOf(isa, keys + begin, end - begin, row.args.descending, ranks + begin);
    }
    for (int64_t i = begin; i < end; ++i) ranks[i] = row.Rank(i);
  };
  if (!EachStretch(row.N, load)) return;
  SelectLowest(isa, {.ranks = ranks,
                     .N = row.N,
                     .M = row.M,
                     .of_floats = of_floats,
                     .order = row.order,
                     .scratch = ranks + row.N});
  if (row.args.by_index) return;
  for (int64_t m = 0; m < row.M; ++m) first[m] = Row::Key(ranks[row.order[m]], row.order[m]);
  SortKeys(first, row.M, first + row.M);
  row.Store(first);
}

int64_t RowsOf(const View& x) {
  const int64_t N = x.shape[x.shape.rank - 1];
  return N == 0 ? 0 : x.shape.size() / N;
}

const char* KeysAt(const View& x, int64_t row) {
  int64_t offset = 0;
  for (int i = x.shape.rank - 2; i >= 0; --i) {
    offset += row % x.shape[i] * x.stride[i];
    row /= x.shape[i];
  }
  return x.As<char>() + offset * 4;
}

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const SortArgs& args) {
  // Of one key, measured: rows_bench.
  constexpr double kSortSeconds = 20e-9, kSelectSeconds = 2e-9;
  constexpr int64_t kKeysPerItem = 4096;
  const Cpu& cpu = device.cpu();
  RowItems items;
  double serial = 0;
  int64_t scratch_of_thread = 0;
  for (const SortProblem& p : args.problems) {
    const int64_t N = p.x.shape[p.x.shape.rank - 1], M = p.order.shape[p.order.shape.rank - 1];
    items.Add(RowsOf(p.x), kKeysPerItem / std::max<int64_t>(N, 1));
    serial += static_cast<double>(p.x.shape.size()) *
              (IsSelection(args, N, M) ? kSelectSeconds : kSortSeconds);
    scratch_of_thread = std::max(scratch_of_thread, ScratchOf(args, N, M));
  }
  const std::shared_ptr<Buffer> scratch =
      Take(stream, cpu.threads * scratch_of_thread * static_cast<int64_t>(sizeof(uint64_t)));
  if (scratch == nullptr) return NoMemory(stream);
  if (Predicted(stream, cpu.ParallelSeconds(serial, items.count()))) return DeviceStatus();
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int thread) {
    const RowItems::Item item = items[i];
    const SortProblem& p = args.problems[item.problem];
    const int64_t N = p.x.shape[p.x.shape.rank - 1], M = p.order.shape[p.order.shape.rank - 1];
    auto* own = static_cast<uint64_t*>(scratch->data()) + thread * scratch_of_thread;
    for (int64_t r = item.begin; r < item.end; ++r) {
      const Row row = {p, args, N, M, KeysAt(p.x, r), p.order.As<int32_t>() + r * M, own};
      IsSelection(args, N, M) ? SelectRow(row, cpu.isa) : SortRow(row);
    }
  });
  return DeviceStatus();
}

}  // namespace attnd
