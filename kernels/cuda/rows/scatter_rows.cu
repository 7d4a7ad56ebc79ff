#include "kernels/cuda/rows/scatter_rows.cuh"

#include <algorithm>

#include "kernels/cuda/launch_parts.h"
#include "kernels/cuda/primitives.h"
#include "kernels/cuda/rows/key_sort.h"

namespace attnd::cuda {
namespace {

// What an element that is looked up by its column takes, in bytes: a sector of memory.
constexpr double kPairBytes = 32;
// A thread that looks for the keys of its row in a source: an ESTIMATE.
constexpr double kSourceSeconds = 5e-7;
constexpr int64_t kFewRows = 32768;  // fewer rows of out are spread over more blocks

// The lists of an index tensor; those that repeat are sorted once.
View Apart(const View& index) {
  View lists = index;
  for (int i = 0; i + 1 < lists.shape.rank; ++i) {
    if (lists.stride[i] == 0 && lists.shape[i] > 1) lists.shape.dims[i] = 1;
  }
  return lists;
}

// All lists of a launch, in one buffer: their keys, then where those of each row begin.
class ListsToSort {
 public:
  // Without memory. `N`: rows whose keys are looked up by starts; -1: none are. `alike`: how many
  // problems of the run have lists of their own.
  SortedLists Add(const View& index, int64_t N, int64_t alike) {
    const View lists = Apart(index);
    const int rank = lists.shape.rank - 1;
    SortedLists sorted = {
        .keys = nullptr, .starts = nullptr, .at = lists, .size = lists.shape[rank], .N = N};
    int64_t count = 1;
    for (int i = rank - 1; i >= 0; --i) {
      sorted.at.stride[i] = count;
      count *= lists.shape[i];
    }
    firsts_.push_back({keys_, starts_});
    rows_.push_back(
        {.x = lists, .order = KeyOrder::kIndices, .M = sorted.size, .wants_keys = true});
    keys_ += lists.shape.size();
    starts_ += count * (N + 1);
    bytes_ += alike * (ShareOf<uint64_t>(lists.shape.size()) + ShareOf<int32_t>(count * (N + 1)));
    return sorted;
  }
  int64_t bytes() const { return bytes_; }
  // Gives list number `number` its memory.
  void Place(size_t number, void* memory, SortedLists* sorted) const {
    if (memory == nullptr) return;
    auto* const keys = static_cast<uint64_t*>(memory);
    sorted->keys = keys + firsts_[number].keys;
    sorted->starts = reinterpret_cast<int32_t*>(keys + keys_) + firsts_[number].starts;
  }
  DeviceStatus Sort(CudaDevice& device, Stream& stream, void* memory) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (memory != nullptr) rows_[i].keys = static_cast<uint64_t*>(memory) + firsts_[i].keys;
    }
    return SortKeys(device, stream, rows_);
  }

 private:
  struct First {
    int64_t keys, starts;
  };
  std::vector<KeyRows> rows_;
  std::vector<First> firsts_;
  int64_t keys_ = 0, starts_ = 0, bytes_ = 0;
};

// Problems that one of a dry stream stands for, at most: where matrices of x share a list, each may
// be of a problem of its own.
int64_t AlikeOf(Stream& stream, const ScatterRowsProblem& p, const View& index) {
  if (!stream.is_dry()) return 1;
  const auto leading = [](const Shape& shape, int last) {
    int64_t count = 1;
    for (int i = 0; i < shape.rank - last; ++i) count *= shape.dims[i];
    return std::max<int64_t>(count, 1);
  };
  const int64_t lists = leading(Apart(index).shape, 1), matrices = leading(p.x.shape, 2);
  return std::clamp<int64_t>(DivideUp(matrices, lists), 1, stream.alike().most);
}

DeviceStatus FindStarts(CudaDevice& device, Stream& stream,
                        const std::vector<ScatterRowsOver>& overs) {
  // Of a search: dependent reads, most of them from L1.
  constexpr double kFlops = 500;
  ProblemList<SortedLists> list;
  double count = 0;
  for (const ScatterRowsOver& over : overs) {
    const int64_t starts = over.rows.lists() * (over.rows.N + 1);
    list.Add(over.rows, DivideUp(starts, kScatterThreads));
    count += static_cast<double>(starts);
  }
  return LaunchOver(
      device, stream,
      {.threads = kScatterThreads, .seconds = CudaOf(device).Seconds(kFlops * count, 12 * count)},
      ScatterStartsKernel, list);
}

bool IsOne(const ScatterRowsOver& over) { return over.sources == 1 && !over.views.columns.given(); }

