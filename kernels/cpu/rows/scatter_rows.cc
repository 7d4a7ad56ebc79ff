// scatter first lists the rows of every value, so that each row of the result is summed by one
// thread in a fixed order.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/core/run_control.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/rows/row_walk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows/scatter_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/rows/divide-inl.h"
#include "kernels/cpu/simd/strided-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

constexpr int64_t kChunk = 256;  // floats of a row at a time, on the stack
constexpr int64_t kLanes = HWY_LANES(float);
constexpr int64_t kStretch = 1024;  // rows that one row sums between check points

// sum[0, n) += the elements of x.
void AddRow(DType dtype, const char* x, int64_t stride, int64_t n, float* sum) {
  const hn::ScalableTag<float> d;
  float wide[kChunk];
  const float* from = wide;
  if (dtype == DType::kF32 && stride == 1) {
    from = reinterpret_cast<const float*>(x);
  } else {
    ReadFloats(dtype, x, stride, n, wide);
  }
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, sum + i), hn::LoadU(d, from + i)), d, sum + i);
  }
  for (; i < n; ++i) sum[i] += from[i];
}

// As Scatter, of matrices with one column of float32: a row takes no time but its sum.
void ScatterNumbers(const ScatterRowsProblem& p, const char* const* x, const int32_t* const* starts,
                    int64_t sources, const float* divisor, char* out, int64_t begin, int64_t end) {
  const int row = p.out.shape.rank - 2;
  const int64_t N = p.out.shape[row], step = p.x.stride[row];
  for (int64_t n = begin; n < end; ++n) {
    float sum = 0;
    for (int64_t s = 0; s < sources; ++s) {
      const auto* from = reinterpret_cast<const float*>(x[s]);
      const int32_t* order = starts[s] + N + 1;
      for (int64_t i = starts[s][n]; i < starts[s][n + 1]; ++i) {
        if ((i - starts[s][n]) % kStretch == kStretch - 1 && CheckPoint()) return;
        sum += from[order[i] * step];
      }
    }
    if (divisor != nullptr) DivideRow(&sum, 1, DivisorOf(p.divisor, divisor, n), &sum);
    reinterpret_cast<float*>(out)[n * p.out.stride[row]] = sum;
  }
}

// The rows that are summed: order[start[n] .. start[n + 1]) of `sources` matrices x, order right
// behind the N + 1 starts.
struct SummedRows {
  const char* const* x;
  const int32_t* const* starts;
  int64_t sources, N;
  int64_t pitch, bytes;  // of a row: distance and length

  // Calls add(row) for those of row n, in order; false if the run was stopped.
  template <class Add>
  HWY_INLINE bool ForEach(int64_t n, const Add& add) const {
    for (int64_t s = 0; s < sources; ++s) {
      const int32_t* order = starts[s] + N + 1;
      for (int64_t i = starts[s][n]; i < starts[s][n + 1]; ++i) {
        if ((i - starts[s][n]) % kStretch == kStretch - 1 && CheckPoint()) return false;
        if (i + kAhead < starts[s][N]) FetchRow(x[s] + order[i + kAhead] * pitch, bytes);
        add(x[s] + order[i] * pitch);
      }
    }
    return true;
  }
};

// The sum of kVectors vectors of float32 at `column`, in registers.
template <int kVectors>
HWY_INLINE bool SumStrip(const SummedRows& rows, int64_t n, int64_t column, float* sum) {
  const hn::ScalableTag<float> d;
  hn::Vec<decltype(d)> acc[kVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) acc[j] = hn::Zero(d);
  const bool is_done = rows.ForEach(n, [&](const char* row) HWY_ATTR {
    const float* from = reinterpret_cast<const float*>(row) + column;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) acc[j] = hn::Add(acc[j], hn::LoadU(d, from + j * kLanes));
  });
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) hn::StoreU(acc[j], d, sum + j * kLanes);
  return is_done;
}

// Columns [first, first + count) of the sum of row n, at most kChunk.
bool SumChunk(const SummedRows& rows, const ScatterRowsProblem& p, int64_t n, int64_t first,
              int64_t count, float* sum) {
  const int64_t stride = p.x.stride[p.out.shape.rank - 1];
  int64_t c = 0;
  if (p.x.dtype == DType::kF32 && stride == 1) {
    for (; c + 4 * kLanes <= count; c += 4 * kLanes) {
      if (!SumStrip<4>(rows, n, first + c, sum + c)) return false;
    }
    for (; c + kLanes <= count; c += kLanes) {
      if (!SumStrip<1>(rows, n, first + c, sum + c)) return false;
    }
  }
  if (c == count) return true;
  bool is_empty = true;
  const bool is_done = rows.ForEach(n, [&](const char* row) {
    const char* from = row + (first + c) * stride * SizeOf(p.x.dtype);
    if (is_empty) {
      ReadFloats(p.x.dtype, from, stride, count - c, sum + c);
    } else {
      AddRow(p.x.dtype, from, stride, count - c, sum + c);
    }
    is_empty = false;
  });
  if (is_empty) std::fill(sum + c, sum + count, 0.0f);
  return is_done;
}

