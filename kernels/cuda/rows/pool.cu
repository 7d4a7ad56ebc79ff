#include "kernels/cuda/rows/pool.cuh"

#include <algorithm>
#include <utility>

#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

using Items = std::vector<PoolItem>;

int64_t LongestOf(const Items& items) {
  int64_t rows = 0;
  for (const PoolItem& item : items) rows = std::max(rows, item.end - item.begin);
  return rows;
}

// What each launch reduces: the last one the ranges themselves, over the rows that those before it
// wrote.
std::vector<Items> LevelsOf(PoolOp op, const std::vector<RowRange>& ranges) {
  std::vector<Items> levels;
  Items items;
  for (size_t m = 0; m < ranges.size(); ++m) {
    const auto [begin, end] = ranges[m];
    items.push_back({begin, end, op == PoolOp::kMean ? end - begin : static_cast<int64_t>(m)});
  }
  while (LongestOf(items) > kPoolRows) {
    Items& parts = levels.emplace_back();
    for (PoolItem& item : items) {
      const auto first = static_cast<int64_t>(parts.size());
      for (int64_t n = item.begin; n < item.end; n += kPoolRows) {
        parts.push_back({n, std::min(n + kPoolRows, item.end), item.number});
      }
      item.begin = first;
      item.end = static_cast<int64_t>(parts.size());
    }
  }
  levels.push_back(std::move(items));
  return levels;
}

// A problem on its way through the launches.
struct Pooled {
  PoolProblem views;
  std::vector<Items> levels;
  int64_t outer, D;
  // Of the last launch, if there is a later one.
  View rows;
  PoolPlaces places = {};
  std::shared_ptr<Buffer> memory;
};

// Takes the memory that launch `level` of a problem writes where it is not the last; `*before` is
// kept until the launch has been made.
DeviceStatus PrepareLevel(Stream& stream, PoolOp op, size_t level, Pooled* p, PoolOver* over,
                          std::shared_ptr<Buffer>* before) {
  const Items& items = p->levels[level];
  const bool is_first = level == 0, is_last = level + 1 == p->levels.size();
  const int planes = op == PoolOp::kMax ? 3 : 1;
  over->x = is_first ? p->views.x : p->rows;
  over->from = p->places;
  over->count = static_cast<int64_t>(items.size());
  over->op = op;
  if (op == PoolOp::kMean && !is_last) over->op = PoolOp::kSum;
  if (op == PoolOp::kSumWhere && !is_first) over->op = PoolOp::kSum;
  if (over->op == PoolOp::kSumWhere || (op == PoolOp::kMax && is_last)) over->arg = p->views.arg;
  *before = std::move(p->memory);
  if (is_last) {
    over->out = p->views.out;
    return {};
  }
  const int64_t numbers = p->outer * over->count * p->D;
  p->memory = Take(stream, planes * numbers * static_cast<int64_t>(sizeof(float)));
  if (p->memory == nullptr) return NoMemory(stream);
  p->rows = DenseView(p->memory->data(), DType::kF32, {p->outer, over->count, p->D});
  p->places = {};
  if (op == PoolOp::kMax && p->rows.data != nullptr) {
    p->places = {p->rows.As<float>() + numbers, p->rows.As<int32_t>() + 2 * numbers};
  }
  over->out = p->rows;
  over->to = p->places;
  return {};
}

// How threads share the work: the blocks of the launch.
int64_t Cut(const Items& items, int64_t outer, int64_t D, PoolOver* over) {
  over->by_quads = HasQuads(over->x);
  over->stores_quads = over->by_quads && HasQuads(over->out);
  const int64_t units = over->by_quads ? D / kQuad : D;
  const int64_t pieces = DivideUp(LongestOf(items), kPoolPiece);
  over->pieces_log2 = static_cast<uint8_t>(Log2Up(pieces, 3));
  over->group_log2 = static_cast<uint8_t>(Log2Up(units, 8 - over->pieces_log2));
  over->item_blocks = DivideUp(over->count, kPoolThreads >> (over->group_log2 + over->pieces_log2));
  over->column_blocks = DivideUp(units, int64_t{1} << over->group_log2);
  return outer * over->item_blocks * over->column_blocks;
}

// Bytes that a launch moves; rows that several ranges read come from cache, at three times the rate
// of memory.
double BytesMoved(const Items& items, const Pooled& p, const View& x) {
  double rows = 0;
  for (const PoolItem& item : items) rows += static_cast<double>(item.end - item.begin);
  const double once = std::min(rows, static_cast<double>(x.shape[x.shape.rank - 2]));
  const double a_row = static_cast<double>(p.outer * p.D);
  return a_row * (static_cast<double>(SizeOf(x.dtype)) * (once + (rows - once) / 3) +
                  4 * static_cast<double>(items.size()));
}

DeviceStatus RunLevel(CudaDevice& device, Stream& stream, PoolOp op, size_t level,
                      std::vector<Pooled>& problems) {
  Items all;
  std::vector<PoolOver> overs;
  std::vector<int64_t> blocks, firsts;
  std::vector<std::shared_ptr<Buffer>> sources;
  double bytes = 0;
  int64_t shares = 0;
  for (Pooled& p : problems) {
    if (level >= p.levels.size()) continue;
    const Items& items = p.levels[level];
    PoolOver& over = overs.emplace_back(PoolOver{});
    DeviceStatus status = PrepareLevel(stream, op, level, &p, &over, &sources.emplace_back());
    if (!status.ok()) return status;
    blocks.push_back(Cut(items, p.outer, p.D, &over));
    bytes += BytesMoved(items, p, over.x);
    firsts.push_back(static_cast<int64_t>(all.size()));
    shares += ShareOf<PoolItem>(over.count);
    all.insert(all.end(), items.begin(), items.end());
  }
  if (all.empty()) return {};
  const std::span<const std::byte> pieces[] = {BytesOf(all)};
  const Table table = NewTable(stream, shares, pieces);
  if (!table.status.ok()) return table.status;
  const PoolItem* const first = table.As<PoolItem>();
  ProblemList<PoolOver> list;
  for (size_t i = 0; i < overs.size(); ++i) {
    overs[i].items = first == nullptr ? nullptr : first + firsts[i];
    list.Add(overs[i], blocks[i]);
  }
  const bool is_max = op == PoolOp::kMax;
  return LaunchOver(device, stream,
                    {.threads = kPoolThreads,
                     .shared_bytes = PoolShared(is_max),
                     .seconds = device.cuda().Seconds(0, bytes)},
                    is_max ? PoolKernel<true> : PoolKernel<false>, list);
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const PoolArgs& args) {
  std::vector<Pooled> problems;
  size_t levels = 0;
  for (const PoolProblem& p : args.problems) {
    const int rank = p.x.shape.rank;
    int64_t outer = 1;
    for (int i = 0; i + 2 < rank; ++i) outer *= p.x.shape[i];
    const int64_t D = p.x.shape[rank - 1];
    if (outer == 0 || D == 0) continue;
    problems.push_back({.views = p, .levels = LevelsOf(args.op, p.ranges), .outer = outer, .D = D});
    levels = std::max(levels, problems.back().levels.size());
    if (!stream.is_dry()) continue;
    // Vectors that grew.
    for (const Items& items : problems.back().levels) {
      stream.work().host_bytes += static_cast<int64_t>(2 * items.size() * sizeof(PoolItem));
    }
  }
  for (size_t level = 0; level < levels; ++level) {
    DeviceStatus status = RunLevel(device, stream, args.op, level, problems);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace attnd::cuda