// What a launch adds to an element of out at most, if all of x is added to that.
void SetParts(ScatterRowsOver* over) {
  const View& index = over->views.index;
  const int64_t M = std::max<int64_t>(1, index.shape[index.shape.rank - 1]);
  const int64_t of_source = over->views.columns.given() ? 1 : M;
  over->rows_of_part = of_source == 1 ? M : std::min(kRowsOfPart, M);
  over->sources_of_part = std::clamp<int64_t>(kRowsOfPart / of_source, 1, kSourcesOfPart);
  over->parts = DivideUp(M, over->rows_of_part) * DivideUp(over->sources, over->sources_of_part);
}

// Floats of ScatterRowsOver::carries.
int64_t CarriesOf(const ScatterRowsOver& over) {
  const Shape& out = over.views.out.shape;
  if (over.parts == 1) return 0;
  return IsOne(over) ? out.size() / std::max<int64_t>(1, out[out.rank - 2]) : out.size();
}

// The most problems with carries that one of a dry stream stands for: its sources are theirs.
int64_t CarriedOf(const ScatterRowsOver& over, const AlikeProblems& alike) {
  if (IsOne(over)) return 1;
  const bool has_long_sources = over.rows_of_part < over.rows.size;
  const int64_t each = has_long_sources ? 1 : over.sources_of_part;
  return std::clamp<int64_t>(over.sources / each, 1, alike.most);
}

ScatterRowsOver OverOf(const ScatterRowsProblem& p) {
  const int rank = p.out.shape.rank - 2;
  const int64_t N = p.out.shape[rank], D = p.out.shape[rank + 1];
  ScatterRowsOver over = {.views = p,
                          .rows = {},
                          .columns = {},
                          .summed = p.out.shape,
                          .sources = 1,
                          .parts = 1,
                          .sources_of_part = 1,
                          .rows_of_part = 0,
                          .carries = nullptr,
                          .row_blocks = 0,
                          .rows_of_block = 1,
                          .by_quads = !p.columns.given() && HasQuads(p.x) && HasQuads(p.out),
                          .group_log2 = 0};
  for (int i = 0; i < rank; ++i) {
    int64_t size = p.x.shape[i] != 1 ? p.x.shape[i] : p.index.shape[i];
    if (size == 1 && p.columns.given()) size = p.columns.shape[i];
    over.summed.dims[i] = p.out.shape[i] == 1 ? size : 1;
    over.sources *= over.summed.dims[i];
  }
  over.group_log2 = static_cast<uint8_t>(Log2Up(over.by_quads ? D / kQuad : D, 8));
  int64_t matrices = 1;
  for (int i = 0; i < rank; ++i) matrices *= p.out.shape[i];
  const int64_t most = (kScatterThreads >> over.group_log2) * kScatterEach;
  const int64_t fair = DivideUp(matrices * N * most, kFewRows);
  over.rows_of_block = static_cast<int>(std::clamp<int64_t>(fair, 1, most));
  over.row_blocks = matrices * DivideUp(N, over.rows_of_block);
  SetParts(&over);
  return over;
}

int64_t BlocksOf(const ScatterRowsOver& over) {
  const int64_t D = over.views.out.shape[over.views.out.shape.rank - 1];
  const int64_t columns = int64_t{over.by_quads ? kQuad : 1} << over.group_log2;
  return over.row_blocks * DivideUp(D, columns);
}

int64_t LongBlocksOf(const ScatterRowsOver& over) {
  const Shape& out = over.views.out.shape;
  if (out.size() == 0) return 0;
  const int64_t D = out[out.rank - 1], matrices = out.size() / D / out[out.rank - 2];
  const int64_t columns = int64_t{over.by_quads ? kQuad : 1} << over.group_log2;
  return DivideUp(matrices, kScatterThreads >> over.group_log2) * DivideUp(D, columns);
}

// Over `parts` of sums, where all of x may be added to one element of out.
DeviceStatus LaunchSums(CudaDevice& device, Stream& stream, LaunchShape shape,
                        void (*kernel)(Problems<ScatterRowsOver>, int64_t),
                        ProblemList<ScatterRowsOver>& list, int64_t parts) {
  constexpr double kPartSeconds = 4e-3;  // 60 ns for each of kRowsOfPart
  if (parts > 1) shape.most_seconds = kPartSeconds * static_cast<double>(parts);
  return LaunchParts(stream, shape, parts, [&](const LaunchShape& of_part, int64_t part) {
    return LaunchOver(device, stream, of_part, kernel, list, part);
  });
}