// Rows [begin, end) of one matrix of out: the sums, in order, over `sources` matrices x and their
// lists.
void Scatter(const ScatterRowsProblem& p, const char* const* x, const int32_t* const* starts,
             int64_t sources, const float* divisor, char* out, int64_t begin, int64_t end) {
  const int row = p.out.shape.rank - 2;
  const int64_t N = p.out.shape[row], D = p.out.shape[row + 1];
  if (D == 1 && p.x.dtype == DType::kF32 && p.out.dtype == DType::kF32) {
    return ScatterNumbers(p, x, starts, sources, divisor, out, begin, end);
  }
  const int64_t x_size = SizeOf(p.x.dtype), out_stride = p.out.stride[row + 1];
  const SummedRows rows = {x, starts, sources, N, p.x.stride[row] * x_size, D * x_size};
  const bool is_dense = p.out.dtype == DType::kF32 && out_stride == 1;
  for (int64_t n = begin; n < end; ++n) {
    for (int64_t first = 0; first < D; first += kChunk) {
      const int64_t count = std::min(kChunk, D - first);
      char* const to = out + (n * p.out.stride[row] + first * out_stride) * SizeOf(p.out.dtype);
      HWY_ALIGN float chunk[kChunk];
      float* const sum = is_dense ? reinterpret_cast<float*>(to) : chunk;
      if (!SumChunk(rows, p, n, first, count, sum)) return;
      if (divisor != nullptr) DivideRow(sum, count, DivisorOf(p.divisor, divisor, n), sum);
      if (!is_dense) WriteFloats(p.out.dtype, sum, out_stride, count, to);
    }
  }
}

