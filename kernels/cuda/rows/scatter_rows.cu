#include "kernels/cuda/rows/scatter_rows.cuh"

#include <algorithm>

#include "kernels/cuda/primitives.h"
#include "kernels/cuda/rows/key_sort.h"

namespace attnd::cuda {
namespace {

// What an element that is looked up by its column takes, in bytes: a sector of memory.
constexpr double kPairBytes = 32;
constexpr int64_t kFewRows = 4096;  // fewer rows of out are spread over more blocks

// The lists of an index tensor; those that repeat are sorted once.
View Apart(const View& index) {
  View lists = index;
  for (int i = 0; i + 1 < lists.shape.rank; ++i) {
    if (lists.stride[i] == 0 && lists.shape[i] > 1) lists.shape.dims[i] = 1;
  }
  return lists;
}

// All lists of a launch, in one buffer.
class ListsToSort {
 public:
  // Without the memory of its keys.
  SortedLists Add(const View& index) {
    const View lists = Apart(index);
    const int rank = lists.shape.rank - 1;
    SortedLists sorted = {.keys = nullptr, .at = lists, .size = lists.shape[rank]};
    int64_t stride = sorted.size;
    for (int i = rank - 1; i >= 0; --i) {
      sorted.at.stride[i] = stride;
      stride *= lists.shape[i];
    }
    firsts_.push_back(count_);
    rows_.push_back(
        {.x = lists, .order = KeyOrder::kIndices, .M = sorted.size, .wants_keys = true});
    count_ += lists.shape.size();
    bytes_ += ShareOf<uint64_t>(lists.shape.size());
    return sorted;
  }
  int64_t bytes() const { return bytes_; }
  // The memory of list number `number`.
  uint64_t* KeysOf(size_t number, void* memory) const {
    return memory == nullptr ? nullptr : static_cast<uint64_t*>(memory) + firsts_[number];
  }
  DeviceStatus Sort(CudaDevice& device, Stream& stream, void* memory) {
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i].keys = KeysOf(i, memory);
    return SortKeys(device, stream, rows_);
  }

 private:
  std::vector<KeyRows> rows_;
  std::vector<int64_t> firsts_;
  int64_t count_ = 0, bytes_ = 0;
};

ScatterRowsOver OverOf(const ScatterRowsProblem& p) {
  const int rank = p.out.shape.rank - 2;
  const int64_t N = p.out.shape[rank], D = p.out.shape[rank + 1];
  ScatterRowsOver over = {.views = p,
                          .rows = {},
                          .columns = {},
                          .summed = p.out.shape,
                          .sources = 1,
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
  const int64_t most = kScatterThreads >> over.group_log2;
  const int64_t fair = DivideUp(matrices * N * most, kFewRows);
  over.rows_of_block = static_cast<int>(std::clamp<int64_t>(fair, 1, most));
  over.row_blocks = matrices * DivideUp(N, over.rows_of_block);
  return over;
}

int64_t BlocksOf(const ScatterRowsOver& over) {
  const int64_t D = over.views.out.shape[over.views.out.shape.rank - 1];
  const int64_t columns = int64_t{over.by_quads ? kQuad : 1} << over.group_log2;
  return over.row_blocks * DivideUp(D, columns);
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
  double bytes = 0;
  for (const ScatterRowsProblem& p : args.problems) {
    ScatterRowsOver& over = overs.emplace_back(OverOf(p));
    over.rows = lists.Add(p.index);
    if (p.columns.given()) over.columns = lists.Add(p.columns);
    const int64_t W = p.x.shape[p.x.shape.rank - 1];
    bytes += static_cast<double>(p.out.bytes()) +
             RowsOf(p) * static_cast<double>(8 + W * SizeOf(p.x.dtype));
    if (p.columns.given()) bytes += kPairBytes * RowsOf(p) * static_cast<double>(W);
  }
  const std::shared_ptr<Buffer> keys = TakeShared(stream, lists.bytes());
  if (keys == nullptr) return NoMemory(stream);
  if (DeviceStatus status = lists.Sort(device, stream, keys->data()); !status.ok()) return status;

  ProblemList<ScatterRowsOver> list;
  size_t number = 0;
  for (ScatterRowsOver& over : overs) {
    over.rows.keys = lists.KeysOf(number++, keys->data());
    if (over.views.columns.given()) over.columns.keys = lists.KeysOf(number++, keys->data());
    list.Add(over, BlocksOf(over));
  }
  return LaunchOver(device, stream,
                    {.threads = kScatterThreads,
                     .shared_bytes = kScatterShared,
                     .seconds = device.cuda().Seconds(0, bytes)},
                    ScatterRowsKernel, list);
}

}  // namespace attnd::cuda