// Rows that are added.
double RowsOf(const ScatterRowsProblem& p) {
  const int rank = p.index.shape.rank;
  auto rows = static_cast<double>(p.index.shape[rank - 1]);
  for (int i = 0; i + 1 < rank; ++i) {
    rows *= static_cast<double>(std::max(p.x.shape[i], p.index.shape[i]));
  }
  return rows;
}

}  // namespace

template <>
DeviceStatus RunOnCuda(CudaDevice& device, Stream& stream, const ScatterRowsArgs& args) {
  ListsToSort lists;
  std::vector<ScatterRowsOver> overs;
  double one_bytes = 0, many_bytes = 0;
  for (const ScatterRowsProblem& p : args.problems) {
    ScatterRowsOver& over = overs.emplace_back(OverOf(p));
    over.rows = lists.Add(p.index, p.out.shape[p.out.shape.rank - 2], AlikeOf(stream, p, p.index));
    if (p.columns.given()) over.columns = lists.Add(p.columns, -1, AlikeOf(stream, p, p.columns));
    const int64_t W = p.x.shape[p.x.shape.rank - 1];
    double& bytes = IsOne(over) ? one_bytes : many_bytes;
    bytes += static_cast<double>(p.out.bytes()) +
             RowsOf(p) * static_cast<double>(8 + W * SizeOf(p.x.dtype));
    if (p.columns.given()) bytes += kPairBytes * RowsOf(p) * static_cast<double>(W);
  }
  const std::shared_ptr<Buffer> keys = TakeShared(stream, lists.bytes());
  if (keys == nullptr) return NoMemory(stream);
  if (DeviceStatus status = lists.Sort(device, stream, keys->data()); !status.ok()) return status;

  int64_t shares = 0;
  for (const ScatterRowsOver& over : overs) {
    const int64_t alike = stream.is_dry() ? CarriedOf(over, stream.alike()) : 1;
    shares += alike * ShareOf<float>(CarriesOf(over));
  }
  const std::shared_ptr<Buffer> carries = shares == 0 ? nullptr : TakeShared(stream, shares);
  if (shares > 0 && carries == nullptr) return NoMemory(stream);

  size_t number = 0;
  int64_t carry_at = 0;  // in bytes
  for (ScatterRowsOver& over : overs) {
    lists.Place(number++, keys->data(), &over.rows);
    if (over.views.columns.given()) lists.Place(number++, keys->data(), &over.columns);
    if (over.parts == 1 || stream.is_dry()) continue;
    over.carries = reinterpret_cast<float*>(static_cast<std::byte*>(carries->data()) + carry_at);
    carry_at += ShareOf<float>(CarriesOf(over));
  }
  if (DeviceStatus status = FindStarts(device, stream, overs); !status.ok()) return status;
  ProblemList<ScatterRowsOver> one, long_ones, many;
  int64_t long_parts = 1, many_parts = 1;
  double longest = 0;  // of a thread that sums over many sources, in seconds
  for (const ScatterRowsOver& over : overs) {
    if (!IsOne(over)) {
      const int64_t each = DivideUp(over.rows_of_block, kScatterThreads >> over.group_log2);
      longest = std::max(longest, kSourceSeconds * static_cast<double>(over.sources * each));
      many_bytes += 8.0 * static_cast<double>((over.parts - 1) * over.views.out.shape.size());
    }
    (IsOne(over) ? one : many).Add(over, BlocksOf(over));
    if (IsOne(over) && over.parts > 1) long_ones.Add(over, LongBlocksOf(over));
    int64_t& parts = IsOne(over) ? long_parts : many_parts;
    parts = std::max(parts, over.parts);
  }
  const Cuda& cuda = CudaOf(device);
  DeviceStatus status = LaunchOver(device, stream,
                                   {.threads = kScatterThreads,
                                    .shared_bytes = kScatterShared,
                                    .seconds = cuda.Seconds(0, one_bytes)},
                                   ScatterRowsKernel<true>, one, 0);
  if (!status.ok()) return status;
  // Data decide whether there is any such row: usually there is none.
  status = LaunchSums(device, stream, {.threads = kScatterThreads, .seconds = Cuda::kLaunchSeconds},
                      ScatterLongKernel, long_ones, long_parts);
  if (!status.ok()) return status;
  return LaunchSums(
      device, stream,
      {.threads = kScatterThreads, .seconds = std::max(cuda.Seconds(0, many_bytes), longest)},
      ScatterRowsKernel<false>, many, many_parts);
}

}  // namespace attnd::cuda