// The same for elements, each added to columns[w] of its row of out, which is float32 and dense.
void ScatterPairs(const ScatterRowsProblem& p, const char* const* x, const int32_t* const* starts,
                  const int32_t* const* columns, int64_t sources, const float* divisor, char* out,
                  int64_t begin, int64_t end) {
  const int row = p.out.shape.rank - 2;
  const int64_t N = p.out.shape[row], D = p.out.shape[row + 1], W = p.x.shape[row + 1];
  const int64_t x_size = SizeOf(p.x.dtype), x_stride = p.x.stride[row + 1];
  const int64_t step = p.columns.stride[row];
  for (int64_t n = begin; n < end; ++n) {
    auto* sum = reinterpret_cast<float*>(out) + n * p.out.stride[row];
    std::fill(sum, sum + D, 0.0f);
    for (int64_t s = 0; s < sources; ++s) {
      const int32_t* order = starts[s] + N + 1;
      for (int64_t i = starts[s][n]; i < starts[s][n + 1]; ++i) {
        if (CheckPoint()) return;
        const char* from = x[s] + order[i] * p.x.stride[row] * x_size;
        float values[kChunk];
        for (int64_t first = 0; first < W; first += kChunk) {
          const int64_t count = std::min(kChunk, W - first);
          ReadFloats(p.x.dtype, from + first * x_stride * x_size, x_stride, count, values);
          for (int64_t w = 0; w < count; ++w) {
            const int64_t column = columns[s][(first + w) * step];
            if (column >= 0) sum[column] += values[w];
          }
        }
      }
    }
    if (divisor != nullptr) DivideRow(sum, D, DivisorOf(p.divisor, divisor, n), sum);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

// The rows of every leading index of an index tensor by their value: N + 1 starts, then the M
// numbers of rows, ascending for each value.
struct Lists {
  View index;
  int64_t N, M;
  int64_t offset;  // of the first list in the scratch, in int32
  int64_t elements() const { return N + 1 + M; }
  int leading() const { return index.shape.rank - 1; }
  int64_t count() const { return Leading(index, leading()).size(); }
};

// A counting sort.
void Invert(const Lists& lists, int64_t list, int32_t* start) {
  const RowIndex at = IndexAt(Leading(lists.index, lists.leading()), list);
  const auto* index = reinterpret_cast<const int32_t*>(At(lists.index, lists.leading(), at));
  const int64_t step = lists.index.stride[lists.leading()];
  int32_t* order = start + lists.N + 1;
  std::fill(start, order, 0);
  constexpr int64_t kStretch = 1 << 14;  // of rows, between check points
  for (int64_t m = 0; m < lists.M; ++m) {
    if (m % kStretch == 0 && CheckPoint()) return;
    if (index[m * step] >= 0) ++start[index[m * step] + 1];
  }
  // start[n + 1] is where list n begins; filling moves it to the end, where list n + 1 begins.
  int32_t sum = 0;
  for (int64_t n = 1; n <= lists.N; ++n) sum += std::exchange(start[n], sum);
  for (int64_t m = 0; m < lists.M; ++m) {
    if (m % kStretch == 0 && CheckPoint()) return;
    if (index[m * step] >= 0) order[start[index[m * step] + 1]++] = static_cast<int32_t>(m);
  }
}

// What is added into one matrix of out, in ascending leading index.
struct Sources {
  std::vector<const char*> x;
  std::vector<const int32_t*> starts, columns;

  void Find(const ScatterRowsProblem& p, const Lists& lists, const int32_t* scratch,
            const RowIndex& lead) {
    x.clear();
    starts.clear();
    columns.clear();
    const int rank = p.out.shape.rank - 2;
    // The dimensions that are summed; the others stay at those of out.
    Shape summed = Leading(p.out, rank);
    for (int i = 0; i < rank; ++i) {
      int64_t size = p.x.shape[i] != 1 ? p.x.shape[i] : p.index.shape[i];
      if (size == 1 && p.columns.given()) size = p.columns.shape[i];
      summed.dims[i] = p.out.shape[i] == 1 ? size : 1;
    }
    for (int64_t s = 0; s < summed.size(); ++s) {
      RowIndex at = IndexAt(summed, s);
      int64_t list = 0;
      for (int i = 0; i < rank; ++i) {
        at[i] += lead[i];
        const int64_t size = p.index.shape[i];
        list = list * size + (size == 1 ? 0 : at[i]);
      }
      x.push_back(At(p.x, rank, at));
      starts.push_back(scratch + lists.offset + list * lists.elements());
      if (p.columns.given()) {
        columns.push_back(reinterpret_cast<const int32_t*>(At(p.columns, rank, at)));
      }
    }
  }
};

// Elements over which x and index run together.
double Broadcast(const View& x, const View& index) {
  double rows = 1;
  for (int i = 0; i < index.shape.rank; ++i) {
    rows *= static_cast<double>(i + 1 == index.shape.rank ? index.shape[i]
                                                          : std::max(x.shape[i], index.shape[i]));
  }
  return rows;
}

}  // namespace

template <>
DeviceStatus RunOnCpu(CpuDevice& device, Stream& stream, const ScatterRowsArgs& args) {
  const Cpu& cpu = device.cpu();
  std::vector<Lists> lists;
  RowItems sorts, items;
  int64_t elements = 0;
  double sort_bytes = 0, bytes = 0;
  for (const ScatterRowsProblem& p : args.problems) {
    const int rank = p.out.shape.rank - 2;
    lists.push_back({p.index, p.out.shape[rank], p.index.shape[rank], elements});
    const int64_t own = lists.back().count() * lists.back().elements();
    elements += own;
    sorts.Add(lists.back().count(), 1);
    items.Add(Rows(p.out), RowsPerItem(p.out));
    sort_bytes += 16.0 * static_cast<double>(own);
    bytes +=
        static_cast<double>(p.out.bytes()) +
        Broadcast(p.x, p.index) * static_cast<double>(p.x.shape[rank + 1] * SizeOf(p.x.dtype) + 8);
    if (p.columns.given()) bytes += kPairBytes * static_cast<double>(p.x.shape.size());
  }
  const std::shared_ptr<Buffer> scratch = Take(stream, elements * 4);
  if (scratch == nullptr) return NoMemory(stream);
  const double sort_serial = SecondsToMove(cpu, sort_bytes), serial = SecondsToMove(cpu, bytes);
  if (Predicted(stream, cpu.ParallelSeconds(sort_serial, sorts.count()) +
                            cpu.ParallelSeconds(serial, items.count()))) {
    return DeviceStatus();
  }
  auto* starts = static_cast<int32_t*>(scratch->data());
  cpu.ForEach(stream, sorts.count(), sort_serial, [&](int64_t i, int) {
    const RowItems::Item item = sorts[i];
    const Lists& of = lists[item.problem];
    Invert(of, item.begin, starts + of.offset + item.begin * of.elements());
  });
  auto* run =
      Choose(cpu.isa, HWY_CHOOSE_SSE4(Scatter), HWY_CHOOSE_AVX2(Scatter), HWY_CHOOSE_AVX3(Scatter));
  auto* run_pairs = Choose(cpu.isa, HWY_CHOOSE_SSE4(ScatterPairs), HWY_CHOOSE_AVX2(ScatterPairs),
                           HWY_CHOOSE_AVX3(ScatterPairs));
  cpu.ForEach(stream, items.count(), serial, [&](int64_t i, int) {
    const RowItems::Item item = items[i];
    const ScatterRowsProblem& p = args.problems[item.problem];
    const int rank = p.out.shape.rank - 2;
    Sources sources;
    ForEachMatrix(p.out, item, [&](const RowIndex& lead, int64_t begin, int64_t end) {
      sources.Find(p, lists[item.problem], starts, lead);
      const auto count = static_cast<int64_t>(sources.x.size());
      const float* divisor = DivisorsAt(p.divisor, rank, lead);
      char* const out = At(p.out, rank, lead);
      if (p.columns.given()) {
        run_pairs(p, sources.x.data(), sources.starts.data(), sources.columns.data(), count,
                  divisor, out, begin, end);
      } else {
        run(p, sources.x.data(), sources.starts.data(), count, divisor, out, begin, end);
      }
    });
  });
  return DeviceStatus();
}

}  // namespace attnd
#endif
