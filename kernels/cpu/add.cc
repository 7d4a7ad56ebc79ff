#include "kernels/cpu/add.h"

#include <algorithm>
#include <vector>

#include "kernels/core/copy.h"
#include "kernels/cpu/cpu_backend.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/add.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::HWY_NAMESPACE {

// sum = a + b over n contiguous elements, in float32.
void AddRow(DType dtype, const char* a, const char* b, char* sum, int64_t n) {
  constexpr int64_t kStep = 256;
  HWY_ALIGN float left[kStep];
  HWY_ALIGN float right[kStep];
  for (int64_t i = 0; i < n; i += kStep) {
    const int64_t count = std::min(kStep, n - i), at = i * SizeOf(dtype);
    Widen(dtype, a + at, count, left);
    Widen(dtype, b + at, count, right);
    for (int64_t j = 0; j < count; ++j) left[j] += right[j];
    Narrow(dtype, left, count, sum + at);
  }
}

}  // namespace attnd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd {
namespace {

constexpr int64_t kItemBytes = 64 << 10;  // enough to be worth a thread's while, a part of its L2

// A view as rows of contiguous elements.
struct RowIndex {
  int64_t rows = 1, length = 1;
  explicit RowIndex(const Shape& shape) {
    for (int i = 0; i + 1 < shape.rank; ++i) rows *= shape[i];
    if (shape.rank > 0) length = shape[shape.rank - 1];
  }
};

char* RowOf(const View& view, int64_t row) {
  int64_t offset = 0;
  for (int i = view.shape.rank - 2; i >= 0; --i) {
    offset += row % view.shape[i] * view.stride[i];
    row /= view.shape[i];
  }
  return view.As<char>() + offset * SizeOf(view.dtype);
}

// Items of a list of problems, numbered through.
struct ItemRange {
  int64_t first = 0;     // number of the problem's first item
  int64_t per_item = 1;  // rows
};

}  // namespace

absl::Status CpuAdd(CpuBackend& backend, Stream& stream, std::span<const AddProblem> problems) {
  const Cpu& cpu = backend.cpu();
  std::vector<ItemRange> ranges;
  int64_t items = 0;
  double bytes = 0;
  for (const AddProblem& p : problems) {
    const RowIndex index(p.sum.shape);
    const int64_t row_bytes = std::max<int64_t>(index.length * SizeOf(p.sum.dtype), 1);
    const int64_t per_item = std::max<int64_t>(kItemBytes / row_bytes, 1);
    ranges.push_back({items, per_item});
    items += (index.rows + per_item - 1) / per_item;
    bytes += 3.0 * static_cast<double>(p.sum.bytes());
  }
  const double serial = bytes / (cpu.bytes_per_second / cpu.threads);
  if (stream.is_dry()) {
    stream.work().seconds += cpu.ParallelSeconds(serial, items);
    return absl::OkStatus();
  }
  auto* add_row =
      Choose(cpu.isa, HWY_CHOOSE_SSE4(AddRow), HWY_CHOOSE_AVX2(AddRow), HWY_CHOOSE_AVX3(AddRow));
  cpu.pool->ParallelFor(items, cpu.Parallel(serial), [&](int64_t item, int) {
    const auto after = std::upper_bound(
        ranges.begin(), ranges.end(), item,
        [](int64_t number, const ItemRange& range) { return number < range.first; });
    const size_t n = static_cast<size_t>(after - ranges.begin()) - 1;
    const AddProblem& p = problems[n];
    const RowIndex index(p.sum.shape);
    const int64_t begin = (item - ranges[n].first) * ranges[n].per_item;
    const int64_t end = std::min(begin + ranges[n].per_item, index.rows);
    for (int64_t row = begin; row < end; ++row) {
      add_row(p.sum.dtype, RowOf(p.a, row), RowOf(p.b, row), RowOf(p.sum, row), index.length);
    }
  });
  return absl::OkStatus();
}

absl::Status CpuGather(CpuBackend& backend, Stream& stream, void* destination,
                       std::span<const std::span<const std::byte>> spans) {
  const Cpu& cpu = backend.cpu();
  struct Piece {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  std::vector<Piece> pieces;
  std::byte* to = static_cast<std::byte*>(destination);
  size_t whole = 0;
  for (std::span<const std::byte> span : spans) {
    whole += span.size();
    while (!span.empty()) {
      const size_t part = std::min<size_t>(span.size(), 1 << 20);
      if (!stream.is_dry()) {
        pieces.push_back({span.data(), to, part});
        to += part;
      }
      span = span.subspan(part);
    }
  }
  // A copy reads and writes.
  const auto bytes = static_cast<double>(whole);
  const double serial = 2 * bytes / (cpu.bytes_per_second / cpu.threads);
  // An echo over the loopback took 14 % and 9 % longer with a second thread for tensors of 256 KB
  // and 1 MB, 8 % and 4 % less for 8 and 32 MB.
  const bool parallel = whole >= kStreamedBytes;
  if (stream.is_dry()) {
    const auto items = static_cast<int64_t>(bytes / (1 << 20));
    stream.work().seconds += parallel ? cpu.ParallelSeconds(serial, items) : serial;
    return absl::OkStatus();
  }
  cpu.pool->ParallelFor(static_cast<int64_t>(pieces.size()), parallel, [&](int64_t item, int) {
    const Piece& piece = pieces[static_cast<size_t>(item)];
    CopyPart(piece.to, piece.from, piece.bytes, whole);
  });
  return absl::OkStatus();
}

}  // namespace attnd
#endif
