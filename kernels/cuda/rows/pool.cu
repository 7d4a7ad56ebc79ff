#include "kernels/cuda/rows/pool.cuh"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/cuda/primitives.h"

namespace attnd::cuda {
namespace {

// What one launch reduces of a problem.
struct Level {
  std::span<const RowRange> ranges;  // of the problem, or `parts`
  std::vector<RowRange> parts;
  std::vector<int64_t> numbers;  // of PoolOver; empty: none
  bool is_regular = false;
  PoolSteps steps;
  int64_t longest = 0;
  double rows = 0;  // of all ranges together

  void Measure() {
    for (const RowRange& range : ranges) {
      longest = std::max(longest, range.end - range.begin);
      rows += static_cast<double>(range.end - range.begin);
    }
  }
};

// Whether ranges have one length and lie a step apart, but for what the end of the last one cuts:
// blocks, and strided windows.
bool IsRegular(std::span<const RowRange> ranges, PoolSteps* steps) {
  if (ranges.empty()) return false;
  const RowRange first = ranges.front();
  const int64_t length = first.end - first.begin, limit = ranges.back().end;
  const int64_t step = ranges.size() > 1 ? ranges[1].begin - first.begin : 0;
  *steps = {.begin = first.begin, .step = step, .length = length, .limit = limit};
  // No branch a range: this loop should take no longer than the launch.
  int64_t different = 0, begin = first.begin;
  for (const RowRange& range : ranges) {
    different |= range.begin ^ std::min(begin, limit);
    different |= range.end ^ std::min(begin + length, limit);
    begin += step;
  }
  return different == 0;
}

// Cuts the ranges of `level` into parts, and appends the level that joins those.
Level CutLevel(PoolOp op, Level* level) {
  Level next;
  std::vector<RowRange> parts;
  std::vector<int64_t> numbers;
  for (size_t m = 0; m < level->ranges.size(); ++m) {
    const auto [begin, end] = level->ranges[m];
    const int64_t own = op == PoolOp::kMean ? end - begin : static_cast<int64_t>(m);
    const int64_t number = level->numbers.empty() ? own : level->numbers[m];
    const auto first = static_cast<int64_t>(parts.size());
    for (int64_t n = begin; n < end; n += kPoolRows) {
      parts.push_back({n, std::min(n + kPoolRows, end)});
      numbers.push_back(number);
    }
    next.parts.push_back({first, static_cast<int64_t>(parts.size())});
    next.numbers.push_back(number);
  }
  level->parts = std::move(parts);
  level->numbers = std::move(numbers);
  level->ranges = level->parts;
  level->longest = kPoolRows;
  next.ranges = next.parts;
  next.Measure();
  return next;
}

// The last level reduces the ranges themselves, over the rows that those before it wrote.
std::vector<Level> LevelsOf(PoolOp op, std::span<const RowRange> ranges) {
  std::vector<Level> levels(1);
  Level& first = levels[0];
  first.ranges = ranges;
  first.is_regular = IsRegular(ranges, &first.steps) && first.steps.length <= kPoolRows;
  if (first.is_regular) {
    first.longest = first.steps.length;
    first.rows = static_cast<double>(ranges.size()) * static_cast<double>(first.longest);
  } else {
    first.Measure();
  }
  while (levels.back().longest > kPoolRows) levels.push_back(CutLevel(op, &levels.back()));
  return levels;
}

// A problem on its way through the launches.
struct Pooled {
  const PoolProblem* problem;
  std::vector<Level> levels;
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
  const bool is_first = level == 0, is_last = level + 1 == p->levels.size();
  const int planes = op == PoolOp::kMax ? 3 : 1;
  over->x = is_first ? p->problem->x : p->rows;
  over->from = p->places;
  over->count = static_cast<int64_t>(p->levels[level].ranges.size());
  over->op = op;
  if (op == PoolOp::kMean && !is_last) over->op = PoolOp::kSum;
  if (op == PoolOp::kSumWhere && !is_first) over->op = PoolOp::kSum;
  if (over->op == PoolOp::kSumWhere || (op == PoolOp::kMax && is_last)) {
    over->arg = p->problem->arg;
  }
  *before = std::move(p->memory);
  if (is_last) {
    over->out = p->problem->out;
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
int64_t Cut(const Level& level, int64_t outer, int64_t D, PoolOver* over) {
  over->by_quads = HasQuads(over->x);
  over->stores_quads = over->by_quads && HasQuads(over->out);
  const int64_t units = over->by_quads ? D / kQuad : D;
  const int64_t pieces = DivideUp(level.longest, kPoolPiece);
  over->pieces_log2 = static_cast<uint8_t>(Log2Up(pieces, 3));
  over->group_log2 = static_cast<uint8_t>(Log2Up(units, 8 - over->pieces_log2));
  over->range_blocks =
      DivideUp(over->count, kPoolThreads >> (over->group_log2 + over->pieces_log2));
  over->column_blocks = DivideUp(units, int64_t{1} << over->group_log2);
  return outer * over->range_blocks * over->column_blocks;
}

// Bytes that a launch moves; rows that several ranges read come from cache, at three times the rate
// of memory.
double BytesMoved(const Level& level, const Pooled& p, const View& x) {
  const double once = std::min(level.rows, static_cast<double>(x.shape[x.shape.rank - 2]));
  const double a_row = static_cast<double>(p.outer * p.D);
  return a_row * (static_cast<double>(SizeOf(x.dtype)) * (once + (level.rows - once) / 3) +
                  4 * static_cast<double>(level.ranges.size()));
}

// The ranges of a launch that are not regular, those of all problems, and then their numbers. The
// host copies nothing but what it must: lists of ranges may be as long as x.
class RangeTable {
 public:
  void Add(const Level& level, const PoolOver& over) {
    Place& place = places_.emplace_back();
    if (level.is_regular) return;
    place.ranges = ranges_;
    pieces_.push_back(std::as_bytes(level.ranges));
    ranges_ += over.count;
    shares_ += ShareOf<RowRange>(over.count);
    if (level.numbers.empty()) return;
    place.numbers = numbers_;
    number_pieces_.push_back(BytesOf(level.numbers));
    numbers_ += over.count;
    shares_ += ShareOf<int64_t>(over.count);
  }
  DeviceStatus Send(Stream& stream) {
    if (shares_ == 0) return {};
    pieces_.insert(pieces_.end(), number_pieces_.begin(), number_pieces_.end());
    table_ = NewTable(stream, shares_, pieces_);
    return table_.status;
  }
  // Of the problem that was added as number `i`.
  void Find(size_t i, PoolOver* over) const {
    const Place& place = places_[i];
    if (place.ranges < 0 || table_.As<RowRange>() == nullptr) return;
    over->ranges = table_.As<RowRange>() + place.ranges;
    if (place.numbers < 0) return;
    over->numbers =
        reinterpret_cast<const int64_t*>(table_.As<RowRange>() + ranges_) + place.numbers;
  }

 private:
  struct Place {
    int64_t ranges = -1, numbers = -1;  // -1: none
  };
  std::vector<Place> places_;
  std::vector<std::span<const std::byte>> pieces_, number_pieces_;
  int64_t ranges_ = 0, numbers_ = 0, shares_ = 0;
  Table table_;
};

DeviceStatus RunLevel(CudaDevice& device, Stream& stream, PoolOp op, size_t level,
                      std::vector<Pooled>& problems) {
  std::vector<PoolOver> overs;
  std::vector<int64_t> blocks;
  std::vector<std::shared_ptr<Buffer>> sources;
  RangeTable table;
  double bytes = 0;
  for (Pooled& p : problems) {
    if (level >= p.levels.size() || p.levels[level].ranges.empty()) continue;
    const Level& own = p.levels[level];
    PoolOver& over = overs.emplace_back(PoolOver{});
    DeviceStatus status = PrepareLevel(stream, op, level, &p, &over, &sources.emplace_back());
    if (!status.ok()) return status;
    over.steps = own.steps;
    blocks.push_back(Cut(own, p.outer, p.D, &over));
    bytes += BytesMoved(own, p, over.x);
    table.Add(own, over);
  }
  if (DeviceStatus status = table.Send(stream); !status.ok()) return status;
  ProblemList<PoolOver> list;
  for (size_t i = 0; i < overs.size(); ++i) {
    table.Find(i, &overs[i]);
    list.Add(overs[i], blocks[i]);
  }
  const bool is_max = op == PoolOp::kMax;
  return LaunchOver(device, stream,
                    {.threads = kPoolThreads,
                     .shared_bytes = PoolShared(is_max),
                     .seconds = CudaOf(device).Seconds(0, bytes)},
                    is_max ? PoolKernel<true> : PoolKernel<false>, list);
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const PoolArgs& args) {
  std::vector<Pooled> problems;
  problems.reserve(args.problems.size());
  size_t levels = 0;
  for (const PoolProblem& p : args.problems) {
    const int rank = p.x.shape.rank;
    int64_t outer = 1;
    for (int i = 0; i + 2 < rank; ++i) outer *= p.x.shape[i];
    const int64_t D = p.x.shape[rank - 1];
    if (outer == 0 || D == 0) continue;
    problems.push_back(
        {.problem = &p, .levels = LevelsOf(args.op, p.ranges), .outer = outer, .D = D});
    levels = std::max(levels, problems.back().levels.size());
    if (!stream.is_dry()) continue;
    // Vectors that grew.
    for (const Level& level : problems.back().levels) {
      stream.work().host_bytes += static_cast<int64_t>(2 * level.parts.size() * sizeof(RowRange) +
                                                       2 * level.numbers.size() * sizeof(int64_t));
    }
  }
  for (size_t level = 0; level < levels; ++level) {
    DeviceStatus status = RunLevel(device, stream, args.op, level, problems);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace attnd::cuda
